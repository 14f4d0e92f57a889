package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/cordwood-io/cordwood"
)

// An input is text to append: files, one after the other, or a copy of standard
// input.
type input struct {
	files []string
	spool *os.File // has no name any more, where the system allows that
	bytes int64    // of all together
}

var errEmptyInput = errors.New("the input has no lines")

// openInput finds the text that path names. Standard input is first copied to
// a file in dir, so that its length is known, until its end or that of ctx. What
// lies in dir is never input.
func openInput(ctx context.Context, path string, stdin io.Reader, dir string) (*input, error) {
	if path == "-" {
		in, err := copyInput(ctx, stdin, dir)
		if err != nil {
			return nil, fmt.Errorf("read standard input: %w", err)
		}
		if err := in.check(); err != nil {
			return nil, errors.Join(err, in.close())
		}
		return in, nil
	}
	in := &input{}
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read input: %w", err)
	}
	if !info.IsDir() {
		if !info.Mode().IsRegular() {
			return nil, fmt.Errorf("read input: %s is neither a file nor a directory: pipe it in and give -in -", path)
		}
		f, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("read input: %w", err)
		}
		f.Close()
		in.files, in.bytes = []string{path}, info.Size()
		return in, in.check()
	}
	err = filepath.WalkDir(path, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case d.IsDir():
			if d.Name() == ".git" || same(name, dir) {
				return fs.SkipDir
			}
		case d.Type().IsRegular():
			text, size, err := isText(name)
			if err != nil {
				return err
			}
			if text {
				in.files = append(in.files, name)
				in.bytes += size
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read input: %w", err)
	}
	slices.Sort(in.files)
	return in, in.check()
}

// copyInput makes an input of a copy of r, in a file of its own that does not
// outlive the program. A read of a terminal or pipe can't be cut short: when ctx
// ends it is left behind, for the program is about to end too.
func copyInput(ctx context.Context, r io.Reader, dir string) (*input, error) {
	f, err := os.CreateTemp(dir, "stdin-")
	if err != nil {
		return nil, err
	}
	os.Remove(f.Name()) // close does it where an open file keeps its name
	in := &input{spool: f}
	type result struct {
		n   int64
		err error
	}
	copied := make(chan result, 1)
	go func() {
		n, err := io.Copy(f, r)
		copied <- result{n, err}
	}()
	select {
	case c := <-copied:
		in.bytes, err = c.n, c.err
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, in.close())
	}
	return in, nil
}

// close lets go of what the input holds.
func (in *input) close() error {
	if in.spool == nil {
		return nil
	}
	err := in.spool.Close()
	os.Remove(in.spool.Name())
	return err
}

func (in *input) check() error {
	if in.bytes == 0 {
		return errEmptyInput
	}
	return nil
}

func same(a, b string) bool {
	if b == "" {
		return false
	}
	ai, err := os.Stat(a)
	if err != nil {
		return false
	}
	bi, err := os.Stat(b)
	return err == nil && os.SameFile(ai, bi)
}

// isText tells text from binary as git does: by a zero byte near the beginning.
func isText(name string) (text bool, size int64, err error) {
	f, err := os.Open(name)
	if err != nil {
		return false, 0, err
	}
	defer f.Close()
	head := make([]byte, 8000)
	n, err := io.ReadFull(f, head)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return false, 0, err
	}
	info, err := f.Stat()
	if err != nil {
		return false, 0, err
	}
	return bytes.IndexByte(head[:n], 0) < 0, info.Size(), nil
}

// lines calls fn with each line, without its newline, and with how many bytes of
// the input it took. The bytes are valid during the call.
func (in *input) lines(fn func(line []byte, took int) error) error {
	if in.spool != nil {
		return readLines("standard input", io.NewSectionReader(in.spool, 0, in.bytes), fn)
	}
	for _, name := range in.files {
		if err := fileLines(name, fn); err != nil {
			return err
		}
	}
	return nil
}

func fileLines(name string, fn func(line []byte, took int) error) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	return readLines(name, f, fn)
}

func readLines(name string, from io.Reader, fn func(line []byte, took int) error) error {
	r := bufio.NewReaderSize(from, 256<<10)
	var long []byte
	for number := 1; ; number++ {
		long = long[:0]
		line, err := r.ReadSlice('\n')
		for errors.Is(err, bufio.ErrBufferFull) {
			if long = append(long, line...); len(long) > cordwood.DefaultMaxRecordBytes {
				return fmt.Errorf("line %d of %s is longer than a record may be, %d bytes", number, name, cordwood.DefaultMaxRecordBytes)
			}
			line, err = r.ReadSlice('\n')
		}
		if err != nil && err != io.EOF {
			return fmt.Errorf("read %s: %w", name, err)
		}
		if len(long) > 0 {
			long = append(long, line...)
			line = long
		}
		if len(line) == 0 {
			return nil
		}
		took := len(line)
		line = bytes.TrimSuffix(line, []byte("\n"))
		if len(line) > cordwood.DefaultMaxRecordBytes {
			return fmt.Errorf("line %d of %s is longer than a record may be, %d bytes", number, name, cordwood.DefaultMaxRecordBytes)
		}
		if err := fn(line, took); err != nil {
			return err
		}
		if err == io.EOF {
			return nil
		}
	}
}
