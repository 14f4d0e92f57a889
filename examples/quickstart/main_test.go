package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// programEnv makes the test program the program itself, and its children nodes.
const programEnv = "QUICKSTART_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(programEnv) != "" {
		main()
	}
	os.Exit(m.Run())
}

type outcome struct {
	status         int
	stdout, stderr string
}

func start(t *testing.T, stdin string, args ...string) (*exec.Cmd, *bytes.Buffer, *bytes.Buffer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(os.Environ(), programEnv+"=1")
	cmd.Stdin = strings.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, &stdout, &stderr
}

func program(t *testing.T, stdin string, args ...string) outcome {
	t.Helper()
	cmd, stdout, stderr := start(t, stdin, args...)
	err := cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return outcome{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// succeed runs the program with -json and returns its report.
func succeed(t *testing.T, stdin string, args ...string) report {
	t.Helper()
	o := program(t, stdin, append(args, "-json")...)
	if o.status != 0 {
		t.Fatalf("status %d\n%s%s", o.status, o.stdout, o.stderr)
	}
	line, rest, _ := strings.Cut(o.stdout, "\n")
	var r report
	if err := json.Unmarshal([]byte(line), &r); err != nil || rest != "" {
		t.Fatalf("standard output is not one line of JSON: %v\n%s", err, o.stdout)
	}
	return r
}

func sequence(from, to int) string {
	var b strings.Builder
	for i := from; i <= to; i++ {
		fmt.Fprintln(&b, i)
	}
	return b.String()
}

func sum(s string) string {
	h := sha256.Sum256([]byte(s))
	return hex.EncodeToString(h[:])
}

func checkReport(t *testing.T, r report, content string) {
	t.Helper()
	if r.ContentSHA256 != sum(content) {
		t.Errorf("content hash is %s, want %s", r.ContentSHA256, sum(content))
	}
	if r.Lost+r.Changed+r.Duplicated != 0 {
		t.Errorf("lost %d, changed %d, duplicated %d", r.Lost, r.Changed, r.Duplicated)
	}
	if want := int64(strings.Count(content, "\n")); r.Records != want {
		t.Errorf("%d records, want %d", r.Records, want)
	}
	if r.ColdBytes == 0 || r.EpochAfter <= r.EpochBefore || r.LeaderAfter == r.LeaderBefore {
		t.Errorf("cold bytes %d, epochs %d and %d, leaders %d and %d", r.ColdBytes, r.EpochBefore, r.EpochAfter, r.LeaderBefore, r.LeaderAfter)
	}
	if cut := r.StorePuts - r.StoreDeletes - r.StoreObjects; cut < 0 || cut > 1 {
		t.Errorf("%d objects put, %d deleted, %d listed", r.StorePuts, r.StoreDeletes, r.StoreObjects)
	}
	if cut := r.StoreObjects - r.SegmentsFinished; cut < 0 || cut > 1 {
		t.Errorf("%d objects listed, %d finished", r.StoreObjects, r.SegmentsFinished)
	}
}

func TestStandardInput(t *testing.T) {
	content := sequence(1, 60000)
	r := succeed(t, content, "-in", "-")
	checkReport(t, r, content)
	if r.InFlightAtKill < killInFlight {
		t.Errorf("%d records were in flight at the kill, want at least %d", r.InFlightAtKill, killInFlight)
	}
}

// A tiny input, with a carriage return, an empty line and no newline at its end.
func TestTinyInput(t *testing.T) {
	checkReport(t, succeed(t, "one\r\n\nthree", "-in", "-"), "one\r\n\nthree\n")
}

func TestDirectoryInput(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) {
		t.Helper()
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("a.txt", "first\nsecond\n")
	write("b/c.txt", "third\n")
	write("binary", "x\x00y\n")
	write(".git/config", "not this\n")
	write("z.txt", "")
	checkReport(t, succeed(t, "", "-in", dir, "-dir", filepath.Join(dir, "run")), "first\nsecond\nthird\n")
}

// A second run on a directory recovers what is there, verifies and appends.
func TestSecondRun(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	first, second := sequence(1, 5000), sequence(5001, 8000)
	checkReport(t, succeed(t, first, "-in", "-", "-dir", dir), first)
	for _, name := range []string{"node1", "node2", "node3", "store"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
	checkReport(t, succeed(t, second, "-in", "-", "-dir", dir), first+second)
}

func TestTable(t *testing.T) {
	o := program(t, "one\ntwo\n", "-in", "-")
	if o.status != 0 || !strings.Contains(o.stdout, "every record is there once, as it was") {
		t.Errorf("status %d\n%s%s", o.status, o.stdout, o.stderr)
	}
}

// checkRefused checks for a non-zero status and one line that says why.
func checkRefused(t *testing.T, o outcome, why string) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(o.stderr), "\n")
	last := lines[len(lines)-1]
	if o.status == 0 || !strings.HasPrefix(last, "quickstart: ") || !strings.Contains(last, why) {
		t.Errorf("status %d, last line %q, want one that says %q\n%s", o.status, last, why, o.stderr)
	}
	if strings.Contains(o.stderr, "goroutine ") {
		t.Errorf("a panic:\n%s", o.stderr)
	}
}

func TestBadInput(t *testing.T) {
	t.Run("empty-input", func(t *testing.T) {
		o := program(t, "", "-in", "-")
		checkRefused(t, o, "no lines")
		if strings.Count(o.stderr, "\n") != 1 {
			t.Errorf("more than one line:\n%s", o.stderr)
		}
	})
	t.Run("unreadable-input", func(t *testing.T) {
		checkRefused(t, program(t, "", "-in", filepath.Join(t.TempDir(), "none")), "no such file")
	})
	t.Run("device-input", func(t *testing.T) {
		checkRefused(t, program(t, "", "-in", os.DevNull), "neither a file nor a directory")
	})
	t.Run("line-too-long", func(t *testing.T) {
		o := program(t, "short\n"+strings.Repeat("x", 1<<20+1)+"\n", "-in", "-")
		checkRefused(t, o, "line 2")
	})
	t.Run("longest-line", func(t *testing.T) {
		content := strings.Repeat("x", 1<<20) + "\nend\n"
		checkReport(t, succeed(t, content, "-in", "-"), content)
	})
	t.Run("unknown-flag", func(t *testing.T) {
		if o := program(t, "", "-nonsense"); o.status != 2 {
			t.Errorf("status %d, want 2", o.status)
		}
	})
	t.Run("directory-in-use", func(t *testing.T) {
		dir := t.TempDir()
		cmd, _, stderr := start(t, sequence(1, 400000), "-in", "-", "-dir", dir)
		waitForFile(t, filepath.Join(dir, "node3", "node"))
		checkRefused(t, program(t, "x\n", "-in", "-", "-dir", dir), "in use")
		if err := cmd.Wait(); err != nil {
			t.Errorf("the first run: %v\n%s", err, stderr)
		}
	})
	t.Run("directory-of-newer-version", func(t *testing.T) {
		dir := t.TempDir()
		succeed(t, "x\n", "-in", "-", "-dir", dir)
		name := filepath.Join(dir, "node2", "node")
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		b[5] = 9
		if err := os.WriteFile(name, b, 0o644); err != nil {
			t.Fatal(err)
		}
		checkRefused(t, program(t, "x\n", "-in", "-", "-dir", dir), "version 9")
	})
	t.Run("no-time-to-wait", func(t *testing.T) {
		if o := program(t, "", "-wait", "-1s"); o.status != 2 {
			t.Errorf("status %d, want 2", o.status)
		}
	})
	t.Run("another-store", func(t *testing.T) {
		const url = "s3://key:secret@127.0.0.1:1/bucket/here?plaintext=1"
		dir := t.TempDir()
		o := program(t, "x\n", "-in", "-", "-dir", dir, "-s3", url)
		checkRefused(t, o, "-s3: s3store: probe")
		if strings.Contains(o.stderr, "killed") {
			t.Errorf("a cluster was started without its store:\n%s", o.stderr)
		}
		succeed(t, "x\n", "-in", "-", "-dir", dir) // nothing has gone to the bucket
		checkRefused(t, program(t, "x\n", "-in", "-", "-dir", dir, "-s3", url), "leave -s3 out")
		dir = t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, bucketFile), []byte("127.0.0.1:1/bucket/there"), 0o644); err != nil {
			t.Fatal(err)
		}
		checkRefused(t, program(t, "x\n", "-in", "-", "-dir", dir), "are in the bucket 127.0.0.1:1/bucket/there")
		checkRefused(t, program(t, "x\n", "-in", "-", "-dir", dir, "-s3", url), "are in the bucket 127.0.0.1:1/bucket/there")
	})
	t.Run("store-down", func(t *testing.T) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "store"), []byte("in the way"), 0o644); err != nil {
			t.Fatal(err)
		}
		content := sequence(1, 20000)
		o := program(t, content, "-in", "-", "-dir", dir, "-wait", "1s", "-json")
		checkRefused(t, o, "store")
		var r report
		if err := json.Unmarshal([]byte(o.stdout), &r); err != nil {
			t.Fatalf("%v\n%s", err, o.stdout)
		}
		if r.ContentSHA256 != sum(content) || r.ColdBytes != 0 || !r.ok() {
			t.Errorf("the hot data is not what was appended: %+v", r)
		}
	})
	t.Run("disk-full", testDiskFull)
}

