package cordwood_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The Go block of the README compiles and is short.
func TestReadmeCompiles(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(readme), "```go\n")
	block, _, closed := strings.Cut(rest, "```")
	if !ok || !closed {
		t.Fatal("README.md has no Go block")
	}
	if n := strings.Count(block, "\n"); n > 20 {
		t.Errorf("the Go block has %d lines, want at most 20", n)
	}
	// It is compiled inside the module, so that it needs no other.
	if err := os.MkdirAll("testdata", 0o755); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("testdata", "readme-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	source := `package main

import (
	"context"
	"errors"
	"net"

	"github.com/cordwood-io/cordwood"
	"github.com/cordwood-io/cordwood/tier"
)

` + block + `
func main() { _ = run }
`
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(source), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("go", "vet", "./"+filepath.ToSlash(dir)).CombinedOutput()
	if err != nil {
		t.Errorf("the Go block does not compile: %v\n%s", err, out)
	}
}
