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
		"--- FAIL: TestA (0.1s)\n    --- FAIL: TestA/b (0.1s)\n        --- FAIL: TestA/b/c (0s)\n--- FAIL: TestAb (0s)\n":       "TestA/b/c TestAb",
		"--- FAIL: TestA (0.1s)\n    x_test.go:1: seed 7: lost\nmore":                                                           "TestA (seed 7: lost)",
		"--- FAIL: TestA (0.1s)\n    x_test.go:1: seed 7: p/0/01020300-0000-0000-0000-00000000000f/00000000000000000249-7 lost": "TestA (seed 7: p/0/…/…-7 lost)",
		"panic: it broke\n\ngoroutine": "panic: it broke",
		"exit status 2":                "fails",
	} {
		if got := noticed(out); got != want {
			t.Errorf("%q: got %q, want %q", out, got, want)
		}
	}
}

func TestNamed(t *testing.T) {
	table := []byte("| guard | noticed by |\n| --- | --- |\n| acks count twice | TestA/b=1, TestC (seed 7: lost) |\n| acks | not a Test |\n| last | the reader: ExampleOpen |")
	for guard, want := range map[string]string{"acks count twice": "TestA/b=1", "acks": "", "twice": "", "last": "ExampleOpen", "guard": ""} {
		if got := Named(table, guard); got != want {
			t.Errorf("%q: got %q, want %q", guard, got, want)
		}
	}
	if got, want := pattern("TestA/b=1.5"), `^TestA$/^b=1\.5$`; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestHanging(t *testing.T) {
	for out, want := range map[string]string{
		"panic: test timed out after 1s\n\trunning tests:\n\t\tTestA (1s)\n\t\tTestA/b (1s)\n\ngoroutine 7":       "a time-out of TestA/b",
		"panic: test timed out after 1s\n\ngoroutine 7":                                                           "a time-out of all",
		"--- FAIL: TestA (0.1s)\npanic: test timed out after 1s\n\trunning tests:\n\t\tTestB (1s)\n\ngoroutine 7": "",
		"panic: it broke\n\ngoroutine": "",
	} {
		if got := hanging(out); got != want {
			t.Errorf("%q: got %q, want %q", out, got, want)
		}
	}
}