func waitForFile(t *testing.T, name string) {
	t.Helper()
	for range 30_000 {
		if _, err := os.Stat(name); err == nil {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("%s does not come", name)
}

// Ctrl-C ends the program and its nodes, and a later run takes the directory up.
func TestInterrupt(t *testing.T) {
	dir := t.TempDir()
	content := sequence(1, 400000)
	cmd, _, stderr := start(t, content, "-in", "-", "-dir", dir)
	waitForFile(t, filepath.Join(dir, "node3", "node"))
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Skip(err) // not on every system
	}
	if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != 130 {
		t.Fatalf("status %d, %v\n%s", cmd.ProcessState.ExitCode(), err, stderr)
	}
	o := program(t, "last\n", "-in", "-", "-dir", dir, "-json")
	var r report
	if err := json.Unmarshal([]byte(o.stdout), &r); err != nil || o.status != 0 || !r.ok() {
		t.Fatalf("the run after it: status %d, %v\n%s%s", o.status, err, o.stdout, o.stderr)
	}
	want := sequence(1, int(r.Records)-1) + "last\n"
	if r.ContentSHA256 != sum(want) {
		t.Errorf("the topic is not the first %d lines and the last one", r.Records-1)
	}
}

// Ctrl-C also ends the program while it waits for standard input.
func TestInterruptInput(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	dir := filepath.Join(t.TempDir(), "new")
	cmd := exec.Command(os.Args[0], "-in", "-", "-dir", dir)
	cmd.Env = append(os.Environ(), programEnv+"=1")
	cmd.Stdin = r
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer time.AfterFunc(5*time.Minute, func() { cmd.Process.Kill() }).Stop()
	waitForFile(t, dir)
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		cmd.Process.Kill()
		cmd.Wait()
		t.Skip(err) // not on every system
	}
	cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != 130 || stderr.String() != "quickstart: interrupted\n" {
		t.Errorf("status %d, want 130\n%s", got, &stderr)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// A run that dies before it has noted anything leaves a topic without a ledger;
// the next one takes that up.
func TestFirstRunDied(t *testing.T) {
	dir := t.TempDir()
	first := sequence(1, 3000)
	succeed(t, first, "-in", "-", "-dir", dir)
	if err := os.Truncate(filepath.Join(dir, "ledger"), 0); err != nil {
		t.Fatal(err)
	}
	r := succeed(t, "last\n", "-in", "-", "-dir", dir)
	if r.Records != 3001 || r.ContentSHA256 != sum(first+"last\n") {
		t.Errorf("%d records, sha256 %s; want those of both runs", r.Records, r.ContentSHA256)
	}
}

// A node ends with the program that started it, also in the middle of a request.
func TestNodeEndsWithItsParent(t *testing.T) {
	cmd := exec.Command(os.Args[0], nodeCommand)
	cmd.Env = append(os.Environ(), programEnv+"=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	const patience = 60 // seconds, of the request
	kill := time.AfterFunc(patience*time.Second, func() { cmd.Process.Kill() })
	defer kill.Stop()
	requests, answers := json.NewEncoder(in), json.NewDecoder(out)
	var a nodeAnswer
	err = requests.Encode(nodeRequest{Op: "open", ID: 1, Dir: t.TempDir(), Listen: "127.0.0.1:0", Seconds: patience})
	if err = errors.Join(err, answers.Decode(&a)); err != nil || a.Error != "" {
		t.Fatalf("open: %v %s", err, a.Error)
	}
	err = requests.Encode(nodeRequest{Op: "join", Seeds: []string{a.Addr}, Seconds: patience}) // itself: nobody to join
	if err = errors.Join(err, in.Close()); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); !kill.Stop() {
		t.Errorf("the node outlived its standard input: %v", err)
	}
}
