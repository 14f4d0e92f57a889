package cordwood_test

import (
	"fmt"
	"go/ast"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// forbiddenImports must not be imported by packages of the library: they print,
// set globals, or install something for the whole process.
var forbiddenImports = []string{
	"flag", "os/signal", "expvar", "net/http/pprof", "log/syslog", "testing/iotest", "unsafe",
}

// forbiddenCalls are names that packages of the library must not use.
var forbiddenCalls = map[string][]string{
	"fmt":           {"Print", "Printf", "Println", "Scan", "Scanf", "Scanln"},
	"os":            {"Stdin", "Stdout", "Stderr", "Exit", "Setenv", "Unsetenv", "Clearenv", "Chdir", "Args"},
	"log/slog":      {"SetDefault", "Default", "Debug", "Info", "Warn", "Error", "Log", "DebugContext", "InfoContext", "WarnContext", "ErrorContext", "LogAttrs", "SetLogLoggerLevel"},
	"runtime":       {"GOMAXPROCS", "SetFinalizer", "LockOSThread"},
	"runtime/debug": {"SetGCPercent", "SetMemoryLimit", "SetMaxStack", "SetMaxThreads", "SetPanicOnFault", "SetTraceback"},
	"syscall":       {"Exit", "Kill", "Setrlimit", "Umask", "Chdir", "Setenv"},
	"net/http":      {"Handle", "HandleFunc", "ListenAndServe", "DefaultServeMux", "DefaultClient", "DefaultTransport"},
	"net":           {"Listen", "ListenTCP", "ListenPacket", "ListenUDP", "ListenUnix", "ListenConfig"},
}

// doors are the files that reach the disk; everything else goes through log.FS.
var doors = []string{"log/osfs", "log/quota_"}

// diskCalls are the names of package os that reach the disk.
var diskCalls = []string{
	"Open", "OpenFile", "OpenRoot", "OpenInRoot", "Create", "CreateTemp", "Remove", "RemoveAll", "Rename", "Mkdir", "MkdirAll", "MkdirTemp",
	"ReadFile", "WriteFile", "ReadDir", "Stat", "Lstat", "Link", "Symlink", "Truncate", "Chmod", "Chtimes", "DirFS", "CopyFS",
}

// checkQuiet holds that the library prints nothing, sets no global, listens
// nowhere by itself, and reaches the disk by one door.
func checkQuiet(files []*source) (findings []string) {
	for _, s := range files {
		bad := func(n ast.Node, what string) {
			findings = append(findings, fmt.Sprintf("%s: %s", s.at(n), what))
		}
		names := make(map[string]string)
		for p, name := range s.imports() {
			names[name] = p
			if p == "log" {
				findings = append(findings, fmt.Sprintf("%s: imports the standard log; use log/slog", s.path))
			}
			if s.library() && slices.Contains(forbiddenImports, p) {
				findings = append(findings, fmt.Sprintf("%s: imports %s", s.path, p))
			}
		}
		if !s.library() {
			continue
		}
		door := slices.ContainsFunc(doors, func(d string) bool { return strings.HasPrefix(s.path, d) })
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				if f, ok := n.Fun.(*ast.Ident); ok && (f.Name == "print" || f.Name == "println") {
					bad(n, "calls "+f.Name)
				}
			case *ast.SelectorExpr:
				x, ok := n.X.(*ast.Ident)
				if !ok || names[x.Name] == "" {
					return true
				}
				p := names[x.Name]
				if slices.Contains(forbiddenCalls[p], n.Sel.Name) {
					bad(n, fmt.Sprintf("uses %s.%s", p, n.Sel.Name))
				}
				if p == "os" && !door && slices.Contains(diskCalls, n.Sel.Name) {
					bad(n, fmt.Sprintf("uses os.%s instead of log.FS", n.Sel.Name))
				}
			}
			return true
		})
	}
	return findings
}

// stateTypes are types of package variables that would be state of the process.
var stateTypes = []string{
	"sync.Mutex", "sync.RWMutex", "sync.Map", "sync.WaitGroup", "sync.Cond", "sync.Once",
	"atomic.Int32", "atomic.Int64", "atomic.Uint32", "atomic.Uint64", "atomic.Bool", "atomic.Pointer", "atomic.Value",
}

// checkGlobals holds that packages of the library have no init functions, no
// goroutines and no state of their own.
func checkGlobals(files []*source) (findings []string) {
	for _, s := range files {
		if !s.library() {
			continue
		}
		bad := func(n ast.Node, what string) {
			findings = append(findings, fmt.Sprintf("%s: %s", s.at(n), what))
		}
		for _, d := range s.file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil && d.Name.Name == "init" {
					bad(d, "init function")
				}
			case *ast.GenDecl:
				if d.Tok != token.VAR {
					continue
				}
				ast.Inspect(d, func(n ast.Node) bool {
					switch n := n.(type) {
					case *ast.GoStmt:
						bad(n, "goroutine of the package")
					case *ast.ChanType:
						bad(n, "channel of the package")
					case *ast.SelectorExpr:
						if x, ok := n.X.(*ast.Ident); ok && slices.Contains(stateTypes, x.Name+"."+n.Sel.Name) {
							bad(n, "state of the package: "+x.Name+"."+n.Sel.Name)
						}
					case *ast.CallExpr:
						if f, ok := n.Fun.(*ast.Ident); ok && f.Name == "make" {
							bad(n, "state of the package: make")
						}
						if f, ok := n.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "Go" {
							bad(n, "goroutine of the package")
						}
					case *ast.FuncType:
						return false // signatures of function values
					}
					return true
				})
			}
		}
	}
	return findings
}

func TestLibraryIsQuiet(t *testing.T) {
	report(t, checkQuiet(sources(t, func(*source) bool { return true })))
}

func TestLibraryHasNoGlobals(t *testing.T) {
	report(t, checkGlobals(sources(t, mainModule)))
}
