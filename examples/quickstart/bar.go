package main

import (
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// A bar shows progress where standard error is a terminal, and nothing elsewhere.
// A nil bar is one that shows nothing.
type bar struct{ b *progressbar.ProgressBar }

// newBar starts a bar for total bytes; -1 is an unknown total.
func newBar(w io.Writer, what string, total int64) *bar {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return nil
	}
	return &bar{progressbar.NewOptions64(total,
		progressbar.OptionSetWriter(w), progressbar.OptionSetDescription(what), progressbar.OptionShowBytes(true),
		progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish(), progressbar.OptionSetWidth(30),
	)}
}

func (b *bar) add(n int64) {
	if b != nil {
		b.b.Add64(n)
	}
}

// pause takes the bar off the screen for a line of text.
func (b *bar) pause() {
	if b != nil {
		b.b.Clear()
	}
}

func (b *bar) done() {
	if b != nil {
		b.b.Finish()
		b.b.Clear()
	}
}
