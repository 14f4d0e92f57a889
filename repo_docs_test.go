package cordwood_test

import (
	"fmt"
	"go/ast"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// checkPackageDocs holds that every package has its comment, attached, in doc.go;
// programs and examples may have it in any file.
func checkPackageDocs(files []*source) (findings []string) {
	for dir, pkg := range packages(files) {
		found := false
		generated := true
		for _, s := range pkg {
			generated = generated && s.generated
			if s.file.Doc == nil {
				continue
			}
			text := s.file.Doc.Text()
			name := s.file.Name.Name
			switch base := path.Base(s.path); {
			case base == "doc.go" && (name == "main" || strings.HasPrefix(text, "Package "+name+" ")):
				found = true
			case name == "main" || under(dir, "examples"):
				found = true
			case base == "doc.go":
				findings = append(findings, fmt.Sprintf("%s: the comment starts with %.20q", s.path, text))
				found = true
			}
		}
		if !found && !generated {
			findings = append(findings, fmt.Sprintf("package %s has no package comment in doc.go", dir))
		}
	}
	return findings
}

// spelledOut are endings of the names of structs each of whose fields has a
// comment, of its own or directly below one: what a host sets or reads there has
// units, ranges and defaults. Elsewhere the type's comment may say it all.
var spelledOut = []string{"Options", "Stats", "Hooks", "Capabilities"}

// checkDocs holds that every exported name has a comment: functions, methods,
// types, constants and variables (of their own or of their group), methods of
// interfaces, and fields of the structs above.
func checkDocs(files []*source) (findings []string) {
	for _, s := range files {
		if s.test || s.generated || s.file.Name.Name == "main" {
			continue
		}
		missing := func(n ast.Node, name string) {
			findings = append(findings, fmt.Sprintf("%s: exported %s has no comment", s.at(n), name))
		}
		for _, d := range s.file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && (d.Recv == nil || ast.IsExported(receiver(d))) && empty(d.Doc) {
					missing(d, d.Name.Name)
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					switch spec := spec.(type) {
					case *ast.ValueSpec:
						i := slices.IndexFunc(spec.Names, (*ast.Ident).IsExported)
						if i >= 0 && empty(d.Doc) && empty(spec.Doc) && empty(spec.Comment) {
							missing(spec, spec.Names[i].Name)
						}
					case *ast.TypeSpec:
						if !spec.Name.IsExported() {
							continue
						}
						if empty(spec.Doc) && (empty(d.Doc) || d.Lparen != token.NoPos) {
							missing(spec, spec.Name.Name)
						}
						switch t := spec.Type.(type) {
						case *ast.StructType:
							if !slices.ContainsFunc(spelledOut, func(end string) bool { return strings.HasSuffix(spec.Name.Name, end) }) {
								continue
							}
							checkFields(s, spec.Name.Name, t.Fields, missing)
						case *ast.InterfaceType:
							checkFields(s, spec.Name.Name, t.Methods, missing)
						}
					}
				}
			}
		}
	}
	return findings
}

func empty(c *ast.CommentGroup) bool { return c == nil || strings.TrimSpace(c.Text()) == "" }

func checkFields(s *source, typ string, list *ast.FieldList, missing func(ast.Node, string)) {
	covered, last := false, 0 // whether the field above has a comment, and its last line
	for _, f := range list.List {
		first := s.fset.Position(f.Pos()).Line
		own := !empty(f.Doc) || !empty(f.Comment)
		covered = own || covered && first == last+1
		last = s.fset.Position(f.End()).Line
		if len(f.Names) == 0 {
			continue // embedded: its own type says it
		}
		if i := slices.IndexFunc(f.Names, (*ast.Ident).IsExported); i >= 0 && !covered {
			missing(f, typ+"."+f.Names[i].Name)
		}
	}
}

func TestPackageComments(t *testing.T) {
	report(t, checkPackageDocs(sources(t, func(*source) bool { return true })))
}

func TestExportedNamesHaveComments(t *testing.T) {
	report(t, checkDocs(sources(t, mainModule)))
}

// Every page about a format is in the index, and every link of the index leads
// to a page.
func TestFormatPages(t *testing.T) {
	index, err := os.ReadFile("docs/format/README.md")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob("docs/format/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pages {
		if name := filepath.Base(p); name != "README.md" && !strings.Contains(string(index), "("+name+")") {
			t.Errorf("docs/format/README.md does not link to %s", name)
		}
	}
	for _, part := range strings.Split(string(index), "](")[1:] {
		link, _, _ := strings.Cut(part, ")")
		if strings.Contains(link, "://") {
			continue
		}
		if _, err := os.Stat(filepath.Join("docs/format", filepath.FromSlash(link))); err != nil {
			t.Errorf("docs/format/README.md links to %s: %v", link, err)
		}
	}
}
