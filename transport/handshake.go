package transport

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"net"
	"time"
)

// The handshake is three messages: the dialling side's hello, the accepting
// side's hello with its verdict, and the dialling side's verdict. Nothing else is
// sent before. Each starts with the same eight bytes in every version of the
// protocol; integers are big-endian.
//
//	offset  size  field
//	0       4     magic "CWD1"
//	4       2     version of the protocol, 1
//	6       2     length n of what follows
//	8       n     message; its last 4 bytes are the CRC32C of all before them
//
// A hello of version 1:
//
//	offset  size  field
//	8       1     step: 1 = dialling side, 2 = accepting side
//	9       1     verdict of the accepting side, see below; else zero
//	10      1     class of the connection
//	11      1     zero
//	12      4     node, -1 = none
//	16      4     node that the dialling side means, -1 = whoever is there
//	20      16    cluster, zero = not known
//	36      16    directory, zero = none
//	52      8     incarnation
//	60      2     format
//	62      2     oldest format
//	64      4     milliseconds of silence before the dialling side pings, 0 = never
//	68      1     length a of the address
//	69      a     address
//	69+a    4     CRC32C
//
// The dialling side's verdict of version 1:
//
//	offset  size  field
//	8       1     step: 3
//	9       1     verdict
//	10      2     zero
//	12      4     CRC32C
//
// Page: docs/format/transport-frame.md.

// Steps of the handshake. They must not change.
const (
	stepDial    = 1
	stepAccept  = 2
	stepVerdict = 3
)

// Verdicts. They must not change.
const (
	verdictFits         = 0
	verdictVersion      = 1
	verdictFormat       = 2
	verdictCluster      = 3
	verdictNode         = 4
	verdictDirectory    = 5
	verdictUnauthorized = 6
	verdictProtocol     = 7
)

var verdicts = []error{
	verdictFits:         nil,
	verdictVersion:      ErrVersionMismatch,
	verdictFormat:       ErrFormatMismatch,
	verdictCluster:      ErrClusterMismatch,
	verdictNode:         ErrNodeMismatch,
	verdictDirectory:    ErrDirectoryMismatch,
	verdictUnauthorized: ErrUnauthorized,
	verdictProtocol:     ErrProtocol,
}

const (
	prefixBytes    = 8
	helloFixed     = 69 - prefixBytes // without address and checksum
	helloMax       = helloFixed + MaxAddrBytes + 4
	verdictBytes   = 8
	maxKeepAliveMS = math.MaxInt32
)

// hello is a decoded first or second message.
type hello struct {
	version   uint16 // only this and verdict are known if it is not ours
	step      uint8
	verdict   uint8
	class     Class
	peer      Peer
	target    int32
	keepAlive uint32
}

// appendHello appends the encoding of h.
func appendHello(b []byte, h hello) []byte {
	start := len(b)
	b = append(b, protocolName...)
	b = binary.BigEndian.AppendUint16(b, protocolNumber)
	b = binary.BigEndian.AppendUint16(b, uint16(helloFixed+len(h.peer.Addr)+4))
	b = append(b, h.step, h.verdict, byte(h.class), 0)
	b = binary.BigEndian.AppendUint32(b, uint32(h.peer.Node))
	b = binary.BigEndian.AppendUint32(b, uint32(h.target))
	b = append(b, h.peer.Cluster[:]...)
	b = append(b, h.peer.Directory[:]...)
	b = binary.BigEndian.AppendUint64(b, h.peer.Incarnation)
	b = binary.BigEndian.AppendUint16(b, h.peer.Format)
	b = binary.BigEndian.AppendUint16(b, h.peer.OldestFormat)
	b = binary.BigEndian.AppendUint32(b, h.keepAlive)
	b = append(b, byte(len(h.peer.Addr)))
	b = append(b, h.peer.Addr...)
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b[start:], castagnoli))
}

// appendVerdict appends the encoding of the dialling side's verdict.
func appendVerdict(b []byte, verdict uint8) []byte {
	start := len(b)
	b = append(b, protocolName...)
	b = binary.BigEndian.AppendUint16(b, protocolNumber)
	b = binary.BigEndian.AppendUint16(b, verdictBytes)
	b = append(b, stepVerdict, verdict, 0, 0)
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b[start:], castagnoli))
}

