//go:build ignore

// Copy copies the wiring of package cordwood into this folder.
package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "copy:", err)
		os.Exit(1)
	}
}

func run() error {
	names, err := filepath.Glob("../../*.go")
	if err != nil {
		return err
	}
	for _, name := range names {
		base := filepath.Base(name)
		if strings.HasSuffix(base, "_test.go") || base == "doc.go" {
			continue
		}
		b, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		b = bytes.Replace(b, []byte("package cordwood\n"), []byte("package byhand\n"), 1)
		if err := os.WriteFile(base, b, 0o644); err != nil {
			return err
		}
	}
	return nil
}
