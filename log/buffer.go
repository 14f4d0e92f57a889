package log

import (
	"math/bits"
	"sync"
)

// A buffer is memory that goes back to a pool of its size class.
type buffer struct {
	b     []byte
	class int
}

const (
	minBufferBits = 12
	maxBufferBits = 23 // larger ones are left to the garbage collector
)

// buffers is memory only: dropping all of it changes nothing.
var buffers [maxBufferBits + 1]sync.Pool

func getBuffer(n int) *buffer {
	class := minBufferBits
	if n > 1<<minBufferBits {
		class = bits.Len(uint(n - 1))
	}
	if class > maxBufferBits {
		return &buffer{b: make([]byte, n), class: class}
	}
	if v, ok := buffers[class].Get().(*buffer); ok {
		v.b = v.b[:n]
		return v
	}
	return &buffer{b: make([]byte, n, 1<<class), class: class}
}

func (b *buffer) put() {
	if b != nil && b.class <= maxBufferBits {
		buffers[b.class].Put(b)
	}
}
