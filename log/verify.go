package log

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"
)

// VerifyOptions configure [Log.Verify].
type VerifyOptions struct {
	// BytesPerSecond bounds how fast segments are read. 0 means as fast as it goes.
	BytesPerSecond int64

	// Progress is called after about each MiB, and at each segment's end, with the
	// offset up to which the log is checked. It must not block.
	Progress func(next Offset)
}

// Verification is what [Log.Verify] found. Each error says where: path, position,
// and the range of records.
type Verification struct {
	// Start and End say what was read: LocalStart at the call, and at least what End
	// was then.
	Start, End Offset

	Segments int
	Batches  int64
	Bytes    int64

	// Damage is what can't be read as it was written, ascending. [Log.Repair] takes
	// it from elsewhere.
	Damage []*CorruptionError

	// Undecodable are batches that are as they were written, but hold records that
	// do not decode: their producer sent them so. Other replicas have the same.
	Undecodable []*CorruptionError

	// Files are files beside the records that are damaged, missing, or contradict
	// the records. They are made again, or done without; their range is empty.
	Files []*CorruptionError

	// More counts findings beyond the first 10 000 of each kind.
	More int
}

// OK reports whether nothing was found.
func (v *Verification) OK() bool {
	return len(v.Damage)+len(v.Undecodable)+len(v.Files)+v.More == 0
}

// maxFindings bounds each list of a Verification.
const maxFindings = 10_000

func (v *Verification) find(list *[]*CorruptionError, c *CorruptionError) {
	if len(*list) == maxFindings {
		v.More++
		return
	}
	*list = append(*list, c)
}

// paceBytes is how much Verify reads between looks at ctx, pace and progress.
const paceBytes = 1 << 20

// A verifier is one call of Verify.
type verifier struct {
	l     *Log
	ctx   context.Context //nolint:containedctx // one call's
	o     VerifyOptions
	res   Verification
	began time.Time
	since int64 // bytes since the last look
	at    Offset
}

func (l *Log) verify(ctx context.Context, o VerifyOptions) (Verification, error) {
	if o.BytesPerSecond < 0 {
		return Verification{}, fmt.Errorf("log: verify: BytesPerSecond %d is negative", o.BytesPerSecond)
	}
	v := verifier{l: l, ctx: ctx, o: o, began: time.Now()}
	err := v.run()
	if err != nil {
		l.mu.Lock()
		if l.closing {
			err = ErrClosed
		}
		l.mu.Unlock()
	}
	return v.res, err
}

func (v *verifier) run() error {
	l := v.l
	l.mu.Lock()
	v.res.Start, v.res.End = l.local, l.end
	v.at = l.segs[0].base
	v.gaps()
	l.mu.Unlock()
	for first := true; ; first = false {
		if err := v.look(); err != nil {
			return err
		}
		l.mu.Lock()
		i := 0
		for i < len(l.segs)-1 && l.segs[i].base < v.at {
			i++
		}
		w, sums, last := l.viewAtLocked(i), l.x.headers, l.x.headerSum
		done := w.seg.base < v.at || !first && w.seg.base >= v.res.End
		readOnly := l.readOnly
		l.mu.Unlock()
		if done {
			break
		}
		if err := l.waitSealed(v.ctx, w.seg.base); err != nil {
			return err
		}
		if err := v.segment(w, sums, last, readOnly); err != nil {
			return err
		}
	}
	return v.files()
}

// gaps notes what no segment file holds. Requires: mu.
func (v *verifier) gaps() {
	l := v.l
	if b := l.segs[0].base; b > l.local {
		v.res.find(&v.res.Damage, &CorruptionError{Path: l.dir, Offset: l.local, End: b, Err: errGap})
	}
	if l.end < l.local {
		v.res.find(&v.res.Damage, &CorruptionError{Path: l.dir, Offset: l.end, End: l.local, Err: errGap})
	}
}

