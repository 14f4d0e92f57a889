package cordwood_test

import (
	"slices"
	"strings"
	"testing"
)

// Each rule notices what it should, and nothing in code that keeps it.
func TestRulesNotice(t *testing.T) {
	parse := func(t *testing.T, name, text string) []*source {
		t.Helper()
		s, err := parseSource(name, []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if dir := "examples/byhand"; s.dir == dir {
			s.module = dir
		}
		return []*source{s}
	}
	deps := func(gomod string) func([]*source) []string {
		return func(files []*source) []string { return checkDependencies(gomod, files) }
	}
	const good = "// Package x is good.\npackage x\n\n"
	for _, c := range []struct {
		name string
		rule func([]*source) []string
		path string
		text string
		want string // part of the one finding; empty if there is to be none
	}{
		{"import-of-a-sibling", checkImports, "quota/x.go", "package quota\nimport _ \"" + ours + "/log\"", "quota must not import log"},
		{"import-upwards", checkImports, "log/record/x.go", "package record\nimport _ \"" + ours + "/log\"", "log/record must not import log"},
		{"import-of-the-root", checkImports, "tier/x.go", "package tier\nimport _ \"" + ours + "\"", "tier must not import ."},
		{"import-that-is-allowed", checkImports, "tier/x.go", "package tier\nimport _ \"" + ours + "/log\"", ""},
		{"import-in-a-test", checkImports, "quota/x_test.go", "package quota\nimport _ \"" + ours + "/log\"", ""},
		{"import-of-own-internal", checkImports, "metadata/x.go", "package metadata\nimport _ \"" + ours + "/metadata/internal/metapb\"", ""},
		{"import-from-internal", checkImports, "metadata/internal/metapb/x.go", "package metapb\nimport _ \"" + ours + "/log\"", "must not import log"},
		{"root-imports-internal", checkImports, "x.go", "package cordwood\nimport _ \"" + ours + "/internal/sim\"", "must not import internal/sim"},
		{"root-imports-all", checkImports, "x.go", "package cordwood\nimport _ \"" + ours + "/tier/dirstore\"", ""},
		{"package-not-in-the-map", checkImports, "util/x.go", "package util", "util is not in the map"},
		{"node-imports-internal", checkPublic, "node.go", "package cordwood\nimport _ \"" + ours + "/internal/x\"", "node.go: must not"},
		{"example-imports-internal", checkPublic, "examples/a/main.go", "package main\nimport _ \"" + ours + "/tier/internal/tierpb\"", "must not"},
		{"module-imports-internal", checkPublic, "examples/byhand/node_test.go", "package main\nimport _ \"" + ours + "/internal/sim\"", "must not"},
		{"example-imports-public", checkPublic, "examples/a/main.go", "package main\nimport _ \"" + ours + "/tier\"", ""},
		{"api-func", checkAPI, "tier/x.go", "package tier\nimport \"" + ours + "/tier/internal/tierpb\"\nfunc F(tierpb.E) {}", "F needs E"},
		{"api-method", checkAPI, "tier/x.go", "package tier\nimport pb \"" + ours + "/tier/internal/tierpb\"\ntype T[V any] int\nfunc (*T[V]) M() []*pb.E { return nil }", "M needs E"},
		{"api-field", checkAPI, "tier/x.go", "package tier\nimport \"" + ours + "/tier/internal/tierpb\"\ntype T struct { F map[int]tierpb.E }", "T needs E"},
		{"api-embedded", checkAPI, "tier/x.go", "package tier\nimport \"" + ours + "/tier/internal/tierpb\"\ntype T struct { tierpb.E }", "T needs E"},
		{"api-alias", checkAPI, "tier/x.go", "package tier\nimport \"" + ours + "/tier/internal/tierpb\"\ntype T = tierpb.E", "T needs E"},
		{"api-var", checkAPI, "tier/x.go", "package tier\nimport \"" + ours + "/tier/internal/tierpb\"\nvar V = tierpb.E{}", "V needs E"},
		{"api-hidden", checkAPI, "tier/x.go", "package tier\nimport \"" + ours + "/tier/internal/tierpb\"\ntype T struct { f tierpb.E }\nfunc F() { var e tierpb.E; _ = e }\nfunc g(tierpb.E) {}\ntype u tierpb.E\nfunc (u) M(tierpb.E) {}", ""},
		{"dependency-unknown", deps(""), "log/x.go", "package log\nimport _ \"example.com/x\"", "example.com/x is of no module"},
		{"dependency-elsewhere", deps(""), "log/x.go", "package log\nimport _ \"go.etcd.io/raft/v3/raftpb\"", "raftpb (consensus) is for [metadata] only"},
		{"dependency-of-tests", deps(""), "log/x.go", "package log\nimport _ \"pgregory.net/rapid\"", "rapid (models)"},
		{"dependency-in-a-test", deps(""), "log/x_test.go", "package log\nimport _ \"pgregory.net/rapid\"", ""},
		{"dependency-not-in-the-table", deps("require (\n\texample.com/x v1.0.0\n\texample.com/y v1.0.0 // indirect\n)"), "log/x.go", "package log", "requires example.com/x, which is not in the table"},
		{"dependency-unused", deps("require go.etcd.io/raft/v3 v3.7.0\n"), "log/x.go", "package log", "requires go.etcd.io/raft/v3, which nothing imports"},
		{"dependency-used", deps("require (\n\tgo.etcd.io/raft/v3 v3.7.0\n)"), "metadata/x.go", "package metadata\nimport _ \"go.etcd.io/raft/v3/raftpb\"", ""},
		{"no-package-comment", checkPackageDocs, "x/doc.go", "package x", "no package comment"},
		{"package-comment-detached", checkPackageDocs, "x/doc.go", "// Package x is good.\n\npackage x", "no package comment"},
		{"package-comment-elsewhere", checkPackageDocs, "x/x.go", good, "no package comment"},
		{"package-comment-of-another", checkPackageDocs, "x/doc.go", "// Package y is good.\npackage x", "starts with"},
		{"example-without-comment", checkPackageDocs, "examples/x/x.go", "package x", "no package comment"},
		{"example-comment", checkPackageDocs, "examples/x/x.go", good, ""},
		{"package-comment", checkPackageDocs, "x/doc.go", good, ""},
		{"doc-func", checkDocs, "x/x.go", good + "func F() {}", "F has no comment"},
		{"doc-method", checkDocs, "x/x.go", good + "// T is.\ntype T int\nfunc (t *T) M() {}", "M has no comment"},
		{"doc-type", checkDocs, "x/x.go", good + "type T int", "T has no comment"},
		{"doc-type-in-group", checkDocs, "x/x.go", good + "// Types.\ntype (\n\t// T is.\n\tT int\n\tU int\n)", "U has no comment"},
		{"doc-const", checkDocs, "x/x.go", good + "const C = 1", "C has no comment"},
		{"doc-var-group", checkDocs, "x/x.go", good + "var (\n\tV = 1\n)", "V has no comment"},
		{"doc-field", checkDocs, "x/x.go", good + "// ReadOptions are.\ntype ReadOptions struct {\n\t// A is.\n\tA int\n\n\tB int\n}", "ReadOptions.B has no comment"},
		{"doc-field-of-a-value", checkDocs, "x/x.go", good + "// T is A and B.\ntype T struct {\n\tA int\n\tB int\n}", ""},
		{"doc-interface", checkDocs, "x/x.go", good + "// T is.\ntype T interface {\n\tM()\n}", "T.M has no comment"},
		{"doc-complete", checkDocs, "x/x.go", good + "// Group.\nconst (\n\tC = 1\n\tD = 2\n)\n\nvar V = 1 // V is.\n\n// Stats are.\ntype Stats struct {\n\tA int // A is.\n\tB int\n\tc int\n\tU\n}\n\n// U is.\ntype U int\n\n// F is.\nfunc F() {}\nfunc g() {}\ntype h int\nfunc (h) M() {}", ""},
		{"quiet-log", checkQuiet, "x/x_test.go", "package x\nimport _ \"log\"", "standard log"},
		{"quiet-print", checkQuiet, "x/x.go", "package x\nimport \"fmt\"\nfunc f() { fmt.Println() }", "uses fmt.Println"},
		{"quiet-print-renamed", checkQuiet, "x/x.go", "package x\nimport f \"fmt\"\nvar _ = f.Print", "uses fmt.Print"},
		{"quiet-builtin", checkQuiet, "x/x.go", "package x\nfunc f() { println() }", "calls println"},
		{"quiet-stderr", checkQuiet, "x/x.go", "package x\nimport \"os\"\nvar w = os.Stderr", "uses os.Stderr"},
		{"quiet-exit", checkQuiet, "x.go", "package cordwood\nimport \"os\"\nfunc f() { os.Exit(1) }", "uses os.Exit"},
		{"quiet-signal", checkQuiet, "x/x.go", "package x\nimport _ \"os/signal\"", "imports os/signal"},
		{"quiet-slog", checkQuiet, "x/x.go", "package x\nimport \"log/slog\"\nfunc f() { slog.Info(\"x\") }", "uses log/slog.Info"},
		{"quiet-listen", checkQuiet, "x/x.go", "package x\nimport \"net\"\nfunc f() { net.Listen(\"tcp\", \":0\") }", "uses net.Listen"},
		{"quiet-disk", checkQuiet, "x/x.go", "package x\nimport \"os\"\nfunc f() { os.Create(\"x\") }", "instead of log.FS"},
		{"quiet-door", checkQuiet, "log/osfs_linux.go", "package log\nimport \"os\"\nfunc f() { os.Create(\"x\") }", ""},
		{"quiet-program", checkQuiet, "examples/a/main.go", "package main\nimport \"fmt\"\nfunc main() { fmt.Println() }", ""},
		{"quiet-test", checkQuiet, "x/x_test.go", "package x\nimport \"os\"\nvar w = os.Stderr", ""},
		{"global-init", checkGlobals, "x/x.go", "package x\nfunc init() {}", "init function"},
		{"global-goroutine", checkGlobals, "x/x.go", "package x\nvar a = func() int { go f(); return 1 }()\nfunc f() {}", "goroutine of the package"},
		{"global-mutex", checkGlobals, "x/x.go", "package x\nimport \"sync\"\nvar mu sync.Mutex", "sync.Mutex"},
		{"global-map", checkGlobals, "x/x.go", "package x\nvar m = make(map[int]int)", "make"},
		{"global-chan", checkGlobals, "x/x.go", "package x\nvar c chan int", "channel"},
		{"global-table", checkGlobals, "x/x.go", "package x\nimport \"errors\"\nvar e = errors.New(\"x\")\nvar m = map[int]string{1: \"a\"}\nfunc (t) init() {}\ntype t int", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := c.rule(parse(t, c.path, c.text))
			slices.Sort(got)
			got = slices.Compact(got)
			switch {
			case c.want == "" && len(got) > 0:
				t.Errorf("findings where there are none: %q", got)
			case c.want != "" && (len(got) != 1 || !strings.Contains(got[0], c.want)):
				t.Errorf("findings %q, want one with %q", got, c.want)
			}
		})
	}

	for _, c := range []struct{ name, text, want string }{
		{"unfinished", "a\n// TO" + "DO: more\n", "f:2"},
		{"for-now", "Good enough for n" + "ow.", "f:1"},
		{"machine", "see /ro" + "ot/x", "f:1"},
		{"machine-in-code", "open(\"/ho" + "me/me/x\")", "f:1"},
		{"binary", "\xff\xfe", "UTF-8"},
		{"fine", "the root/x of a/home/b; TODOS", ""},
	} {
		t.Run("text-"+c.name, func(t *testing.T) {
			got := checkText("f", []byte(c.text))
			if ok := len(got) == 0; ok != (c.want == "") || !ok && !strings.Contains(got[0], c.want) {
				t.Errorf("findings %q, want %q", got, c.want)
			}
		})
	}

	module := func(p string) *struct{ Path string } { return &struct{ Path string }{p} }
	heavy := []listed{
		{ImportPath: "fmt", Standard: true},
		{ImportPath: ours + "/log", Module: module(ours)},
		{ImportPath: "golang.org/x/sys/unix", Module: module("golang.org/x/sys")},
	}
	if got := checkWeight("log", weights["log"], heavy); len(got) != 1 || !strings.Contains(got[0], "golang.org/x/sys") {
		t.Errorf("weight of log: %q", got)
	}
	if got := checkWeight("quota", nil, heavy[:2]); len(got) != 1 || !strings.Contains(got[0], ours+"/log") {
		t.Errorf("weight of quota: %q", got)
	}
	if got := checkWeight("log", weights["log"], heavy[:2]); len(got) != 0 {
		t.Errorf("weight of log: %q", got)
	}
}
