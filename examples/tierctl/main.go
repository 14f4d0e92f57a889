package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/cordwood-io/cordwood/log"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// Exit statuses.
const (
	statusClean    = 0
	statusFindings = 1
	statusFailed   = 2
)

// options are what the command line says.
type options struct {
	dir, store, s3, prefix string
	json                   bool
	depth                  string
	dryRun, force          bool
	minAge                 time.Duration
	out                    string
	from, to               int64
	as                     log.TopicID
	partition              string
	n                      int64
	offset                 int64

	stdout, stderr io.Writer
}

// A command does its work and returns an exit status, or why it could not.
type command struct {
	name  string
	flags func(*flag.FlagSet, *options)
	json  bool // prints JSON on request
	args  int
	run   func(context.Context, *options) (int, error)
}

var commands = []command{
	{"audit", auditFlags, true, 0, runAudit},
	{"sweep", sweepFlags, true, 0, runSweep},
	{"repair", repairFlags, true, 0, runRepair},
	{"restore", restoreFlags, true, 0, runRestore},
	{"ls", func(*flag.FlagSet, *options) {}, true, 0, runList},
	{"cat", catFlags, false, 1, runCat},
}

const usage = `usage: tierctl audit|sweep|repair|restore|ls|cat (-dir D | -store DIR | -s3 URL) [flags]
  audit    compare the store with the tier log of stopped nodes
  sweep    delete objects that no tier log knows
  repair   find the states of partitions whose checkpoint is lost
  restore  write log directories from the store alone
  ls       list the objects
  cat      print values from an offset on
tierctl CMD -help lists the flags of a command
`

// run runs the program and returns its exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		fmt.Fprint(stderr, usage)
		return statusFailed
	}
	if slices.Contains([]string{"-h", "-help", "--help", "help"}, args[0]) {
		fmt.Fprint(stderr, usage)
		return statusClean
	}
	i := slices.IndexFunc(commands, func(c command) bool { return c.name == args[0] })
	if i < 0 {
		fmt.Fprintf(stderr, "tierctl: no command %q\n%s", args[0], usage)
		return statusFailed
	}
	c := commands[i]
	o := options{stdout: stdout, stderr: stderr}
	flags := flag.NewFlagSet("tierctl "+c.name, flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.dir, "dir", "", "`directory` with stopped nodes in node1, node2, … and the store in store")
	flags.StringVar(&o.store, "store", "", "`directory` of the object store")
	flags.StringVar(&o.s3, "s3", "", "`URL` of the object store: s3://[KEY:SECRET@][HOST[:PORT]/]BUCKET[/PREFIX][?region=R&plaintext=1]")
	flags.StringVar(&o.prefix, "prefix", "", "`prefix` of the cluster's keys, / for none (default: looked for)")
	if c.json {
		flags.BoolVar(&o.json, "json", false, "print one JSON object on one line")
	}
	c.flags(flags, &o)
	rest := args[1:]
	var positional []string
	for { // flags may stand after arguments
		switch err := flags.Parse(rest); {
		case errors.Is(err, flag.ErrHelp):
			return statusClean
		case err != nil:
			return statusFailed
		}
		if flags.NArg() == 0 {
			break
		}
		positional = append(positional, flags.Arg(0))
		rest = flags.Args()[1:]
	}
	if len(positional) != c.args {
		what := "takes no argument"
		if c.args > 0 {
			what = "needs one OFFSET"
		}
		if len(positional) > 0 {
			what += fmt.Sprintf(", not %q", strings.Join(positional, " "))
		}
		fmt.Fprintf(stderr, "tierctl: %s %s\n", c.name, what)
		return statusFailed
	}
	if c.args > 0 {
		var err error
		if o.offset, err = parseOffset(positional[0]); err != nil {
			fmt.Fprintf(stderr, "tierctl: %v\n", err)
			return statusFailed
		}
	}
	status, err := c.run(ctx, &o)
	if err != nil {
		if ctx.Err() != nil {
			err = errors.New("interrupted")
		}
		fmt.Fprintf(stderr, "tierctl: %v\n", err)
		return statusFailed
	}
	return status
}

func parseOffset(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%q is no offset", s)
	}
	return n, nil
}

// print writes v as one line of JSON.
func (o *options) print(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(o.stdout, "%s\n", b)
	return err
}

// bar returns a function that shows progress where standard error is a terminal, and
// one that takes it off the screen.
func (o *options) bar(what string) (show func(done, total int64), clear func()) {
	f, ok := o.stderr.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return func(int64, int64) {}, func() {}
	}
	b := progressbar.NewOptions64(-1, progressbar.OptionSetWriter(f), progressbar.OptionSetDescription(what),
		progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish(), progressbar.OptionSetWidth(30))
	return func(done, total int64) {
		if total > 0 {
			b.ChangeMax64(total)
		}
		b.Set64(done)
	}, func() { b.Finish(); b.Clear() }
}