// segment checks one segment, and notes what it found if the segment is still the
// same afterwards.
func (v *verifier) segment(w view, sums []uint32, last uint32, readOnly bool) error {
	l := v.l
	c := check{l: l, v: w, step: v.step, records: true}
	part := Verification{}
	bad := func(path string, err error) {
		part.find(&part.Files, &CorruptionError{Path: path, Offset: w.seg.base, End: w.seg.base, Err: err})
	}
	var seal sealFile
	if l.foreign.gaps {
		// Nothing of ours stands beside.
	} else if w.sealed {
		seal = v.seal(&c, bad)
	} else {
		c.known = knownSums(w.entries, sums, w.size, last)
	}
	if w.seg.base > 0 && w.seg.base >= w.start && !l.foreign.gaps {
		v.state(w.seg.base, w.chain, readOnly, bad)
	}
	bytes := v.res.Bytes
	err := v.read(&c, bad)
	l.mu.Lock()
	again := l.gen != w.gen && l.cutSinceLocked(w.gen) < w.end || !slices.Contains(l.segs, w.seg)
	l.mu.Unlock()
	if again {
		v.res.Bytes = bytes
		return nil // what is there now is checked next
	}
	if err != nil {
		return fmt.Errorf("log: verify %s: %w", w.seg.h.name, err)
	}
	if w.sealed && len(c.damage) == 0 && seal.headers != nil {
		switch {
		case c.badIndex:
			bad(w.seg.path(indexSuffix), errBeside)
		case c.badTimes:
			bad(w.seg.path(timeIndexSuffix), errBeside)
		case seal.info.maxTimestamp != c.x.maxTimestamp || seal.info.maxAt != c.x.maxAt:
			bad(w.seg.path(sealSuffix), errBeside)
		}
	}
	for _, d := range joinDamage(c.damage, w.seg.damage) {
		v.res.find(&v.res.Damage, w.seg.corruption(d).(*CorruptionError))
	}
	for _, d := range c.undecodable {
		v.res.find(&v.res.Undecodable, w.seg.corruption(d).(*CorruptionError))
	}
	for _, f := range part.Files {
		v.res.find(&v.res.Files, f)
	}
	v.res.Segments++
	v.res.Batches += c.batches
	v.res.End = max(v.res.End, w.end)
	v.at = max(w.end, w.seg.base+1)
	if v.o.Progress != nil {
		v.o.Progress(w.end)
	}
	return nil
}

var (
	errBeside = errors.New("does not agree with the records")
	errOneOf  = errors.New("one of its two copies is damaged")
	errLonger = errors.New("bytes behind the last batch")
)

// seal reads what stands beside a sealed segment into the check.
func (v *verifier) seal(c *check, bad func(string, error)) sealFile {
	seg := c.v.seg
	payload, err := v.side(seg.path(sealSuffix), sealMagic, sealVersion, bad)
	if err != nil {
		return sealFile{}
	}
	s, err := decodeSeal(payload)
	if err == nil && (s.id != v.l.id || s.info.base != seg.base || s.info.end != c.v.end || s.info.size != c.v.size) {
		err = errBeside
	}
	if err != nil {
		bad(seg.path(sealSuffix), err)
		return sealFile{}
	}
	last := len(s.headers) - 1
	c.known = []knownSum{{s.info.size, s.headers[last]}}
	b, err := readFile(v.l.fs, seg.path(indexSuffix), maxSideBytes)
	if err == nil && crcUpdate(0, b) != s.indexSum {
		err = errDamaged
	}
	if err == nil {
		c.entries, err = parseIndex(b, s.info.size, s.info.end-s.info.base)
	}
	if err == nil && len(c.entries) != last {
		err = errBeside
	}
	if err != nil {
		bad(seg.path(indexSuffix), err)
		c.entries = nil
	} else {
		c.known = knownSums(c.entries, s.headers, s.info.size, s.headers[last])
	}
	b, err = readFile(v.l.fs, seg.path(timeIndexSuffix), maxSideBytes)
	if err == nil && crcUpdate(0, b) != s.timeIndexSum {
		err = errDamaged
	}
	if err == nil {
		c.times, err = parseTimeIndex(b, s.info.end-s.info.base)
	}
	if err != nil {
		bad(seg.path(timeIndexSuffix), err)
		c.times = nil
	}
	if s.info.aborted > 0 {
		if _, err := readTxnIndex(v.l.fs, v.l.dir, &s.info); err != nil {
			bad(seg.path(txnIndexSuffix), err)
		}
	}
	return s
}

// side reads one of our files and looks at both of its copies.
func (v *verifier) side(name, magic string, version uint32, bad func(string, error)) ([]byte, error) {
	b, err := readFile(v.l.fs, name, 2*maxSideBytes)
	var payload []byte
	if err == nil {
		payload, err = openDoubled(b, magic, version, name)
	}
	if err != nil {
		bad(name, err)
		return nil, err
	}
	one := make([]byte, envelopeBytes, envelopeBytes+len(payload))
	one = append(one, payload...)
	copy(one, b[:12]) // magic and version
	if openVersion := be.Uint32(b[8:]); string(b[:8]) == magic && openVersion > 0 && openVersion <= version {
		sealEnvelope(one, magic, openVersion)
	}
	if !bytes.Equal(doubled(one), b) {
		bad(name, errOneOf)
	}
	return payload, nil
}

