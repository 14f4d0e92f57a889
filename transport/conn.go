package transport

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// A conn is one established connection: the dialling side sends calls and
// messages on it, the accepting side the answers. It has two goroutines: one
// reads, one writes. Whoever finds it broken calls fail.
//
// Lock order: link.mu, then Transport.mu, then conn.mu. No lock is held over I/O,
// waiting or a call into the host, except that a link calls Resolve under its own.

const (
	// readBuffer bounds what one read of the network gathers.
	readBuffer = 32 << 10
	// writeBuffer is how much the writer gathers before it writes.
	writeBuffer = 64 << 10
	// copyLimit is the body size up to which a body is copied into the writer's
	// buffer; larger ones are written from where they lie.
	copyLimit = 16 << 10
	// writeChunk bounds one write, so that progress can be seen.
	writeChunk = 256 << 10
	// stallBase and stallRate bound how long a started frame may take, in either
	// direction: the base and a second for each stallRate bytes.
	stallBase = 30 * time.Second
	stallRate = 64 << 10
	// silentTicks is how many keep-alive intervals after a ping without a byte
	// from the peer end a connection.
	silentTicks = 3
	// minTick bounds how often a peer's keep-alive makes us look.
	minTick = 10 * time.Millisecond
	// idleAddr is how long a connection to a peer known by address only lives
	// without a call.
	idleAddr = time.Minute
)

var (
	// errEnded means that a frame was not queued because the connection is over
	// or retired; the caller takes another one.
	errEnded     = errors.New("transport: connection ended")
	errRetired   = errors.New("transport: connection replaced")
	errKeepAlive = errors.New("transport: peer is silent")
)

type conn struct {
	t         *Transport
	nc        net.Conn
	br        *bufio.Reader
	class     Class
	peer      Peer
	link      *link     // of a dialled connection, else nil
	addr      string    // that was dialled, else the address that the peer says it listens at
	since     time.Time // the end of the handshake
	ctx       context.Context
	cancel    context.CancelFunc
	wake      chan struct{} // capacity 1: the writer has something to do
	done      chan struct{} // closed by fail
	tickEvery time.Duration

	received atomic.Uint64 // bytes read
	progress atomic.Uint64 // writes finished

	mu         sync.Mutex
	err        error // why it ended; set once, by fail
	retired    bool  // no new calls or messages; ends with the last reply
	byeQueued  bool
	queue      []*frame
	queueBytes int           // Invariant: sum of charge of frames queued or being written
	room       chan struct{} // closed when a limit may have got room; nil if nobody waits
	calls      map[uint64]*call
	lastStream uint64
	inbound    map[uint64]*inbound
	inBytes    int // Invariant: sum of bytes of inbound
	timer      *time.Timer
	tick       tickState
}

// call is one call that waits for its reply.
type call struct {
	frame *frame
	kind  uint16
	// result gets exactly one value, unless the caller has removed the call from
	// conn.calls first.
	result chan result
}

type result struct {
	resp *Response
	err  error
}

// inbound is one received call that is not answered yet.
type inbound struct {
	stream uint64
	bytes  int
	cancel context.CancelFunc
}

// tickState is what keep-alive remembers between two ticks.
type tickState struct {
	received, progress uint64
	pinging            bool   // a ping is queued or on its way
	ping               *frame // the ping, to see whether it has left
	stream             uint64
	silent             int // ticks without a byte received, since the ping left
	stuck              int // ticks in which the ping could not leave
	idleSince          time.Time
	lastStream         uint64 // of the newest call seen
}

// countReader counts what is read from the network.
type countReader struct{ c *conn }

func (r countReader) Read(b []byte) (int, error) {
	n, err := r.c.nc.Read(b)
	r.c.received.Add(uint64(n))
	return n, err
}

// newConn returns a connection whose handshake has not happened.
func (t *Transport) newConn(nc net.Conn) *conn {
	c := &conn{
		t: t, nc: nc,
		wake: make(chan struct{}, 1),
		done: make(chan struct{}),
	}
	c.br = bufio.NewReaderSize(countReader{c}, readBuffer)
	return c
}

