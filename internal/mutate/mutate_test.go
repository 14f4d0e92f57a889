package mutate

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

func TestRead(t *testing.T) {
	name := filepath.Join(t.TempDir(), "list.txt")
	write := func(s string) {
		if err := os.WriteFile(name, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("# a comment\n\nfirst | a.go\n<<<\n\tif a {\n===\n\tif true {\n>>>\n\nsecond | b/b.go\n<<<\none\ntwo\n===\n>>>\n")
	list, err := Read(name)
	want := []Mutation{{"first", "a.go", "\tif a {", "\tif true {"}, {"second", "b/b.go", "one\ntwo", ""}}
	if err != nil || !reflect.DeepEqual(list, want) {
		t.Errorf("got %q, %v", list, err)
	}
	write("no file\n<<<\na\n===\nb\n>>>\n\nfirst | a.go\n<<<\na\n===\nb\n>>>\n")
	if list, err = Read(name); err == nil || len(list) != 1 {
		t.Errorf("a block without a file: got %q, %v", list, err)
	}
	if _, err = Read(name + "x"); err == nil {
		t.Error("no file: no error")
	}
}

func TestNoticed(t *testing.T) {
	for out, want := range map[string]string{
		"--- FAIL: TestA (0.1s)\n    --- FAIL: TestA/b (0.1s)\n        --- FAIL: TestA/b/c (0s)\n--- FAIL: TestAb (0s)\n": "TestA/b/c TestAb",
		"--- FAIL: TestA (0.1s)\n    x_test.go:1: seed 7: lost\nmore":                                                     "TestA (seed 7: lost)",
		"panic: it broke\n\ngoroutine": "panic: it broke",
		"exit status 2":                "fails",
	} {
		if got := noticed(out); got != want {
			t.Errorf("%q: got %q, want %q", out, got, want)
		}
	}
}