// state checks the state file of an offset.
func (v *verifier) state(at Offset, chain epochChain, readOnly bool, bad func(string, error)) {
	name := joinPath(v.l.dir, segmentName(at, stateSuffix))
	if _, err := v.l.fs.Stat(name); errors.Is(err, fs.ErrNotExist) {
		v.settle() //nolint:errcheck // seen by the next look
	}
	payload, err := v.side(name, stateMagic, stateVersion, bad)
	if err != nil {
		return
	}
	s, err := decodeState(payload)
	if err == nil && (s.id != v.l.id || s.at != at || !readOnly && !agree(s.chain.truncate(at), chain.truncate(at))) {
		err = errBeside
	}
	if err != nil {
		bad(name, err)
	}
}

// agree reports whether two chains say the same where both say something: each may
// have lost its oldest epochs.
func agree(a, b epochChain) bool {
	if len(a) == 0 || len(b) == 0 {
		return true
	}
	from := max(a[0].Start, b[0].Start)
	if a.at(from) != b.at(from) {
		return false
	}
	after := func(c epochChain) epochChain {
		return slices.DeleteFunc(slices.Clone(c), func(e EpochStart) bool { return e.Start <= from })
	}
	return slices.Equal(after(a), after(b))
}

// settle waits for the end of the change that is under way, if any: a roll cuts the
// file after it is sealed, a Reset makes its files after readers see it.
func (v *verifier) settle() error {
	if err := v.l.lockGate(v.ctx); err != nil {
		return err
	}
	v.l.unlockGate()
	return nil
}

func (v *verifier) read(c *check, bad func(string, error)) error {
	if c.v.size == 0 {
		return nil // a Reset may not have made the file yet
	}
	f, err := c.v.seg.h.acquire()
	if err != nil {
		return err
	}
	defer c.v.seg.h.release()
	if c.v.sealed {
		size, err := f.Size()
		if err == nil && size > c.v.size {
			if err = v.settle(); err == nil {
				size, err = f.Size()
			}
		}
		if err != nil {
			return err
		}
		if size > c.v.size {
			bad(c.v.seg.h.name, errLonger)
		}
	}
	return c.run(f)
}

// step counts bytes that were read, and looks around after each MiB.
func (v *verifier) step(next Offset, n int64) error {
	v.res.Bytes += n
	if v.since += n; v.since < paceBytes {
		return nil
	}
	v.since = 0
	if v.o.Progress != nil {
		v.o.Progress(next)
	}
	return v.look()
}

// look returns an error if the call is to end, and keeps its pace.
func (v *verifier) look() error {
	v.l.mu.Lock()
	closing := v.l.closing
	v.l.mu.Unlock()
	if closing {
		return ErrClosed
	}
	if err := v.ctx.Err(); err != nil {
		return context.Cause(v.ctx)
	}
	if v.o.BytesPerSecond == 0 {
		return nil
	}
	due := v.began.Add(time.Duration(float64(v.res.Bytes) / float64(v.o.BytesPerSecond) * float64(time.Second)))
	t := time.NewTimer(time.Until(due))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-v.ctx.Done():
		return context.Cause(v.ctx)
	}
}

// files checks what belongs to no segment.
func (v *verifier) files() error {
	l := v.l
	bad := func(path string, err error) {
		v.res.find(&v.res.Files, &CorruptionError{Path: path, Err: err})
	}
	if !l.foreign.gaps {
		name := joinPath(l.dir, metaName)
		if payload, err := v.side(name, metaMagic, metaVersion, bad); err == nil {
			if m, err := decodeMeta(payload); err != nil || m.id != l.id || m.partition != l.partition {
				bad(name, errors.Join(errBeside, err))
			}
		}
	}
	name := joinPath(l.dir, cleanName)
	if _, err := l.fs.Stat(name); err == nil {
		if payload, err := v.side(name, cleanMagic, cleanVersion, func(path string, err error) {
			if !errors.Is(err, fs.ErrNotExist) { // a change has removed it
				bad(path, err)
			}
		}); err == nil {
			if c, err := decodeClean(payload); err != nil || c.id != l.id {
				bad(name, errors.Join(errBeside, err))
			}
		}
	}
	name = joinPath(l.dir, partitionFileName)
	b, err := readFile(l.fs, name, maxSideBytes)
	if err == nil {
		if t, ok := parsePartitionFile(b); !ok || t != l.partition.Topic {
			err = errBeside
		}
	} else if errors.Is(err, fs.ErrNotExist) && l.partition.Topic.IsZero() {
		err = nil
	}
	if err != nil {
		bad(name, err)
	}
	name = joinPath(l.dir, epochFileName)
	b, err = readFile(l.fs, name, maxSideBytes)
	if err == nil {
		_, err = parseCheckpoint(b)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // written at the first seal
		bad(name, err)
	}
	return nil
}
