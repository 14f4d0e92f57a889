package cordwood_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// The tests in the files repo_*_test.go hold rules of the whole repository. Each
// rule is a function from source files to findings, so that a test can show that
// the rule notices what it should: see TestRulesNotice.

// ours is the import path of the repository's main module.
const ours = "github.com/cordwood-io/cordwood"

// source is one Go file.
type source struct {
	path      string // slash-separated, from the top
	dir       string // "." for the top
	module    string // directory of its module, "." for the main one
	file      *ast.File
	fset      *token.FileSet
	test      bool
	generated bool
}

// at names a place in the file.
func (s *source) at(n ast.Node) string {
	return fmt.Sprintf("%s:%d", s.path, s.fset.Position(n.Pos()).Line)
}

// imports returns the file's imports, by path, with the name that the file uses.
func (s *source) imports() map[string]string {
	m := make(map[string]string)
	for _, i := range s.file.Imports {
		p, err := strconv.Unquote(i.Path.Value)
		if err != nil {
			continue // the parser has checked it
		}
		name := path.Base(p)
		if v := strings.TrimPrefix(name, "v"); v != name && v != "" && strings.Trim(v, "0123456789") == "" {
			name = path.Base(path.Dir(p))
		}
		if i.Name != nil {
			name = i.Name.Name
		}
		m[p] = name
	}
	return m
}

// library reports whether the file is part of a package that hosts import, as
// opposed to a program, a test, a helper of tests or generated code.
func (s *source) library() bool {
	return s.module == "." && !s.test && !s.generated && s.file.Name.Name != "main" && !under(s.dir, "examples") && s.dir != "internal/mutate"
}

// under reports whether dir is top or below it.
func under(dir, top string) bool { return dir == top || strings.HasPrefix(dir, top+"/") }

// internal reports whether an import path or directory has an internal element.
func internal(p string) bool { return slices.Contains(strings.Split(p, "/"), "internal") }

func parseSource(name string, text []byte) (*source, error) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	return &source{
		path: name, dir: path.Dir(name), module: ".", file: f, fset: fset,
		test: strings.HasSuffix(name, "_test.go"), generated: ast.IsGenerated(f),
	}, nil
}

// tree returns every Go file of the repository, those of all platforms and of
// nested modules included.
var tree = sync.OnceValues(func() ([]*source, error) {
	var files []*source
	err := walk(func(name string, module string) error {
		if path.Ext(name) != ".go" {
			return nil
		}
		text, err := os.ReadFile(filepath.FromSlash(name))
		if err != nil {
			return err
		}
		s, err := parseSource(name, text)
		if err != nil {
			return err
		}
		s.module = module
		files = append(files, s)
		return nil
	})
	return files, err
})

// walk calls f for every file of the repository outside testdata and hidden
// folders, .ci excepted, with the directory of its module.
func walk(f func(name, module string) error) error {
	modules := make(map[string]string)
	return filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		p = filepath.ToSlash(p)
		if !d.IsDir() {
			return f(p, modules[path.Dir(p)])
		}
		if p != "." && (d.Name() == "testdata" || d.Name()[0] == '.' && p != ".ci") || p == "tmp" {
			return filepath.SkipDir
		}
		modules[p] = modules[path.Dir(p)]
		if _, err := os.Stat(filepath.Join(filepath.FromSlash(p), "go.mod")); err == nil || p == "." {
			modules[p] = p
		}
		return nil
	})
}

// sources returns the files for which keep holds; it fails the test if there are
// none, since a rule without files holds nothing.
func sources(t *testing.T, keep func(*source) bool) []*source {
	t.Helper()
	all, err := tree()
	if err != nil {
		t.Fatal(err)
	}
	var files []*source
	for _, s := range all {
		if keep(s) {
			files = append(files, s)
		}
	}
	if len(files) == 0 {
		t.Fatal("no files to look at")
	}
	return files
}

func mainModule(s *source) bool { return s.module == "." }

// packages groups non-test files of a directory.
func packages(files []*source) map[string][]*source {
	m := make(map[string][]*source)
	for _, s := range files {
		if !s.test && under(s.dir, ".ci") == false {
			m[s.dir] = append(m[s.dir], s)
		}
	}
	return m
}

// report fails the test with every finding.
func report(t *testing.T, findings []string) {
	t.Helper()
	slices.Sort(findings)
	for _, f := range slices.Compact(findings) {
		t.Error(f)
	}
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
