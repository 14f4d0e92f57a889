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
	"syscall"
	"time"

	"github.com/cordwood-io/cordwood/tier/s3store"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == nodeCommand {
		os.Exit(nodeMain(os.Stdin, os.Stdout))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(hostMain(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// options are what the command line says.
type options struct {
	in   string
	dir  string
	json bool
	wait time.Duration
	s3   string
}

// hostMain runs the program as a person starts it and returns its exit status.
func hostMain(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	var o options
	flags := flag.NewFlagSet("quickstart", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.in, "in", ".", "`path` of a file or directory to append, - for standard input")
	flags.StringVar(&o.dir, "dir", "", "`directory` to keep nodes and store in (default: a temporary one)")
	flags.BoolVar(&o.json, "json", false, "print one JSON object instead of a table")
	flags.DurationVar(&o.wait, "wait", 30*time.Second, "how `long` to wait for the store at the end")
	flags.StringVar(&o.s3, "s3", "", "`URL` of a bucket for the objects, s3://[KEY:SECRET@][HOST[:PORT]/]BUCKET[/PREFIX][?region=R&plaintext=1] (default: a directory)")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	case flags.NArg() > 0:
		fmt.Fprintf(stderr, "quickstart: unexpected argument %q: the input is given by -in\n", flags.Arg(0))
		return 2
	case o.wait <= 0:
		fmt.Fprintf(stderr, "quickstart: -wait %v is no time to wait\n", o.wait)
		return 2
	}
	if o.s3 != "" {
		if _, err := s3store.ParseURL(o.s3); err != nil {
			fmt.Fprintf(stderr, "quickstart: -s3: %v\n", err)
			return 2
		}
	}
	r, err := run(ctx, o, stdin, stderr)
	if r != nil {
		if o.json {
			line, jsonErr := json.Marshal(r)
			if jsonErr == nil {
				_, jsonErr = fmt.Fprintf(stdout, "%s\n", line)
			}
			err = errors.Join(err, jsonErr)
		} else {
			err = errors.Join(err, r.table(stdout))
		}
	}
	switch {
	case ctx.Err() != nil:
		fmt.Fprintln(stderr, "quickstart: interrupted")
		return 130
	case err != nil:
		fmt.Fprintf(stderr, "quickstart: %v\n", err)
		return 1
	}
	return 0
}
