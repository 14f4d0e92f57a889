package cordwood_test

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// mayImport is the map of the repository: which packages of ours each package
// imports outside its tests. "all" stands for every package that is not internal,
// except programs. A package may also import what lies in its own internal
// folder.
var mayImport = map[string][]string{
	"log/record":    {},
	"log":           {"log/record"},
	"log/logtest":   {"log", "log/record"},
	"tier":          {"log", "log/record"},
	"tier/memstore": {"tier"},
	// FS, the only door to the disk, is log's.
	"tier/dirstore": {"tier", "log"},
	"tier/s3store":  {"tier"},
	"tier/tiertest": {"tier", "log"}, // the names in tier's interfaces are log's
	"metadata":      {"log"},
	"replication":   {"log", "log/record"},
	"transport":     {},
	"quota":         {},
	"balance":       {},
	// Models of brokers for tests of plans.
	"balance/balancetest": {"balance"},
	".":                   {"all"},
	"cordwoodtest":        {"all"},
	"internal/sim":        {"all"},
	// Guards are taken out of any package, by its tests.
	"internal/mutate": {},
}

// checkImports holds the map.
func checkImports(files []*source) (findings []string) {
	for dir, pkg := range packages(files) {
		if under(dir, "examples") {
			continue // see checkPublic
		}
		allowed, known := mayImport[dir]
		owner, _, isInternal := strings.Cut(dir, "/internal/")
		if !known && isInternal {
			allowed, known = []string{}, mayImport[owner] != nil // generated code and the like
		}
		if !known {
			findings = append(findings, fmt.Sprintf("package %s is not in the map mayImport: say what it may import", dir))
			continue
		}
		for _, s := range pkg {
			for p := range s.imports() {
				rel, ok := strings.CutPrefix(p, ours+"/")
				if p == ours {
					rel, ok = ".", true
				}
				if !ok || slices.Contains(allowed, rel) || under(rel, path.Join(dir, "internal")) && dir != "." {
					continue
				}
				if slices.Contains(allowed, "all") && !under(rel, "examples") && (!internal(rel) || internal(dir)) {
					continue
				}
				findings = append(findings, fmt.Sprintf("%s: package %s must not import %s", s.path, dir, rel))
			}
		}
	}
	return findings
}

// checkPublic holds that programs, and modules of their own, live from the public
// API, as do the files that wire a node.
func checkPublic(files []*source) (findings []string) {
	for _, s := range files {
		if s.module == "." && !under(s.dir, "examples") && strings.Contains(s.path, "/") {
			continue
		}
		for p := range s.imports() {
			if internal(p) && strings.HasPrefix(p, ours) {
				findings = append(findings, fmt.Sprintf("%s: must not import %s", s.path, p))
			}
		}
	}
	return findings
}

// checkAPI holds that no exported name needs a type of an internal package.
func checkAPI(files []*source) (findings []string) {
	for _, s := range files {
		if s.test || internal(s.dir) || s.file.Name.Name == "main" {
			continue
		}
		hidden := make(map[string]string)
		for p, name := range s.imports() {
			if internal(p) && strings.HasPrefix(p, ours) {
				hidden[name] = p
			}
		}
		look := func(n ast.Node, what string) {
			if n == nil {
				return
			}
			ast.Inspect(n, func(n ast.Node) bool {
				if st, ok := n.(*ast.StructType); ok {
					for _, f := range st.Fields.List {
						if len(f.Names) > 0 && !slices.ContainsFunc(f.Names, (*ast.Ident).IsExported) {
							continue
						}
						ast.Inspect(f.Type, func(n ast.Node) bool {
							findings = append(findings, needs(s, n, hidden, what)...)
							return true
						})
					}
					return false
				}
				findings = append(findings, needs(s, n, hidden, what)...)
				return true
			})
		}
		for _, d := range s.file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && (d.Recv == nil || ast.IsExported(receiver(d))) {
					look(d.Type, d.Name.Name)
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					switch spec := spec.(type) {
					case *ast.TypeSpec:
						if spec.Name.IsExported() {
							look(spec.Type, spec.Name.Name)
						}
					case *ast.ValueSpec:
						if slices.ContainsFunc(spec.Names, (*ast.Ident).IsExported) {
							if spec.Type != nil {
								look(spec.Type, spec.Names[0].Name)
							}
							for _, v := range spec.Values {
								look(v, spec.Names[0].Name)
							}
						}
					}
				}
			}
		}
	}
	return findings
}

