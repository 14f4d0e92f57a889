package log_test

import (
	"context"
	"fmt"
	"path"
	"slices"
	"testing"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
)

// TestTrimEpochs moves the starts to each offset of a log whose epochs change at
// borders and in the middle of segments and batches lie over the start, goes on in a
// new epoch or not, and opens it again after a close or a crash, with seals or
// without: no batch is taken for damaged, and the chain is the one that was.
func TestTrimEpochs(t *testing.T) {
	ctx := context.Background()
	const batches, each = 14, 2
	image := logtest.NewFS(1)
	l := open(t, image, log.Options{SegmentBytes: 1 << 10})
	// Epochs begin at batches 0, 3, 4, 7 and 12, segments at every third or fourth.
	epochs := []log.Epoch{0, 0, 0, 1, 5, 5, 5, 6, 6, 6, 6, 6, 9, 9}
	for i := range batches {
		if _, err := l.Write(epochs[i], plain(fmt.Sprintf("%0130d", i), fmt.Sprintf("%0130d", i))); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Sync(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(l.Segments()); n < 4 {
		t.Fatalf("got %d segments", n)
	}
	image = image.Crash(logtest.CrashKeepAll)
	for _, drop := range []bool{false, true} {
		for to := log.Offset(0); to <= batches*each; to++ {
			for more := range 3 { // appends nothing, in the same epoch, or in a new one and rolls
				for _, end := range []string{"close", "lose all", "keep all", "lose some"} {
					for _, seals := range []bool{true, false} {
						fs := image.Fork(logtest.CrashKeepAll)
						l := open(t, fs, log.Options{SegmentBytes: 1 << 10})
						move := l.TrimTo
						if drop {
							move = l.DropLocal
						}
						if err := move(ctx, to); err != nil {
							t.Fatal(err)
						}
						if more > 0 {
							if _, err := l.Write(log.Epoch(8+more), plain("more", "records")); err != nil {
								t.Fatal(err)
							}
							if _, err := l.Sync(ctx); err != nil {
								t.Fatal(err)
							}
						}
						if more == 2 {
							if err := l.Roll(ctx); err != nil {
								t.Fatal(err)
							}
							if err := l.TrimTo(ctx, max(l.Start(), to)); err != nil {
								t.Fatal(err)
							}
						}
						chain, local, last := l.EpochChain(), l.LocalStart(), l.End()
						switch end {
						case "close":
							mustClose(t, l)
						case "lose all":
							fs = fs.Crash(logtest.CrashLoseAll)
						case "keep all":
							fs = fs.Crash(logtest.CrashKeepAll)
						case "lose some":
							fs = fs.Crash(logtest.CrashLoseSome(uint64(to)))
						}
						if !seals {
							for _, n := range fs.Names() {
								if e := path.Ext(n); e == ".seal" || e == ".clean" {
									if err := fs.Remove(n); err != nil {
										t.Fatal(err)
									}
								}
							}
						}
						l = open(t, fs, log.Options{SegmentBytes: 1 << 10})
						r := l.Recovery()
						if r.Lossy || l.LocalStart() != local || l.End() != last || !slices.Equal(l.EpochChain(), chain) {
							t.Fatalf("drop %v, to %d, more %d, %s, seals %v: got %+v %v, chain %v, want %v", drop, to, more, end, seals, r, r.Corruption, l.EpochChain(), chain)
						}
						wantReadable(t, l)
						mustClose(t, l)
						if t.Failed() {
							t.Fatalf("drop %v, to %d, more %d, %s, seals %v", drop, to, more, end, seals)
						}
						if testing.Short() && to%3 > 0 {
							break
						}
					}
				}
			}
		}
	}
}
