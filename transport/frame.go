package transport

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// A frame, after the handshake, is a header, a body, and in replies a payload.
// Integers are big-endian.
//
//	offset  size  field
//	0       1     type, see below
//	1       1     flags, zero; others are refused
//	2       2     kind: the host's in calls and messages, a code in errors
//	4       8     stream: number of the call; zero in messages, retire and bye
//	12      4     body length
//	16      4     payload length, zero except in replies
//	20      4     CRC32C of the body, zero if it is empty
//	24      4     CRC32C of bytes 0 to 23
//	28      …     body
//	        …     payload, not under a checksum here: it carries its own
//	        1     if the payload length is not zero: 0 = payload whole,
//	              1 = reading it failed, what came is filled up with zeros
//
// The dialling side sends call, message, cancel, ping and bye; the accepting
// side reply, error, pong and retire. The version is agreed in the handshake.
// Page: docs/format/transport-frame.md.

// Frame types. They must not change.
const (
	typeCall    = 1 // request; the body is the host's
	typeReply   = 2 // answer to the call of the same stream
	typeError   = 3 // the call failed; kind is a code, the body is text
	typeMessage = 4 // one-way
	typeCancel  = 5 // nobody waits for the call of this stream any more
	typePing    = 6 // answered by a pong of the same stream
	typePong    = 7
	typeRetire  = 8 // asks the dialling side to use a new connection from now on
	typeBye     = 9 // the dialling side ends the connection on purpose
)

// Codes of error frames. They must not change.
const (
	codeHandler    = 0 // Handle returned an error
	codeOverloaded = 1 // too many calls; not executed
	codeNoHandler  = 2 // the peer answers no calls; not executed
)

const (
	headerBytes    = 28
	payloadWhole   = 0
	payloadFailed  = 1
	maxErrorText   = 4 << 10
	trailerBytes   = 1
	protocolName   = "CWD1"
	protocolNumber = 1
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// header is a decoded frame header.
type header struct {
	typ     uint8
	kind    uint16
	stream  uint64
	body    uint32
	payload uint32
	bodyCRC uint32
}

// encode writes h to b.
func (h header) encode(b *[headerBytes]byte) {
	b[0], b[1] = h.typ, 0
	binary.BigEndian.PutUint16(b[2:], h.kind)
	binary.BigEndian.PutUint64(b[4:], h.stream)
	binary.BigEndian.PutUint32(b[12:], h.body)
	binary.BigEndian.PutUint32(b[16:], h.payload)
	binary.BigEndian.PutUint32(b[20:], h.bodyCRC)
	binary.BigEndian.PutUint32(b[24:], crc32.Checksum(b[:24], castagnoli))
}

// decodeHeader checks the header's checksum and what must hold for its type. It
// does not know the limits of bodies and payloads.
func decodeHeader(b *[headerBytes]byte) (header, error) {
	if got, want := crc32.Checksum(b[:24], castagnoli), binary.BigEndian.Uint32(b[24:]); got != want {
		return header{}, fmt.Errorf("%w: header checksum %08x, want %08x", ErrProtocol, got, want)
	}
	h := header{
		typ:     b[0],
		kind:    binary.BigEndian.Uint16(b[2:]),
		stream:  binary.BigEndian.Uint64(b[4:]),
		body:    binary.BigEndian.Uint32(b[12:]),
		payload: binary.BigEndian.Uint32(b[16:]),
		bodyCRC: binary.BigEndian.Uint32(b[20:]),
	}
	if b[1] != 0 {
		return header{}, fmt.Errorf("%w: flags %#02x", ErrProtocol, b[1])
	}
	if h.typ < typeCall || h.typ > typeBye {
		return header{}, fmt.Errorf("%w: frame type %d", ErrProtocol, h.typ)
	}
	if h.payload != 0 && h.typ != typeReply {
		return header{}, fmt.Errorf("%w: payload in frame type %d", ErrProtocol, h.typ)
	}
	if h.typ >= typeCancel && h.body != 0 {
		return header{}, fmt.Errorf("%w: body in frame type %d", ErrProtocol, h.typ)
	}
	if h.body == 0 && h.bodyCRC != 0 {
		return header{}, fmt.Errorf("%w: checksum of an empty body is %08x", ErrProtocol, h.bodyCRC)
	}
	if h.typ == typeError && h.body > maxErrorText {
		return header{}, fmt.Errorf("%w: error text of %d bytes", ErrProtocol, h.body)
	}
	return h, nil
}

// fromDialler reports whether frames of type t travel from the dialling to the
// accepting side.
func fromDialler(t uint8) bool {
	switch t {
	case typeCall, typeMessage, typeCancel, typePing, typeBye:
		return true
	}
	return false
}

// checkBody compares the body with the header's checksum.
func (h header) checkBody(body []byte) error {
	if got := crc32.Checksum(body, castagnoli); got != h.bodyCRC {
		return fmt.Errorf("%w: body checksum %08x, want %08x", ErrProtocol, got, h.bodyCRC)
	}
	return nil
}

// frame is a frame on its way out. Its fields belong to whoever holds it; state
// is under the connection's mutex.
type frame struct {
	head    [headerBytes]byte
	body    []byte
	payload Payload  // nil if none; released by whoever takes the frame out
	payLen  int      // payload.Len()
	charge  int      // bytes that it takes of the queue's limit
	inbound *inbound // the received call that this answers, if any

	state frameState
}

// frameState says how far a frame has come.
type frameState uint8

const (
	frameQueued  frameState = iota
	frameDropped            // its caller gave up before it left
	frameTaken              // the writer has it: it may have been sent
	frameWritten            // it is in the writer's buffer or beyond
)

func newFrame(typ uint8, kind uint16, stream uint64, body []byte) *frame {
	f := &frame{body: body}
	h := header{typ: typ, kind: kind, stream: stream, body: uint32(len(body))}
	if len(body) > 0 {
		h.bodyCRC = crc32.Checksum(body, castagnoli)
	}
	h.encode(&f.head)
	return f
}

// size is what the frame counts in a queue.
func (f *frame) size() int { return headerBytes + len(f.body) }
