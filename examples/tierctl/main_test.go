package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cordwood-io/cordwood"
	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/tier"
	"github.com/cordwood-io/cordwood/tier/dirstore"
)

const records = 600

func value(i int) string { return fmt.Sprintf("record %06d %s", i, strings.Repeat("x", 100)) }

// cluster makes a directory as the quickstart leaves it: one node, stopped, and a
// store with everything that was appended.
func cluster(t *testing.T) string {
	t.Helper()
	return clusterOf(t, "lines")
}

// clusterOf does so with the same records in each of several topics.
func clusterOf(t *testing.T, topics ...string) string {
	t.Helper()
	dir := t.TempDir()
	store, err := dirstore.Open(filepath.ToSlash(filepath.Join(dir, "store")), dirstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n, err := cordwood.Open(t.Context(), cordwood.Options{
		ID: 1, Dir: filepath.ToSlash(filepath.Join(dir, "node1")), Listener: l, Store: store, StorePrefix: "cordwood", SystemReplication: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	}()
	ctx := t.Context() // a machine may stand still for a while
	if err := n.Init(ctx, cordwood.NewID(), []cordwood.Voter{{ID: 1, Addr: l.Addr().String()}}); err != nil {
		t.Fatal(err)
	}
	if err := n.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	tenant := n.Tenant("")
	for _, topic := range topics {
		if err := tenant.CreateTopic(ctx, topic, cordwood.TopicConfig{Replication: 1, SegmentBytes: 16 << 10}); err != nil {
			t.Fatal(err)
		}
		for i := range records {
			if _, err := tenant.Topic(topic).AppendRecords(ctx, 0, cordwood.Record{Value: []byte(value(i))}); err != nil {
				t.Fatal(err)
			}
		}
		r, err := tenant.Replica(topic, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Roll(ctx); err != nil {
			t.Fatal(err)
		}
		for {
			s, err := r.Status()
			if err != nil {
				t.Fatal(err)
			}
			if s.Tier.TierEnd > records { // and the control batch
				break
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	return dir
}

// tierctl runs the program.
func tierctl(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	status = run(t.Context(), args, &out, &errs)
	return status, out.String(), errs.String()
}

func must(t *testing.T, want int, args ...string) string {
	t.Helper()
	status, stdout, stderr := tierctl(t, args...)
	if status != want {
		t.Fatalf("tierctl %q: status %d, want %d\n%s%s", args, status, want, stdout, stderr)
	}
	return stdout
}

func TestTierctl(t *testing.T) {
	dir := cluster(t)
	store := filepath.Join(dir, "store")
	if out := must(t, 0, "audit", "-dir", dir); !strings.HasSuffix(out, "clean\n") {
		t.Errorf("audit: %s", out)
	}
	var list struct {
		Partitions []struct {
			Partition string
			Objects   []struct {
				Key       string
				Base, End int64
			}
		}
	}
	if err := json.Unmarshal([]byte(must(t, 0, "ls", "-json", "-dir", dir)), &list); err != nil {
		t.Fatal(err)
	}
	if len(list.Partitions) != 1 || len(list.Partitions[0].Objects) < 4 || !strings.HasSuffix(list.Partitions[0].Partition, "lines-0") {
		t.Fatalf("ls: %+v", list)
	}
	var all strings.Builder
	for i := range records {
		all.WriteString(value(i) + "\n")
	}
	if out := must(t, 0, "cat", "0", "-store", store); out != all.String() {
		t.Errorf("cat: %d bytes, want %d", len(out), all.Len())
	}
	// Offset 0 is a control batch.
	if out := must(t, 0, "cat", "-n", "2", "-store", store, "101"); out != value(100)+"\n"+value(101)+"\n" {
		t.Errorf("cat 101 -n 2: %q", out)
	}

	// The cluster was at work a moment ago.
	restored := filepath.Join(t.TempDir(), "out")
	if status, _, stderr := tierctl(t, "restore", "-store", store, "-out", restored); status != statusFailed || !strings.Contains(stderr, "-force") {
		t.Errorf("restore beside a cluster: status %d, %s", status, stderr)
	}
	var back struct {
		Partitions []struct {
			Records int64
			SHA256  string `json:"content_sha256"`
			Start   int64
			End     int64
		}
	}
	if err := json.Unmarshal([]byte(must(t, 0, "restore", "-force", "-json", "-store", store, "-out", restored)), &back); err != nil {
		t.Fatal(err)
	}
	if len(back.Partitions) != 1 || back.Partitions[0].Records != records || back.Partitions[0].SHA256 != hash(all.String()) {
		t.Errorf("restore: %+v", back)
	}
	must(t, statusFailed, "restore", "-force", "-store", store, "-out", restored) // it is there already
	if err := json.Unmarshal([]byte(must(t, 0, "restore", "-force", "-json", "-to", "50", "-store", store, "-out", restored+"2")), &back); err != nil {
		t.Fatal(err)
	}
	if back.Partitions[0].End != 50 || back.Partitions[0].Records != 49 {
		t.Errorf("restore -to 50: %+v", back)
	}

	third := list.Partitions[0].Objects[2]
	file := filepath.Join(store, filepath.FromSlash(third.Key))
	saved, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	// A restore that fails half-way leaves nothing behind, and what one that was killed has
	// left is not taken for whole.
	hurt := bytes.Clone(saved)
	hurt[len(hurt)/2] ^= 1
	if err := os.WriteFile(file, hurt, 0o644); err != nil {
		t.Fatal(err)
	}
	if out := must(t, statusFindings, "audit", "-store", store); !strings.Contains(out, fmt.Sprintf("offsets [%d, %d) are lost", third.Base, third.End)) {
		t.Errorf("audit of the store alone with a damaged object: %s", out)
	}
	aside := fmt.Sprintf("-to %d restores what is below the object; -from %d", third.Base, third.End)
	if status, stdout, stderr := tierctl(t, "restore", "-force", "-store", store, "-out", filepath.Join(restored+"4", "in", "it")); status != statusFindings || stdout != "" || !strings.Contains(stderr, aside) {
		t.Errorf("restore with a damaged object: status %d, %s%s", status, stdout, stderr)
	}
	if _, err := os.Stat(restored + "4"); !os.IsNotExist(err) {
		t.Errorf("a restore that failed leaves a directory, %v", err)
	}
	if err := os.WriteFile(file, saved, 0o644); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadDir(restored)
	if err != nil || len(whole) != 1 {
		t.Fatalf("%v, %v", whole, err)
	}
	if err := os.MkdirAll(filepath.Join(restored+"4", whole[0].Name()+unfinished), 0o755); err != nil {
		t.Fatal(err)
	}
	if status, _, stderr := tierctl(t, "restore", "-force", "-store", store, "-out", restored+"4"); status != statusFailed || !strings.Contains(stderr, "cut off") {
		t.Errorf("beside an unfinished restore: status %d, %s", status, stderr)
	}

	// One object goes, and one comes that nobody knows.
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	lost := fmt.Sprintf("offsets [%d, %d) are lost", third.Base, third.End)
	if out := must(t, statusFindings, "audit", "-depth", "names", "-dir", dir); !strings.Contains(out, lost) {
		t.Errorf("audit without an object: %s", out)
	}
	// What is above the gap is restored, and what is below it by the -to that is named.
	reach := fmt.Sprintf("restore -to %d reaches what is below", third.Base)
	for _, args := range [][]string{{"restore", "-force", "-store", store, "-out", restored + "3"}, {"restore", "-dir", dir, "-out", restored + "3d"}} {
		if status, stdout, stderr := tierctl(t, args...); status != statusFindings || strings.Count(stderr, "lost") != 1 || !strings.Contains(stderr, reach) || !strings.Contains(stdout, fmt.Sprintf("[%d, ", third.End)) {
			t.Errorf("tierctl %q above a gap: status %d, %s%s", args, status, stdout, stderr)
		}
	}
	if out := must(t, statusFindings, "audit", "-store", store); !strings.Contains(out, reach) {
		t.Errorf("audit of the store alone with a gap: %s", out)
	}
	if out := must(t, statusFindings, "ls", "-store", store); !strings.Contains(out, "2 objects beside these, 1 findings") {
		t.Errorf("ls with a gap: %s", out)
	}
	must(t, statusFindings, "ls", "-json", "-dir", dir)
	for i, args := range [][]string{{"-force", "-store", store}, {"-dir", dir}} {
		for _, to := range []int64{third.Base, 1} {
			args := append(args, "-json", "-to", fmt.Sprint(to), "-out", fmt.Sprint(restored, "3b", i, to))
			if err := json.Unmarshal([]byte(must(t, 0, append([]string{"restore"}, args...)...)), &back); err != nil {
				t.Fatal(err)
			}
			if len(back.Partitions) != 1 || back.Partitions[0].Start != 0 || back.Partitions[0].End != to || back.Partitions[0].Records != to-1 {
				t.Errorf("restore -to %d below a gap: %+v", to, back)
			}
		}
	}
	must(t, 0, "restore", "-dir", dir, "-from", fmt.Sprint(third.End), "-out", restored+"3c")
	if status, _, stderr := tierctl(t, "restore", "-dir", dir, "-from", fmt.Sprint(third.Base), "-to", fmt.Sprint(third.End), "-out", restored+"5"); status != statusFailed || !strings.Contains(stderr, "nothing of what -from and -to ask for") {
		t.Errorf("restore of a gap: status %d, %s", status, stderr)
	}
	var below, above strings.Builder
	for i := range records { // of record i the offset is i+1
		if at := int64(i + 1); at < third.Base {
			below.WriteString(value(i) + "\n")
		} else if at >= third.End {
			above.WriteString(value(i) + "\n")
		}
	}
	skipped := fmt.Sprintf("offsets [%d, %d) are lost\n", third.Base, third.End)
	if status, stdout, stderr := tierctl(t, "cat", "0", "-store", store); status != statusFindings || stdout != below.String()+above.String() || stderr != skipped {
		t.Errorf("cat 0 over a gap: status %d, %d bytes, want %d and %d, %s", status, len(stdout), below.Len(), above.Len(), stderr)
	}
	if out := must(t, 0, "cat", "-n", "1", "1", "-store", store); out != value(0)+"\n" {
		t.Errorf("cat 1 below a gap: %s", out)
	}
	if out := must(t, 0, "cat", fmt.Sprint(third.End), "-store", store); out != above.String() {
		t.Errorf("cat above a gap: %d bytes", len(out))
	}
	if status, stdout, stderr := tierctl(t, "cat", fmt.Sprint(third.Base), "-store", store); status != statusFailed || stdout != "" || !strings.Contains(stderr, fmt.Sprintf("[0, %d) and [%d, ", third.Base, third.End)) {
		t.Errorf("cat in a gap: status %d, %s", status, stderr)
	}
	if err := os.WriteFile(file, saved, 0o644); err != nil {
		t.Fatal(err)
	}

	// Of the last object, and of all, only the tier log knows that they are missing.
	objects := list.Partitions[0].Objects
	last := objects[len(objects)-1]
	lost = fmt.Sprintf("offsets [%d, %d) are lost", last.Base, last.End)
	away := t.TempDir()
	if err := os.Rename(filepath.Join(store, filepath.FromSlash(last.Key)), filepath.Join(away, "last")); err != nil {
		t.Fatal(err)
	}
	if status, _, stderr := tierctl(t, "restore", "-dir", dir, "-out", restored+"5"); status != statusFindings || !strings.Contains(stderr, lost) {
		t.Errorf("restore without the last object: status %d, %s", status, stderr)
	}
	must(t, 0, "restore", "-dir", dir, "-to", fmt.Sprint(last.Base), "-out", restored+"6")
	must(t, 0, "restore", "-force", "-store", store, "-out", restored+"7")
	if err := os.Rename(filepath.Join(away, "last"), filepath.Join(store, filepath.FromSlash(last.Key))); err != nil {
		t.Fatal(err)
	}
	k, _ := tier.ParseKey("cordwood", third.Key)
	k.ID = tier.ID{1}
	orphan := filepath.Join(store, filepath.FromSlash(k.Path("cordwood")))
	if err := os.WriteFile(orphan, saved, 0o644); err != nil {
		t.Fatal(err)
	}
	if out := must(t, statusFindings, "audit", "-dir", dir); !strings.Contains(out, "orphan") || strings.Contains(out, "lost") {
		t.Errorf("audit with an orphan: %s", out)
	}
	if out := must(t, 0, "sweep", "-dir", dir); !strings.Contains(out, "1 younger") {
		t.Errorf("sweep of a young orphan: %s", out)
	}
	must(t, statusFindings, "sweep", "-dry-run", "-min-age", "0", "-dir", dir)
	if _, err := os.Stat(orphan); err != nil {
		t.Error(err)
	}
	// With another store than that in the directory, these may be a copy of a cluster
	// that is at work.
	beside := []string{"sweep", "-min-age", "0", "-dir", dir, "-store", store}
	if status, _, stderr := tierctl(t, beside...); status != statusFailed || !strings.Contains(stderr, "-force") {
		t.Errorf("sweep beside a cluster: status %d, %s", status, stderr)
	}
	if _, err := os.Stat(orphan); err != nil {
		t.Error(err)
	}
	must(t, 0, append(beside, "-force")...)
	if _, err := os.Stat(orphan); !os.IsNotExist(err) {
		t.Errorf("after the sweep: %v", err)
	}
	must(t, 0, "audit", "-dir", dir)

	// A node's directory may have any name, as the quickstart's host.
	if err := os.Rename(filepath.Join(dir, "node1"), filepath.Join(dir, "host")); err != nil {
		t.Fatal(err)
	}
	must(t, 0, "audit", "-dir", dir)

	for _, o := range objects {
		if err := os.Remove(filepath.Join(store, filepath.FromSlash(o.Key))); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"restore", "-dir", dir, "-out", restored + "8"}, {"cat", "0", "-dir", dir}} {
		if status, _, stderr := tierctl(t, args...); status != statusFailed || !strings.Contains(stderr, "the store has no object") {
			t.Errorf("tierctl %q of an empty store: status %d, %s", args, status, stderr)
		}
	}
}

// TestRestoreSeveral: a partition that can't be restored is named, and those after it are.
func TestRestoreSeveral(t *testing.T) {
	dir := clusterOf(t, "a", "b", "c")
	store := filepath.Join(dir, "store")
	var list struct {
		Partitions []struct {
			Partition string
			Objects   []struct {
				Key       string
				Base, End int64
			}
		}
	}
	if err := json.Unmarshal([]byte(must(t, 0, "ls", "-json", "-store", store)), &list); err != nil || len(list.Partitions) != 3 {
		t.Fatalf("%+v, %v", list, err)
	}
	hurt := list.Partitions[0].Objects[1]
	file := filepath.Join(store, filepath.FromSlash(hurt.Key))
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 1
	if err := os.WriteFile(file, b, 0o644); err != nil {
		t.Fatal(err)
	}
	// Of the second the directory is there already.
	out := filepath.Join(t.TempDir(), "out")
	taken := filepath.Join(out, list.Partitions[1].Partition)
	if err := os.MkdirAll(taken, 0o755); err != nil {
		t.Fatal(err)
	}
	status, stdout, stderr := tierctl(t, "restore", "-force", "-json", "-store", store, "-out", out)
	var back struct {
		Partitions []struct{ Partition string }
		Failed     []struct {
			Kind, Partition, Detail string
			Base, End               int64
		}
	}
	if err := json.Unmarshal([]byte(stdout), &back); err != nil {
		t.Fatalf("%v: status %d, %s%s", err, status, stdout, stderr)
	}
	if status != statusFindings || len(back.Partitions) != 1 || back.Partitions[0].Partition != list.Partitions[2].Partition || len(back.Failed) != 2 {
		t.Fatalf("status %d, %s%s", status, stdout, stderr)
	}
	for i, want := range []string{
		fmt.Sprintf("corrupt: partition %s: offsets [%d, %d) are lost", list.Partitions[0].Partition, hurt.Base, hurt.End),
		fmt.Sprintf("failed: partition %s: offsets [0, %d) %s is there already", list.Partitions[1].Partition, records+1, taken),
	} {
		f := back.Failed[i]
		if !strings.Contains(stderr, want) || !strings.HasPrefix(want, fmt.Sprintf("%s: partition %s: offsets [%d, %d)", f.Kind, f.Partition, f.Base, f.End)) {
			t.Errorf("want %q: %+v, %s", want, f, stderr)
		}
	}
	if left, err := os.ReadDir(out); err != nil || len(left) != 2 {
		t.Errorf("in OUT: %v, %v", left, err)
	}
	// Where nothing can be restored, and not for what is in the store, it could not be done.
	if status, stdout, stderr := tierctl(t, "restore", "-force", "-store", store, "-out", out, "-partition", list.Partitions[1].Partition); status != statusFailed || stdout != "" || !strings.Contains(stderr, "is there already") {
		t.Errorf("into a directory that is there: status %d, %s%s", status, stdout, stderr)
	}
}

// loseCheckpoint leaves of the tier log a checkpoint whose manifest is not there, and
// takes away what the node has kept.
func loseCheckpoint(t *testing.T, dir string) {
	t.Helper()
	node := filepath.ToSlash(filepath.Join(dir, "node1"))
	s, err := cordwood.OpenStopped(t.Context(), []string{node}, cordwood.StoppedOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var e tier.Event
	for c, err := range s.TierEvents(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if c.Event != nil {
			if e, err = tier.DecodeEvent(c.Event); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(filepath.Join(node, "partitions"))
	if err != nil {
		t.Fatal(err)
	}
	disk, err := log.NewDisk(log.DiskOptions{Dir: node})
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	for _, entry := range entries {
		if entry.Name() == e.Partition.String() {
			continue
		}
		id, err := log.ParseTopicID(strings.TrimSuffix(entry.Name(), "-0"))
		if err != nil {
			t.Fatal(err)
		}
		l, err := log.Open(t.Context(), node+"/partitions/"+entry.Name(), log.Options{Disk: disk, Partition: log.PartitionID{Topic: id}, UseReserve: true})
		if err != nil {
			t.Fatal(err)
		}
		e.Seq, e.Body = e.Seq+1, tier.Checkpoint{Manifest: tier.ID{7}, Bytes: 50_000}
		b, err := tier.EncodeEvent(e)
		if err != nil {
			t.Fatal(err)
		}
		a, err := l.AppendRecords(t.Context(), log.Record{Value: b})
		if err == nil {
			err = errors.Join(l.TrimTo(t.Context(), a.Base), l.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(filepath.Join(node, "tier-state")); err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
}

func TestRepair(t *testing.T) {
	dir := cluster(t)
	if out := must(t, 0, "repair", "-dir", dir); out != "0 partitions, 0 files of states written\n" {
		t.Errorf("repair of what is well: %s", out)
	}
	loseCheckpoint(t, dir)
	if out := must(t, statusFindings, "audit", "-dir", dir); !strings.Contains(out, "manifest: partition default/lines-0") {
		t.Errorf("audit: %s", out)
	}
	file := filepath.Join(dir, "node1", "tier-state")
	must(t, statusFindings, "repair", "-dry-run", "-dir", dir)
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("a dry run has written: %v", err)
	}
	if out := must(t, 0, "repair", "-dir", dir); !strings.Contains(out, "objects\n1 partitions, 1 files of states written\n") || !strings.Contains(out, "is lost; offsets [0, ") {
		t.Errorf("repair: %s", out)
	}
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
	if status, _, stderr := tierctl(t, "repair", "-store", filepath.Join(dir, "store")); status != statusFailed || !strings.Contains(stderr, "needs -dir") {
		t.Errorf("repair of a store: status %d, %s", status, stderr)
	}
}

func TestBadInput(t *testing.T) {
	empty := t.TempDir()
	for _, args := range [][]string{
		{}, {"frob"}, {"audit"}, {"audit", "-dir", filepath.Join(empty, "none")}, {"audit", "-store", empty}, {"audit", "-dir", empty, "x"},
		{"audit", "-store", empty, "-s3", "s3://b"}, {"audit", "-s3", "http://b"}, {"cat", "-store", empty}, {"cat", "-store", empty, "x1"},
		{"cat", "-store", empty, "-5"}, {"restore", "-store", empty}, {"restore", "-store", empty, "-out", "x", "-to", "-1"},
		{"sweep", "-store", empty}, {"audit", "-depth", "deep", "-store", empty}, {"cat", "-json", "-store", empty, "0"},
		{"restore", "-store", empty, "-out", "x", "-to", "0"}, {"restore", "-store", empty, "-out", "x", "-to", "5x"},
	} {
		status, stdout, stderr := tierctl(t, args...)
		if status != statusFailed || stdout != "" || stderr == "" {
			t.Errorf("tierctl %q: status %d\n%s%s", args, status, stdout, stderr)
		}
	}
	entries, err := os.ReadDir(empty)
	if err != nil || len(entries) != 0 {
		t.Errorf("a look made files: %v, %v", entries, err)
	}
}

// TestMistakes says what is wrong in the words of who made the mistake.
func TestMistakes(t *testing.T) {
	dir := cluster(t)
	store := filepath.Join(dir, "store")
	foreign := filepath.Join(cluster(t), "store")
	elsewhere := t.TempDir()
	file := filepath.Join(elsewhere, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(filepath.Join(elsewhere, "node1"), os.DirFS(filepath.Join(dir, "node1"))); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		want string
		args []string
	}{
		{"leave out -dir to read the store alone", []string{"ls", "-dir", dir, "-store", foreign}},
		{"leave out -dir to read the store alone", []string{"restore", "-dir", dir, "-store", foreign, "-out", filepath.Join(elsewhere, "out")}},
		{"another cluster", []string{"audit", "-dir", dir, "-store", foreign}},
		{file, []string{"restore", "-dir", dir, "-out", file}},
		{"needs one OFFSET\n", []string{"cat", "-dir", dir}},
		{"is not in the store, which holds [0, ", []string{"cat", "-dir", dir, "100000"}},
		{"name it by -dir", []string{"audit", "-store", dir}},
		{"has no directories of nodes", []string{"audit", "-dir", filepath.Join(dir, "node1")}},
		{"name the store by -store or -s3", []string{"audit", "-dir", elsewhere}},
		{`with prefix "other"`, []string{"ls", "-prefix", "other", "-store", store}},
		{`with prefix "/"`, []string{"ls", "-prefix", "/", "-store", store}},
		{"-min-age -5m0s is negative", []string{"sweep", "-min-age", "-5m", "-dir", dir}},
		{"-n -3 is negative", []string{"cat", "-n", "-3", "-dir", dir, "0"}},
		{`"0x10" is no offset`, []string{"cat", "-dir", dir, "0x10"}},
		{`no partition "lines"`, []string{"cat", "-partition", "lines", "-dir", dir, "0"}},
	} {
		status, stdout, stderr := tierctl(t, c.args...)
		if status != statusFailed || stdout != "" || !strings.Contains(stderr, c.want) {
			t.Errorf("tierctl %q: status %d, want %q\n%s%s", c.args, status, c.want, stdout, stderr)
		}
	}
	lock, err := log.OSFS{}.Lock(filepath.ToSlash(filepath.Join(dir, "node1", "lock")))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if status, _, stderr := tierctl(t, "audit", "-dir", dir); status != statusFailed || !strings.Contains(stderr, "stop the cluster first") {
		t.Errorf("beside a node that runs: status %d, %s", status, stderr)
	}
}

func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}
