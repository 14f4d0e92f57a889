package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/cordwood-io/cordwood"
)

// An input is text to append: files, one after the other.
type input struct {
	files []string
	bytes int64 // of all files together
}

var errEmptyInput = errors.New("the input has no lines")

// openInput finds the text that path names. Standard input is first copied to
// spool, so that its length is known; skip is a directory that is not read.
func openInput(path string, stdin io.Reader, spool, skip string) (*input, error) {
	in := &input{}
	if path == "-" {
		f, err := os.Create(spool)
		if err != nil {
			return nil, err
		}
		n, err := io.Copy(f, stdin)
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, fmt.Errorf("read standard input: %w", err)
		}
		in.files, in.bytes = []string{spool}, n
		return in, in.check()
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read input: %w", err)
	}
	if !info.IsDir() {
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
		case d.IsDir():
			if d.Name() == ".git" || same(name, skip) {
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
	r := bufio.NewReaderSize(f, 256<<10)
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