func needs(s *source, n ast.Node, hidden map[string]string, what string) []string {
	sel, ok := n.(*ast.SelectorExpr)
	if !ok {
		return nil
	}
	x, ok := sel.X.(*ast.Ident)
	if !ok || hidden[x.Name] == "" {
		return nil
	}
	return []string{fmt.Sprintf("%s: exported %s needs %s of %s", s.at(n), what, sel.Sel.Name, hidden[x.Name])}
}

// receiver returns the name of a method's type.
func receiver(d *ast.FuncDecl) string {
	t := d.Recv.List[0].Type
	for {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
		case *ast.IndexExpr:
			t = x.X
		case *ast.IndexListExpr:
			t = x.X
		case *ast.Ident:
			return x.Name
		default:
			return ""
		}
	}
}

func TestImports(t *testing.T) {
	report(t, checkImports(sources(t, mainModule)))
}

func TestPublicAPIOnly(t *testing.T) {
	all := sources(t, func(*source) bool { return true })
	report(t, checkPublic(all))
	report(t, checkAPI(sources(t, mainModule)))
}

// dependency is a module that the main module may require.
type dependency struct {
	why  string
	used []string // directories that may import it, with what lies below; tests are free if test is set
	test bool
}

// dependencies are the only direct requirements, with their reasons.
var dependencies = map[string]dependency{
	"go.etcd.io/raft/v3":                  {why: "consensus", used: []string{"metadata"}},
	"github.com/cockroachdb/pebble/v2":    {why: "metadata store", used: []string{"metadata"}},
	"github.com/minio/minio-go/v7":        {why: "S3", used: []string{"tier/s3store"}},
	"github.com/klauspost/compress":       {why: "zstd, gzip, snappy", used: []string{"log/record", "tier"}, test: true},
	"github.com/pierrec/lz4/v4":           {why: "lz4, as Kafka's clients use it", used: []string{"log/record"}, test: true},
	"github.com/twmb/franz-go":            {why: "Kafka client", used: []string{"examples"}, test: true},
	"github.com/twmb/franz-go/pkg/kmsg":   {why: "Kafka messages", used: []string{"examples"}, test: true},
	"github.com/twmb/franz-go/pkg/kadm":   {why: "Kafka administration", used: []string{"examples"}, test: true},
	"google.golang.org/protobuf":          {why: "record encoding", used: []string{"metadata", "tier"}},
	"github.com/tidwall/btree":            {why: "ordered maps with cheap copies", used: []string{"metadata"}},
	"github.com/prometheus/client_golang": {why: "metrics in examples", used: []string{"examples"}},
	"github.com/anishathalye/porcupine":   {why: "linearizability", used: []string{"internal/sim", "cordwoodtest"}, test: true},
	"pgregory.net/rapid":                  {why: "models", used: []string{"balance/balancetest"}, test: true},
	"github.com/johannesboyne/gofakes3":   {why: "S3 server in tests", test: true},
	"github.com/schollz/progressbar/v3":   {why: "progress bars", used: []string{"examples"}},
	"github.com/go-analyze/charts":        {why: "plots", used: []string{"examples"}},
	"golang.org/x/term":                   {why: "whether output is a terminal", used: []string{"examples"}},
}

// requirement is a line of a go.mod's require blocks.
var requirement = regexp.MustCompile(`(?m)^(?:require)?\s+([a-z0-9.-]+\.[a-z]+/[^\s]+|[a-z0-9.-]+\.[a-z]+/?[^\s]*) v[^\s]+( // indirect)?$`)

