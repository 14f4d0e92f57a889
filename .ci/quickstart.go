//go:build ignore

// Quickstart runs examples/quickstart as a person would and checks the figures
// that it prints. It is run from the repository's top.
package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
)

// figures are those fields of the program's JSON line that are checked.
type figures struct {
	Records          int64   `json:"records"`
	Bytes            int64   `json:"bytes"`
	Seconds          float64 `json:"seconds"`
	EpochBefore      int64   `json:"epoch_before"`
	EpochAfter       int64   `json:"epoch_after"`
	Lost             int64   `json:"lost"`
	Changed          int64   `json:"changed"`
	Duplicated       int64   `json:"duplicated"`
	StorePuts        int64   `json:"store_puts"`
	StoreDeletes     int64   `json:"store_deletes"`
	StoreObjects     int64   `json:"store_objects"`
	SegmentsFinished int64   `json:"segments_finished"`
	ColdBytes        int64   `json:"cold_bytes"`
	PeakRSSBytes     int64   `json:"peak_rss_bytes"`
	ContentSHA256    string  `json:"content_sha256"`
}

func main() {
	var numbers []byte
	for i := range 300_000 {
		numbers = strconv.AppendInt(numbers, int64(i+1), 10)
		numbers = append(numbers, '\n')
	}
	sum := sha256.Sum256(numbers)
	err := errors.Join(
		check("this directory", nil, ""),
		check("seq 1 300000", numbers, hex.EncodeToString(sum[:])),
	)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// check runs the program on input, or on the current directory if that is nil.
func check(name string, input []byte, hash string) error {
	args := []string{"run", "./examples/quickstart", "-json"}
	if input != nil {
		args = append(args, "-in", "-")
	}
	cmd := exec.Command("go", args...)
	cmd.Stdin = bytes.NewReader(input)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	lines := bytes.Split(bytes.TrimRight(out, "\n"), []byte("\n"))
	last := lines[len(lines)-1]
	fmt.Printf("%s: %s\n", name, last)
	var f figures
	if err := json.Unmarshal(last, &f); err != nil {
		return fmt.Errorf("%s: last line: %w", name, err)
	}
	var errs []error
	want := func(ok bool, what string) {
		if !ok {
			errs = append(errs, fmt.Errorf("%s: not so: %s", name, what))
		}
	}
	want(f.Records > 0 && f.Bytes > 0, "there are records")
	want(f.Lost == 0 && f.Changed == 0 && f.Duplicated == 0, "nothing lost, changed or duplicated")
	want(f.Seconds > 0 && f.Seconds <= 60, "at most 60 seconds")
	want(f.ColdBytes > 0, "a part was read from the store")
	want(f.EpochAfter > f.EpochBefore, "the leader epoch rose")
	cut := f.StorePuts - f.StoreDeletes - f.StoreObjects
	want(cut >= 0 && cut <= 1, "puts - deletes - objects is 0 or 1")
	open := f.StoreObjects - f.SegmentsFinished
	want(open >= 0 && open <= 1, "objects - finished segments is 0 or 1")
	want(f.PeakRSSBytes > 0 && f.PeakRSSBytes < 3<<29, "less than 1.5 GiB of memory in sum")
	want(hash == "" || f.ContentSHA256 == hash, "content_sha256 is that of the input")
	return errors.Join(errs...)
}