// start makes c an established connection. Requires: the transport's WaitGroup
// is held by the caller.
func (c *conn) start(h hello, l *link) {
	c.peer, c.class, c.link, c.since = h.peer, h.class, l, time.Now()
	c.ctx, c.cancel = context.WithCancel(c.t.ctx)
	if l != nil {
		c.calls = make(map[uint64]*call)
		c.tickEvery = c.t.o.KeepAlive
		if c.tickEvery <= 0 && l.key.node == NoNode {
			c.tickEvery = idleAddr
		}
	} else {
		c.inbound = make(map[uint64]*inbound)
		if h.keepAlive > 0 {
			c.tickEvery = max(time.Duration(h.keepAlive)*time.Millisecond, minTick)
		}
	}
	if c.tickEvery > 0 {
		c.tick.idleSince = c.since
		c.mu.Lock()
		c.t.wg.Add(1)
		c.timer = time.AfterFunc(c.tickEvery, c.onTick)
		c.mu.Unlock()
	}
	c.t.wg.Go(c.writeLoop)
	c.t.wg.Go(c.readLoop)
}

// ---- the end

// fail ends the connection with err; the first call counts. asked says that this
// was meant to happen and is no news about the peer.
func (c *conn) fail(err error, asked bool) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	c.err = err
	asked = asked || c.byeQueued
	queue, calls, inbound := c.queue, c.calls, c.inbound
	c.queue, c.calls, c.inbound = nil, nil, nil
	c.roomLocked()
	if c.timer != nil && c.timer.Stop() {
		c.t.wg.Done()
	}
	for _, k := range calls {
		outcome := ErrUnknownOutcome
		if k.frame.state == frameQueued {
			outcome = ErrUnreachable
		}
		k.result <- result{err: &callError{outcome: outcome, cause: err}}
	}
	close(c.done)
	c.mu.Unlock()

	c.cancel()
	_ = c.nc.Close() // the connection is given up; its first error is err
	for _, f := range queue {
		f.release()
	}
	for _, in := range inbound {
		in.cancel()
	}
	if c.link != nil {
		c.link.ended(c, asked, err)
	}
	c.t.ended(c, err, asked)
}

// release gives the frame's payload back.
func (f *frame) release() {
	if f.payload != nil {
		f.payload.Release()
		f.payload = nil
	}
}

// roomLocked wakes whoever waits for room.
func (c *conn) roomLocked() {
	if c.room != nil {
		close(c.room)
		c.room = nil
	}
}

// waitLocked returns a channel that is closed when there may be room.
func (c *conn) waitLocked() <-chan struct{} {
	if c.room == nil {
		c.room = make(chan struct{})
	}
	return c.room
}

// retire lets the connection finish its calls and end. On the accepting side it
// asks the peer to do so.
func (c *conn) retire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil || c.retired {
		return
	}
	c.retired = true
	if c.link == nil {
		c.enqueueLocked(newFrame(typeRetire, 0, 0, nil))
		return
	}
	c.roomLocked()
	c.byeLocked()
}

// byeLocked says goodbye if the connection is retired and has no calls left.
func (c *conn) byeLocked() {
	if c.retired && c.link != nil && len(c.calls) == 0 && !c.byeQueued && c.err == nil {
		c.byeQueued = true
		c.enqueueLocked(newFrame(typeBye, 0, 0, nil))
	}
}

// ---- writing