// checkDependencies holds the table of dependencies against a go.mod and the
// imports of the main module.
func checkDependencies(gomod string, files []*source) (findings []string) {
	var direct []string
	for _, m := range requirement.FindAllStringSubmatch(gomod, -1) {
		if m[2] == "" {
			direct = append(direct, m[1])
		}
	}
	used := make(map[string]bool)
	for _, s := range files {
		for p := range s.imports() {
			first, _, _ := strings.Cut(p, "/")
			if !strings.Contains(first, ".") || under(p, ours) {
				continue
			}
			module := ""
			for m := range dependencies {
				if under(p, m) && len(m) > len(module) {
					module = m
				}
			}
			d, ok := dependencies[module]
			used[module] = true
			switch {
			case !ok:
				findings = append(findings, fmt.Sprintf("%s: %s is of no module in the table of dependencies", s.path, p))
			case s.test && d.test:
			case !slices.ContainsFunc(d.used, func(dir string) bool { return under(s.dir, dir) }):
				findings = append(findings, fmt.Sprintf("%s: %s (%s) is for %v only", s.path, p, d.why, d.used))
			}
		}
	}
	for _, m := range direct {
		if _, ok := dependencies[m]; !ok {
			findings = append(findings, fmt.Sprintf("go.mod requires %s, which is not in the table of dependencies", m))
		} else if !used[m] {
			findings = append(findings, fmt.Sprintf("go.mod requires %s, which nothing imports", m))
		}
	}
	return findings
}

func TestDependencies(t *testing.T) {
	gomod, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	report(t, checkDependencies(string(gomod), sources(t, mainModule)))
}

// weights says which modules a program that imports one package compiles, beside
// ours. Nil is none.
var weights = map[string][]string{
	"log":        {"github.com/klauspost/compress", "github.com/pierrec/lz4/v4"},
	"log/record": {"github.com/klauspost/compress", "github.com/pierrec/lz4/v4"},
	"quota":      nil,
	"balance":    nil,
	"transport":  nil,
}

// listed is what go list says about a package.
type listed struct {
	ImportPath string
	Standard   bool
	Module     *struct{ Path string }
}

// checkWeight compares a package's dependencies with its weight.
func checkWeight(name string, allowed []string, deps []listed) (findings []string) {
	modules := make(map[string]string)
	for _, d := range deps {
		if d.Standard || d.Module == nil {
			continue
		}
		if d.Module.Path == ours {
			// Of ours, the standard-library-only packages need nothing either.
			if allowed == nil && !under(d.ImportPath, ours+"/"+name) {
				findings = append(findings, fmt.Sprintf("%s needs %s", name, d.ImportPath))
			}
			continue
		}
		modules[d.Module.Path] = d.ImportPath
	}
	for _, m := range sorted(modules) {
		if !slices.Contains(allowed, m) {
			findings = append(findings, fmt.Sprintf("%s needs module %s (for %s)", name, m, modules[m]))
		}
	}
	return findings
}

// What imports only log, quota, balance or transport stays light.
func TestWeight(t *testing.T) {
	goTool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("there is no go command")
	}
	for _, name := range sorted(weights) {
		t.Run(name, func(t *testing.T) {
			if _, err := os.Stat(name); err != nil {
				t.Skip(err)
			}
			cmd := exec.Command(goTool, "list", "-deps", "-json=ImportPath,Standard,Module", "./"+name)
			cmd.Stderr = t.Output()
			out, err := cmd.Output()
			if err != nil {
				t.Fatal(err)
			}
			var deps []listed
			for dec := json.NewDecoder(strings.NewReader(string(out))); dec.More(); {
				var d listed
				if err := dec.Decode(&d); err != nil {
					t.Fatal(err)
				}
				deps = append(deps, d)
			}
			if len(deps) < 10 {
				t.Fatalf("go list named %d packages", len(deps))
			}
			report(t, checkWeight(name, weights[name], deps))
		})
	}
}
