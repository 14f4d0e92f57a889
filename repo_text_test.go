package cordwood_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// unfinished are marks of things left undone, in comments and texts. The marks
// are put together here so that this file does not contain them.
var unfinished = regexp.MustCompile(`\b(` + strings.Join([]string{"TO" + "DO", "FIX" + "ME", "X" + "XX", "HA" + "CK"}, "|") + `)\b|(?i)\bfor n` + `ow([.,;)!?]|$| [a-z])`)

// machine are paths of somebody's machine.
var machine = regexp.MustCompile(`(^|[\s"'` + "`" + `(=])/(home|root|Users|wor` + `k|mnt)/[A-Za-z0-9_.]+`)

// checkText holds that a text has no mark of something left undone, no path of a
// machine, and no bytes that are not text.
func checkText(name string, text []byte) (findings []string) {
	if !utf8.Valid(text) {
		return []string{name + ": is not UTF-8"}
	}
	for i, line := range bytes.Split(text, []byte("\n")) {
		for _, re := range []*regexp.Regexp{unfinished, machine} {
			if m := re.Find(line); m != nil {
				findings = append(findings, fmt.Sprintf("%s:%d: %q", name, i+1, m))
			}
		}
	}
	return findings
}

func TestTexts(t *testing.T) {
	n := 0
	err := walk(func(name, _ string) error {
		switch path.Ext(name) {
		case ".go", ".md", ".proto", ".sh", "":
		default:
			return nil
		}
		text, err := os.ReadFile(filepath.FromSlash(name))
		if err != nil || bytes.HasPrefix(text, []byte("\x7fELF")) {
			return err
		}
		n++
		report(t, checkText(name, text))
		return nil
	})
	if err != nil || n == 0 {
		t.Fatalf("%d files, %v", n, err)
	}
}

// LICENSE is the text of the Apache License 2.0 as its authors publish it.
func TestLicense(t *testing.T) {
	text, err := os.ReadFile("LICENSE")
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n")))
	const want = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
	if got := hex.EncodeToString(sum[:]); got != want {
		t.Errorf("SHA-256 is %s, want %s", got, want)
	}
}

// The modules are what their folders say, and the main one has no tools in it.
func TestModules(t *testing.T) {
	modules := make(map[string]bool)
	err := walk(func(name, _ string) error {
		if path.Base(name) != "go.mod" {
			return nil
		}
		text, err := os.ReadFile(filepath.FromSlash(name))
		if err != nil {
			return err
		}
		dir := path.Dir(name)
		modules[dir] = true
		want := path.Join(ours, dir)
		if first, _, _ := strings.Cut(string(text), "\n"); strings.TrimSpace(first) != "module "+want {
			t.Errorf("%s starts with %q, want module %s", name, first, want)
		}
		if dir != "tools" && regexp.MustCompile(`(?m)^tool\b`).Match(text) {
			t.Errorf("%s has tools", name)
		}
		if dir == "." && regexp.MustCompile(`(?m)^(replace|exclude|toolchain)\b`).Match(text) {
			t.Errorf("%s has a replace, exclude or toolchain line", name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if !modules["."] || !modules["tools"] {
		t.Errorf("modules are %v", sorted(modules))
	}
}