// readMessage reads one message of the handshake, at most limit bytes behind its
// prefix, and checks its checksum. If its version is not ours, the message is nil
// and was not checked.
func readMessage(r io.Reader, limit int) (version uint16, msg []byte, err error) {
	var prefix [prefixBytes]byte
	if _, err := io.ReadFull(r, prefix[:]); err != nil {
		return 0, nil, err
	}
	if string(prefix[:4]) != protocolName {
		return 0, nil, fmt.Errorf("%w: magic %q", ErrProtocol, prefix[:4])
	}
	version = binary.BigEndian.Uint16(prefix[4:])
	n := int(binary.BigEndian.Uint16(prefix[6:]))
	if version != protocolNumber {
		// The rest is read so that closing does not reset the connection under
		// our answer. Its length is bounded by its two bytes.
		_, err := io.CopyN(io.Discard, r, int64(n))
		return version, nil, err
	}
	if n < 4 || n > limit {
		return version, nil, fmt.Errorf("%w: handshake message of %d bytes", ErrProtocol, n)
	}
	b := make([]byte, prefixBytes+n)
	copy(b, prefix[:])
	if _, err := io.ReadFull(r, b[prefixBytes:]); err != nil {
		return version, nil, err
	}
	end := len(b) - 4
	if got, want := crc32.Checksum(b[:end], castagnoli), binary.BigEndian.Uint32(b[end:]); got != want {
		return version, nil, fmt.Errorf("%w: handshake checksum %08x, want %08x", ErrProtocol, got, want)
	}
	return version, b[prefixBytes:end], nil
}