// enqueueLocked queues a frame that no limit stops.
func (c *conn) enqueueLocked(f *frame) {
	c.queue = append(c.queue, f)
	c.queueBytes += f.charge
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// message queues a one-way frame without waiting. It returns errEnded, or
// ErrOverloaded if the queue is full.
func (c *conn) message(f *frame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil || c.retired {
		return errEnded
	}
	f.charge = f.size()
	if c.queueBytes > 0 && c.queueBytes+f.charge > c.t.o.MaxQueueBytes {
		return ErrOverloaded
	}
	c.enqueueLocked(f)
	return nil
}

// call sends a request and waits for its reply. It returns errEnded if nothing
// was queued because the connection is over.
func (c *conn) call(ctx context.Context, kind uint16, body []byte) (*Response, error) {
	k := &call{kind: kind, result: make(chan result, 1)}
	f := newFrame(typeCall, kind, 0, body)
	k.frame = f
	charge := f.size()
	var stream uint64
	for {
		c.mu.Lock()
		if c.err != nil || c.retired {
			c.mu.Unlock()
			return nil, errEnded
		}
		if len(c.calls) < c.t.o.MaxInFlight && (c.queueBytes == 0 || c.queueBytes+charge <= c.t.o.MaxQueueBytes) {
			c.lastStream++
			stream = c.lastStream
			f.setStream(kind, stream)
			f.charge = charge
			c.calls[stream] = k
			c.enqueueLocked(f)
			c.mu.Unlock()
			break
		}
		room := c.waitLocked()
		c.mu.Unlock()
		select {
		case <-room:
		case <-ctx.Done():
			return nil, &callError{outcome: ErrUnreachable, cause: ctxError(ctx)}
		}
	}
	select {
	case r := <-k.result:
		return r.resp, r.err
	case <-ctx.Done():
	}
	c.mu.Lock()
	if c.calls[stream] != k {
		// The result came at the same time: it is in the channel, since both
		// happen under the mutex.
		c.mu.Unlock()
		r := <-k.result
		return r.resp, r.err
	}
	delete(c.calls, stream)
	outcome := ErrUnknownOutcome
	if f.state == frameQueued {
		f.state = frameDropped
		outcome = ErrUnreachable
	} else {
		c.enqueueLocked(newFrame(typeCancel, 0, stream, nil))
	}
	c.roomLocked()
	c.byeLocked()
	c.mu.Unlock()
	return nil, &callError{outcome: outcome, cause: ctxError(ctx)}
}

// setStream re-encodes the header of a call with its stream.
func (f *frame) setStream(kind uint16, stream uint64) {
	h, err := decodeHeader(&f.head)
	if err != nil {
		panic("transport: own header: " + err.Error())
	}
	h.kind, h.stream = kind, stream
	h.encode(&f.head)
}

// ctxError returns an error that is both ctx.Err() and its cause.
func ctxError(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if cause == nil || errors.Is(cause, err) {
		return err
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// writeLoop writes queued frames until the connection ends.
func (c *conn) writeLoop() {
	w := writer{c: c}
	var batch []*frame
	for {
		c.mu.Lock()
		if c.err != nil {
			c.mu.Unlock()
			return
		}
		batch, c.queue = c.queue, batch[:0]
		for i, f := range batch {
			if f.state == frameDropped {
				c.queueBytes -= f.charge
				f.release()
				batch[i] = nil
			} else {
				f.state = frameTaken
			}
		}
		c.mu.Unlock()
		if len(batch) == 0 {
			select {
			case <-c.wake:
			case <-c.done:
				return
			}
			continue
		}
		var err error
		for i, f := range batch {
			if f == nil {
				continue
			}
			if err == nil {
				c.answered(f)
				err = w.frame(f)
			}
			f.release()
			if err == nil {
				c.written(f)
			}
			batch[i] = nil
		}
		if err == nil {
			err = w.flush()
		}
		if err != nil {
			c.fail(fmt.Errorf("transport: write to %v: %w", c.nc.RemoteAddr(), err), false)
			return
		}
	}
}

// answered takes the call that a frame answers off the limits. It comes before
// the frame is written: once the peer has the answer, it may send the next call.
func (c *conn) answered(f *frame) {
	if f.inbound == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if in := f.inbound; c.inbound[in.stream] == in {
		delete(c.inbound, in.stream)
		c.inBytes -= in.bytes
	}
}

// written takes a frame's charge off the limits.
func (c *conn) written(f *frame) {
	c.mu.Lock()
	f.state = frameWritten
	c.queueBytes -= f.charge
	if f.charge > 0 {
		c.roomLocked()
	}
	c.mu.Unlock()
}

// writer gathers small frames into one buffer and writes large bodies and
// payloads from where they lie.
type writer struct {
	c   *conn
	buf []byte
}

func (w *writer) frame(f *frame) error {
	if len(w.buf)+headerBytes > writeBuffer {
		if err := w.flush(); err != nil {
			return err
		}
	}
	if w.buf == nil {
		w.buf = make([]byte, 0, writeBuffer)
	}
	w.buf = append(w.buf, f.head[:]...)
	body := f.body
	if len(body) <= copyLimit {
		if len(w.buf)+len(body) > writeBuffer {
			if err := w.flush(); err != nil {
				return err
			}
		}
		w.buf = append(w.buf, body...)
		body = nil
	}
	for len(body) > 0 {
		n := min(len(body), writeChunk)
		if err := w.write(body[:n]); err != nil {
			return err
		}
		body = body[n:]
	}
	if f.payload == nil {
		return nil
	}
	if err := w.flush(); err != nil {
		return err
	}
	return w.payload(f)
}

// flush writes what was gathered.
func (w *writer) flush() error { return w.write(nil) }

// write writes what was gathered, and b behind it.
func (w *writer) write(b []byte) error {
	n := len(w.buf) + len(b)
	if n == 0 {
		return nil
	}
	if err := w.c.nc.SetWriteDeadline(time.Now().Add(stall(n))); err != nil {
		return err
	}
	var err error
	switch {
	case len(b) == 0:
		_, err = w.c.nc.Write(w.buf)
	case len(w.buf) == 0:
		_, err = w.c.nc.Write(b)
	default:
		bufs := net.Buffers{w.buf, b} // one writev on TCP
		_, err = bufs.WriteTo(w.c.nc)
	}
	w.buf = w.buf[:0]
	w.c.progress.Add(1)
	w.c.t.stats.sent.Add(uint64(n))
	return err
}

// payload lets the payload write itself, and fills up what it did not write.
func (w *writer) payload(f *frame) error {
	if err := w.c.nc.SetWriteDeadline(time.Now().Add(stall(f.payLen))); err != nil {
		return err
	}
	n, err := f.payload.WriteTo(w.c.nc)
	w.c.progress.Add(1)
	w.c.t.stats.sent.Add(uint64(max(n, 0)))
	switch {
	case n < 0 || n > int64(f.payLen):
		// The peer took what is too much for a header: only an end is safe.
		return fmt.Errorf("payload of %d bytes wrote %d", f.payLen, n)
	case n == int64(f.payLen) && err == nil:
		w.buf = append(w.buf, payloadWhole)
		return nil
	}
	if err == nil {
		err = io.ErrUnexpectedEOF
	}
	if opErr := (*net.OpError)(nil); errors.As(err, &opErr) || errors.Is(err, net.ErrClosed) {
		return err // the connection itself
	}
	w.c.t.o.Logger.Warn("transport: payload failed", "peer", w.c.peer.Node, "class", w.c.class.String(),
		"written", n, "bytes", f.payLen, "err", err)
	zeros := make([]byte, min(int64(f.payLen)-n, writeChunk))
	for left := int64(f.payLen) - n; left > 0; {
		k := min(left, int64(len(zeros)))
		if err := w.write(zeros[:k]); err != nil {
			return err
		}
		left -= k
	}
	w.buf = append(w.buf, payloadFailed)
	return nil
}

// stall is how long n bytes may take.
func stall(n int) time.Duration {
	return stallBase + time.Duration(n/stallRate)*time.Second
}

// ---- reading

// readLoop reads frames until the connection ends.
func (c *conn) readLoop() {
	for {
		if err := c.readFrame(); err != nil {
			asked := errors.Is(err, errRetired)
			if !asked && !errors.Is(err, ErrProtocol) {
				err = fmt.Errorf("transport: read from %v: %w", c.nc.RemoteAddr(), err)
			}
			c.fail(err, asked)
			return
		}
	}
}

func (c *conn) readFrame() error {
	var b [headerBytes]byte
	if _, err := io.ReadFull(c.br, b[:]); err != nil {
		return err
	}
	h, err := decodeHeader(&b)
	if err != nil {
		return err
	}
	switch {
	case fromDialler(h.typ) != (c.link == nil):
		return fmt.Errorf("%w: frame type %d from the wrong side", ErrProtocol, h.typ)
	case int64(h.body) > int64(c.t.o.MaxBodyBytes):
		return fmt.Errorf("%w: body of %d bytes is above the limit of %d", ErrProtocol, h.body, c.t.o.MaxBodyBytes)
	case int64(h.payload) > int64(c.t.o.MaxPayloadBytes):
		return fmt.Errorf("%w: payload of %d bytes is above the limit of %d", ErrProtocol, h.payload, c.t.o.MaxPayloadBytes)
	}
	rest := int(h.body) + int(h.payload)
	if rest > c.br.Buffered() {
		// A started frame must come to its end, so that a dribbling peer cannot
		// hold its buffer.
		if err := c.nc.SetReadDeadline(time.Now().Add(stall(rest))); err != nil {
			return err
		}
		defer c.nc.SetReadDeadline(time.Time{})
	}
	switch h.typ {
	case typeCall:
		return c.readCall(h)
	case typeReply, typeError:
		return c.readReply(h)
	case typeMessage:
		body, err := c.readBody(h)
		if err != nil {
			return err
		}
		if c.t.o.Receive != nil {
			c.t.o.Receive(c.peer, h.kind, body)
		}
	case typeCancel:
		c.mu.Lock()
		in := c.inbound[h.stream]
		c.mu.Unlock()
		if in != nil {
			in.cancel()
		}
	case typePing:
		return c.answer(newFrame(typePong, 0, h.stream, nil))
	case typeRetire:
		c.link.drop(c)
		c.retire()
	case typeBye:
		return errRetired
	}
	return nil
}

// readBody reads and checks the body.
func (c *conn) readBody(h header) ([]byte, error) {
	if h.body == 0 {
		return nil, nil
	}
	body := make([]byte, h.body)
	if _, err := io.ReadFull(c.br, body); err != nil {
		return nil, unexpected(err)
	}
	return body, h.checkBody(body)
}

// unexpected turns an EOF inside a frame into io.ErrUnexpectedEOF.
func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// readReply hands a reply to its call. A reply that nobody waits for is read
// without being stored.
func (c *conn) readReply(h header) error {
	c.mu.Lock()
	k := c.calls[h.stream]
	c.mu.Unlock()
	var r result
	if k == nil {
		n := int64(h.body) + int64(h.payload)
		if h.payload > 0 {
			n += trailerBytes
		}
		_, err := io.CopyN(io.Discard, c.br, n)
		return unexpected(err)
	}
	body, err := c.readBody(h)
	if err != nil {
		return err
	}
	if h.typ == typeError {
		switch h.kind {
		case codeOverloaded:
			r.err = &callError{outcome: ErrOverloaded, cause: fmt.Errorf("node %d has too many calls", c.peer.Node)}
		default:
			r.err = &RemoteError{Node: c.peer.Node, Kind: k.kind, Text: string(body)}
		}
	} else {
		r.resp = &Response{From: c.peer, Body: body}
		if h.payload > 0 {
			r.resp.Payload = make([]byte, h.payload)
			if _, err := io.ReadFull(c.br, r.resp.Payload); err != nil {
				return unexpected(err)
			}
			trailer, err := c.br.ReadByte()
			switch {
			case err != nil:
				return unexpected(err)
			case trailer == payloadFailed:
				r = result{err: &RemoteError{Node: c.peer.Node, Kind: k.kind, Text: "reading the payload failed"}}
			case trailer != payloadWhole:
				return fmt.Errorf("%w: payload trailer %#02x", ErrProtocol, trailer)
			}
		}
	}
	c.mu.Lock()
	if c.calls[h.stream] == k {
		delete(c.calls, h.stream)
		k.result <- r
		c.roomLocked()
		c.byeLocked()
	}
	c.mu.Unlock()
	return nil
}

// readCall admits a call and starts its handler.
func (c *conn) readCall(h header) error {
	c.mu.Lock()
	if err := c.err; err != nil {
		c.mu.Unlock()
		return err
	}
	if c.inbound[h.stream] != nil {
		c.mu.Unlock()
		return fmt.Errorf("%w: call %d is open", ErrProtocol, h.stream)
	}
	refuse := len(c.inbound) >= c.t.o.MaxInFlight ||
		len(c.inbound) > 0 && c.inBytes+int(h.body) > c.t.o.MaxInFlightBytes
	in := &inbound{stream: h.stream, bytes: int(h.body)}
	var ctx context.Context
	if !refuse && c.t.o.Handle != nil {
		ctx, in.cancel = context.WithCancel(c.ctx)
		c.inbound[h.stream] = in
		c.inBytes += in.bytes
	}
	c.mu.Unlock()
	if refuse || c.t.o.Handle == nil {
		if _, err := c.br.Discard(int(h.body)); err != nil {
			return unexpected(err)
		}
		if c.t.o.Handle == nil {
			return c.answer(newFrame(typeError, codeNoHandler, h.stream, []byte("node answers no calls")))
		}
		c.t.stats.refused.Add(1)
		return c.answer(newFrame(typeError, codeOverloaded, h.stream, nil))
	}
	body, err := c.readBody(h)
	if err != nil {
		in.cancel()
		return err
	}
	r := &Request{From: c.peer, Class: c.class, Kind: h.kind, Body: body}
	c.t.wg.Go(func() { c.serve(ctx, in, r) })
	return nil
}

// answer queues a small answer to a received frame. A peer that sends more than
// it reads answers for is cut off.
func (c *conn) answer(f *frame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return c.err
	}
	if len(c.queue) > 2*c.t.o.MaxInFlight+64 {
		return fmt.Errorf("%w: peer does not read answers", ErrProtocol)
	}
	c.enqueueLocked(f)
	return nil
}

// serve runs the handler of one call and queues its answer.
func (c *conn) serve(ctx context.Context, in *inbound, r *Request) {
	reply, err := c.t.o.Handle(ctx, r)
	in.cancel()
	f := c.answerFrame(in.stream, reply, err)
	f.inbound = in
	c.mu.Lock()
	if c.err == nil {
		c.enqueueLocked(f)
		f = nil
	}
	c.mu.Unlock()
	if f != nil {
		f.release()
	}
}

// answerFrame encodes what a handler returned.
func (c *conn) answerFrame(stream uint64, reply *Reply, err error) *frame {
	if reply == nil {
		reply = &Reply{}
	}
	n := 0
	if reply.Payload != nil {
		n = reply.Payload.Len()
	}
	switch {
	case err != nil:
	case len(reply.Body) > c.t.o.MaxBodyBytes:
		err = fmt.Errorf("reply of %d bytes is above the limit of %d", len(reply.Body), c.t.o.MaxBodyBytes)
	case n < 0 || n > c.t.o.MaxPayloadBytes:
		err = fmt.Errorf("payload of %d bytes is above the limit of %d", n, c.t.o.MaxPayloadBytes)
	}
	if err != nil {
		if reply.Payload != nil {
			reply.Payload.Release()
		}
		text := err.Error()
		return newFrame(typeError, codeHandler, stream, []byte(text[:min(len(text), maxErrorText)]))
	}
	f := newFrame(typeReply, 0, stream, reply.Body)
	if n == 0 {
		if reply.Payload != nil {
			reply.Payload.Release()
		}
		return f
	}
	f.payload, f.payLen = reply.Payload, n
	h, herr := decodeHeader(&f.head)
	if herr != nil {
		panic("transport: own header: " + herr.Error())
	}
	h.payload = uint32(n)
	h.encode(&f.head)
	return f
}

// ---- keep-alive

// onTick runs each tickEvery. It decides whether the peer is still there.
func (c *conn) onTick() {
	defer c.t.wg.Done()
	err, asked := c.tickNow(time.Now())
	if err != nil {
		c.fail(err, asked)
	}
}

// tickNow is one step of keep-alive; it re-arms the timer unless it returns an
// error.
func (c *conn) tickNow(now time.Time) (err error, asked bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return nil, false
	}
	s := &c.tick
	received, progress := c.received.Load(), c.progress.Load()
	heard, moved := received != s.received, progress != s.progress
	s.received, s.progress = received, progress
	switch {
	case c.link == nil:
		// The peer promised a ping after each interval of silence.
		s.silent++
		if heard {
			s.silent = 0
		}
		if s.silent > silentTicks+1 {
			return errKeepAlive, false
		}
	case c.t.o.KeepAlive > 0:
		if heard {
			s.pinging, s.silent, s.stuck = false, 0, 0
		}
		if !s.pinging && !(heard && moved) {
			s.pinging = true
			s.stream++
			s.ping = newFrame(typePing, 0, s.stream, nil)
			c.enqueueLocked(s.ping)
		} else if s.pinging && s.ping.state == frameWritten {
			s.silent++
		} else if s.pinging && !moved {
			s.stuck++
		}
		if s.silent >= silentTicks || s.stuck >= silentTicks {
			return errKeepAlive, false
		}
	}
	if c.link != nil && c.link.key.node == NoNode {
		if len(c.calls) > 0 || c.lastStream != c.tick.lastStream {
			s.idleSince, s.lastStream = now, c.lastStream
		} else if now.Sub(s.idleSince) >= idleAddr && !c.retired {
			c.retired = true
			c.byeLocked()
		}
	}
	c.t.wg.Add(1)
	c.timer.Reset(c.tickEvery)
	return nil, false
}

// sameCluster reports whether a connection to peer may go on in cluster.
func sameCluster(peer Peer, cluster ID) bool {
	return peer.Cluster.IsZero() || cluster.IsZero() || peer.Cluster == cluster
}