// readHello reads and decodes a hello of the given step.
func readHello(r io.Reader, step uint8) (hello, error) {
	version, m, err := readMessage(r, helloMax)
	if err != nil {
		return hello{}, err
	}
	h := hello{version: version, step: step, peer: Peer{Node: NoNode}, target: NoNode}
	if version != protocolNumber {
		return h, nil
	}
	if len(m) < helloFixed {
		return hello{}, fmt.Errorf("%w: hello of %d bytes", ErrProtocol, len(m))
	}
	h.verdict, h.class = m[1], Class(m[2])
	h.peer.Node = int32(binary.BigEndian.Uint32(m[4:]))
	h.target = int32(binary.BigEndian.Uint32(m[8:]))
	copy(h.peer.Cluster[:], m[12:])
	copy(h.peer.Directory[:], m[28:])
	h.peer.Incarnation = binary.BigEndian.Uint64(m[44:])
	h.peer.Format = binary.BigEndian.Uint16(m[52:])
	h.peer.OldestFormat = binary.BigEndian.Uint16(m[54:])
	h.keepAlive = binary.BigEndian.Uint32(m[56:])
	h.peer.Addr = string(m[helloFixed:])
	switch {
	case m[0] != step:
		err = fmt.Errorf("handshake step %d, want %d", m[0], step)
	case int(h.verdict) >= len(verdicts) || step == stepDial && h.verdict != 0:
		err = fmt.Errorf("verdict %d", h.verdict)
	case h.class >= classes:
		err = fmt.Errorf("class %d", h.class)
	case m[3] != 0:
		err = fmt.Errorf("reserved byte %#02x", m[3])
	case int(m[60]) != len(h.peer.Addr):
		err = fmt.Errorf("address length %d, have %d bytes", m[60], len(h.peer.Addr))
	case h.target < NoNode:
		err = fmt.Errorf("node %d meant", h.target)
	case h.keepAlive > maxKeepAliveMS:
		err = fmt.Errorf("keep-alive %d ms", h.keepAlive)
	default:
		err = h.peer.check()
	}
	if err != nil {
		return hello{}, fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	return h, nil
}

// readVerdict reads and decodes the dialling side's verdict.
func readVerdict(r io.Reader) (uint8, error) {
	version, m, err := readMessage(r, verdictBytes)
	if err != nil {
		return 0, err
	}
	if version != protocolNumber || len(m) != verdictBytes-4 ||
		m[0] != stepVerdict || int(m[1]) >= len(verdicts) || m[2] != 0 || m[3] != 0 {
		return 0, fmt.Errorf("%w: not a verdict", ErrProtocol)
	}
	return m[1], nil
}

// verdictOn compares a peer's hello with what we are. target is the node that we
// dialled, NoNode if we did not dial or do not know; other is the node that the
// peer dialled, in the same way.
func verdictOn(local Peer, remote hello, target, other int32, directory func(int32) (ID, bool)) uint8 {
	p := remote.peer
	switch {
	case remote.version != protocolNumber:
		return verdictVersion
	case p.OldestFormat > local.Format || local.OldestFormat > p.Format:
		return verdictFormat
	case !p.Cluster.IsZero() && !local.Cluster.IsZero() && p.Cluster != local.Cluster:
		return verdictCluster
	case target != NoNode && p.Node != target, other != NoNode && local.Node != other:
		return verdictNode
	}
	if p.Node == NoNode {
		return verdictFits
	}
	if p.Node == local.Node && p.Directory != local.Directory && !p.Directory.IsZero() && !local.Directory.IsZero() {
		return verdictDirectory
	}
	if directory != nil {
		if want, ok := directory(p.Node); ok && !want.IsZero() && want != p.Directory {
			return verdictDirectory
		}
	}
	return verdictFits
}

// handshake runs our side of the handshake on nc, whose deadline the caller has
// set. dialled says which side that is. On success it returns the peer's hello;
// otherwise the error is a *HandshakeError, or one of the network.
func (t *Transport) handshake(ctx context.Context, nc net.Conn, r io.Reader, dialled bool, class Class, target int32) (hello, error) {
	local := t.selfNow()
	ours := hello{step: stepAccept, class: class, peer: local, target: target, keepAlive: t.keepAliveMS()}
	step := uint8(stepDial)
	if dialled {
		ours.step, step = stepDial, stepAccept
		if _, err := nc.Write(appendHello(nil, ours)); err != nil {
			return hello{}, err
		}
	}
	none := Peer{Node: NoNode}
	theirs, err := readHello(r, step)
	if err != nil {
		if errors.Is(err, ErrProtocol) {
			err = &HandshakeError{Reason: ErrProtocol, Local: local, Remote: none, Err: err}
		}
		return hello{}, err
	}
	refusedByPeer := func(v uint8) error {
		if v == verdictFits {
			return nil
		}
		return &HandshakeError{Reason: verdicts[v], ByPeer: true, Local: local, Remote: theirs.peer}
	}
	if dialled && theirs.version == protocolNumber {
		if err := refusedByPeer(theirs.verdict); err != nil {
			return hello{}, err
		}
	}

	var verdict uint8
	if dialled {
		verdict = verdictOn(local, theirs, target, NoNode, t.o.Directory)
		if verdict == verdictFits && theirs.class != class {
			verdict = verdictProtocol
		}
	} else {
		verdict = verdictOn(local, theirs, NoNode, theirs.target, t.o.Directory)
	}
	var cause error
	if verdict == verdictFits && t.o.Authorize != nil {
		if cause = t.o.Authorize(ctx, nc, theirs.peer); cause != nil {
			verdict = verdictUnauthorized
		}
	}
	var answer []byte
	if dialled {
		answer = appendVerdict(nil, verdict)
	} else {
		ours.class, ours.verdict = theirs.class, verdict
		answer = appendHello(nil, ours)
	}
	_, werr := nc.Write(answer)
	if verdict != verdictFits {
		if verdict == verdictVersion {
			cause = fmt.Errorf("version %d here, %d there", protocolNumber, theirs.version)
		}
		return hello{}, &HandshakeError{Reason: verdicts[verdict], Local: local, Remote: theirs.peer, Err: cause}
	}
	if werr != nil {
		return hello{}, werr
	}
	if !dialled {
		v, err := readVerdict(r)
		if err == nil {
			err = refusedByPeer(v)
		} else if errors.Is(err, ErrProtocol) {
			err = &HandshakeError{Reason: ErrProtocol, Local: local, Remote: theirs.peer, Err: err}
		}
		if err != nil {
			return hello{}, err
		}
	}
	return theirs, nil
}

// keepAliveMS is what our hello says about pings.
func (t *Transport) keepAliveMS() uint32 {
	if t.o.KeepAlive <= 0 {
		return 0
	}
	return uint32(min(max(t.o.KeepAlive/time.Millisecond, 1), maxKeepAliveMS))
}
