package tier_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/tier"
	"github.com/cordwood-io/cordwood/tier/memstore"
)

// An oracle stands between the nodes of a schedule and what they share, and judges
// each event at the moment at which it is committed and each object at the moment at
// which it is written or deleted. It keeps the states by itself.
//
// It is called from the managers' goroutines, so it notes what is wrong and the test
// asks for it after each step.
type oracle struct {
	mem    *memstore.Store
	window time.Duration // how long what is deleted is kept
	say    func(format string, a ...any)

	mu     sync.Mutex
	parts  map[log.PartitionID]*judged
	counts map[string]int
	wrong  error // the first
}

// A judged is what the oracle knows of one partition.
type judged struct {
	s         *shard
	state     tier.State
	announced map[tier.ID]log.Epoch // by an applied CopyStarted
	gone      map[tier.ID]bool      // by an applied DeleteFinished
	promised  map[tier.ID]promise   // what is kept though it is deleted
	strays    []string              // keys

	deletedAt time.Time // when the metadata said so
	epoch     log.Epoch // of the deletion
	forgotten bool
	again     bool // the tier log spoke of it once more: a late barrier
}

// A promise is that an object is there until a time.
type promise struct {
	key   string
	until time.Time
}

func newOracle(mem *memstore.Store, window time.Duration, say func(string, ...any)) *oracle {
	return &oracle{mem: mem, window: window, say: say, parts: map[log.PartitionID]*judged{}, counts: map[string]int{}}
}

func (o *oracle) add(s *shard) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.parts[s.id] = &judged{s: s, announced: map[tier.ID]log.Epoch{}, gone: map[tier.ID]bool{}, promised: map[tier.ID]promise{}}
}

// deleted notes that the metadata says that a shard's topic is deleted.
func (o *oracle) deleted(s *shard, epoch log.Epoch) {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := o.parts[s.id]
	p.deletedAt, p.epoch = time.Now(), epoch
}

// wrote notes a batch on the leader.
func (o *oracle) wrote(s *shard, base log.Offset, bytes int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	s.wrote[base] = wrote{bytes, time.Now()}
}

// commit moves a shard's committed end.
func (o *oracle) commit(s *shard, end log.Offset) {
	o.mu.Lock()
	defer o.mu.Unlock()
	s.end = end
}

func (o *oracle) count(kind string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.counts[kind]++
}

// err returns the first thing that was wrong.
func (o *oracle) err() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.wrong
}

// blame notes what is wrong. Requires: mu.
func (o *oracle) blame(format string, a ...any) {
	if o.wrong == nil {
		o.wrong = fmt.Errorf(format, a...)
	}
}

// committed judges an event of the tier log. The log calls it in order.
func (o *oracle) committed(c tier.Committed) {
	e, err := tier.DecodeEvent(c.Event)
	o.mu.Lock()
	defer o.mu.Unlock()
	if err != nil {
		o.blame("event %d: %w", c.Offset, err)
		return
	}
	p := o.parts[e.Partition]
	before := p.state.Clone()
	v := p.state.Apply(e)
	o.counts[fmt.Sprintf("%T", e.Body)[len("tier."):]]++
	o.counts[v.String()]++
	o.say("  event %d of shard %d: %T epoch %d seq %d: %v", c.Offset, p.s.i, e.Body, e.Epoch, e.Seq, v)
	if p.forgotten {
		// What is late of a partition that nobody knows any more can make it known again,
		// until it is cleared away again. Nothing that it says counts.
		p.again = p.again || e.Seq == 0
		return
	}
	switch v {
	case tier.RefusedID, tier.RefusedLineage, tier.RefusedLive, tier.RefusedState, tier.RefusedPartition, tier.RefusedKept:
		if p.state.Deleted() && v == tier.RefusedID {
			break // two nodes speak for the cluster
		}
		o.blame("event %d, %T %+v: %v in epoch %d", c.Offset, e.Body, e.Body, v, e.Epoch)
	}
	if v == tier.Applied {
		o.applied(p, before, e)
	}
}

// applied judges an event that took effect. Requires: mu.
func (o *oracle) applied(p *judged, before *tier.State, e tier.Event) {
	switch b := e.Body.(type) {
	case tier.Checkpoint:
		if b.Manifest != (tier.ID{}) {
			o.counts["manifests"]++
		}
	case tier.CopyStarted:
		if _, ok := p.announced[b.ID]; ok {
			o.blame("id %v is used twice", b.ID)
		}
		p.announced[b.ID] = e.Epoch
		if b.End > p.s.end {
			o.blame("upload of [%d, %d) begins, committed is %d", b.Base, b.End, p.s.end)
		}
	case tier.CopyFinished:
		r, _ := p.state.Lookup(p.state.TierEnd() - 1)
		if r.ID != b.ID || r.Base > before.TierEnd() || r.Base < before.TierEnd() && before.TierEnd() != before.LogStart() {
			o.blame("range [%d, %d) is finished at tier end %d, log start %d", r.Base, r.End, before.TierEnd(), before.LogStart())
		}
		key := tier.Key{Partition: p.s.id, Base: r.Base, End: r.End, Epoch: r.Epoch, ID: r.ID}.Path("p")
		if info, err := o.mem.Head(context.Background(), key); err != nil || info.Size != b.ObjectBytes {
			o.blame("%s is finished with %d bytes, the store has %+v: %v", key, b.ObjectBytes, info, err)
		}
	case tier.DeleteStarted:
		for _, id := range b.IDs {
			if until := p.promised[id].until; time.Now().Before(until) {
				o.blame("the deletion of %s begins, which is promised until %v", p.promised[id].key, until)
			}
		}
	case tier.DeleteFinished:
		for _, c := range before.Pending() {
			if _, still := find(&p.state, c.ID); still {
				continue
			}
			p.gone[c.ID] = true
			key := tier.Key{Partition: p.s.id, Base: c.Base, End: c.End, Epoch: c.Epoch, ID: c.ID}.Path("p")
			if _, err := o.mem.Head(context.Background(), key); !errors.Is(err, tier.ErrNotFound) {
				o.blame("the deletion of %s is finished, and it is there: %v", key, err)
			}
		}
	case tier.LogStart:
		o.counts["log start: "+b.Cause.Kind.String()]++
		o.judgeStart(p, b)
		for _, r := range before.Ranges() {
			if r.End <= b.Start {
				o.promise(p, r, b.Until)
			}
		}
	case tier.Deleted:
		if p.deletedAt.IsZero() || e.Epoch != p.epoch {
			o.blame("partition %v is deleted in epoch %d; metadata: in %d, at %v", e.Partition, e.Epoch, p.epoch, p.deletedAt)
		}
		if o.window > 0 && b.Until.Before(p.deletedAt.Add(o.window-time.Millisecond)) {
			o.blame("partition %v was deleted at %v and is kept until %v", e.Partition, p.deletedAt, b.Until)
		}
		for _, r := range before.Ranges() {
			o.promise(p, r, b.Until)
		}
	case tier.Forgotten:
		for info, err := range o.mem.List(context.Background(), tier.PartitionPrefix("p", e.Partition), "") {
			o.blame("partition %v is forgotten, and there is %s: %v", e.Partition, info.Key, err)
		}
		p.forgotten, p.state = true, tier.State{}
	}
}

// promise notes how long the object of a range is kept that is deleted. Requires: mu.
func (o *oracle) promise(p *judged, r tier.Range, until time.Time) {
	if o.window > 0 {
		p.promised[r.ID] = promise{keyOf(p.s, r), until}
	}
}

// judgeStart says whether a policy allows a log start. What counts is what the leader
// wrote, below the committed end or not. Requires: mu.
func (o *oracle) judgeStart(p *judged, b tier.LogStart) {
	var left int64
	var newest time.Time // of what goes
	for base, w := range p.s.wrote {
		if base >= b.Start {
			left += w.bytes
		} else if w.at.After(newest) {
			newest = w.at
		}
	}
	switch b.Cause.Kind {
	case tier.CauseBytes:
		// What is left of a segment that the log start cuts is estimated, so its size is
		// the error.
		if least := p.s.policy.RetentionBytes - segmentBytes; left < least {
			o.blame("retention by bytes moves the log start to %d and leaves %d bytes of %d", b.Start, left, p.s.policy.RetentionBytes)
		}
	case tier.CauseAge:
		if age := time.Since(newest); age < p.s.policy.RetentionAge-time.Second {
			o.blame("retention by age moves the log start to %d, above records of %v", b.Start, age)
		}
	case tier.CauseRequest:
	default:
		o.blame("log start %d without a cause", b.Start)
	}
	if b.Start > p.s.end {
		o.blame("log start %d, committed is %d", b.Start, p.s.end)
	}
}

// find returns the pending object with an id.
func find(s *tier.State, id tier.ID) (tier.Pending, bool) {
	for _, c := range s.Pending() {
		if c.ID == id {
			return c, true
		}
	}
	return tier.Pending{}, false
}

// put judges an object that is about to be written.
func (o *oracle) put(key string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	k, ok := tier.ParseKey("p", key)
	if !ok {
		if p := o.ofManifest(key); p != nil && p.forgotten && !p.again {
			o.blame("%s is written after its partition was forgotten", key)
		}
		return
	}
	p := o.parts[k.Partition]
	if !p.deletedAt.IsZero() {
		o.counts["put of a deleted topic"]++
	}
	epoch, ok := p.announced[k.ID]
	switch {
	case !ok:
		o.blame("%s is written, and no event has announced it", key)
	case epoch != k.Epoch:
		o.blame("%s is written, announced in epoch %d", key, epoch)
	case p.gone[k.ID]:
		o.blame("%s is written after its deletion", key)
	}
}

// delete judges an object that is about to be deleted.
func (o *oracle) delete(key string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	k, ok := tier.ParseKey("p", key)
	if !ok {
		if p := o.ofManifest(key); p != nil {
			if id, ok := p.state.Manifest(); ok && key == tier.ManifestKey("p", p.s.id, id) {
				o.blame("%s is deleted, and the last checkpoint names it", key)
			}
		}
		return
	}
	p := o.parts[k.Partition]
	if promise := p.promised[k.ID]; time.Now().Before(promise.until) {
		o.blame("%s is deleted, and is promised until %v", key, promise.until)
	}
	if !p.deletedAt.IsZero() {
		o.counts["delete of a deleted topic"]++
	}
	if _, ok := p.announced[k.ID]; !ok || p.gone[k.ID] {
		return // nobody's
	}
	if c, ok := find(&p.state, k.ID); !ok || !c.Deleting {
		o.blame("%s is deleted, and the state counts on it", key)
	}
}

// ofManifest returns whose manifest a key names, or nil. Requires: mu.
func (o *oracle) ofManifest(key string) *judged {
	if !strings.Contains(key, "/manifest-") {
		return nil
	}
	for id, p := range o.parts {
		if strings.HasPrefix(key, tier.PartitionPrefix("p", id)) {
			return p
		}
	}
	return nil
}

// kept adds what is there of deleted topics: what is promised must be, and until that
// ends nobody looks for what the tier log does not know.
func (o *oracle) kept(must, may map[string]bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, p := range o.parts {
		var last time.Time
		for _, k := range p.promised {
			switch since := time.Since(k.until); {
			case since < 0:
				must[k.key] = true
			case since < expiry:
				may[k.key] = true
			}
			if k.until.After(last) {
				last = k.until
			}
		}
		if p.deletedAt.IsZero() {
			continue
		}
		// Who never had an event has no anchor.
		if !p.forgotten && p.state.Epoch() < 0 || time.Since(last) < expiry {
			for _, key := range p.strays {
				may[key] = true
			}
			for info := range o.mem.List(context.Background(), tier.PartitionPrefix("p", p.s.id)+"manifest-", "") {
				may[info.Key] = true
			}
		}
	}
}

// stray notes an object that nobody announced.
func (o *oracle) stray(s *shard, key string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := o.parts[s.id]
	p.strays = append(p.strays, key)
}

// promises returns what is kept of a shard now.
func (o *oracle) promises(s *shard) (keys []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, k := range o.parts[s.id].promised {
		if time.Now().Before(k.until) {
			keys = append(keys, k.key)
		}
	}
	return keys
}

// alive says whether the tier log has not declared a shard's topic deleted.
func (o *oracle) alive(s *shard) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := o.parts[s.id]
	return !p.forgotten && !p.state.Deleted()
}

// remembered says whether the tier log has spoken of a shard, and has not declared that
// nothing is left of it.
func (o *oracle) remembered(s *shard) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := o.parts[s.id]
	return !p.forgotten && p.state.Epoch() >= 0
}

// forgot says whether the tier log has declared that nothing is left of a shard.
func (o *oracle) forgot(s *shard) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.parts[s.id].forgotten
}

// local judges what a replica has on its disk.
func (o *oracle) local(s *shard, n int, l *log.Log) {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := o.parts[s.id]
	if p.forgotten {
		return
	}
	if start := l.Start(); start > p.state.LogStart() {
		o.blame("node %d, shard %d: local log start %d, state %d", n, s.i, start, p.state.LogStart())
	}
	if start := l.LocalStart(); start > max(p.state.TierEnd(), p.state.LogStart()) {
		o.blame("node %d, shard %d: the local log begins at %d, tier end %d", n, s.i, start, p.state.TierEnd())
	}
}

// agrees says whether a state is the one that all events add up to.
func (o *oracle) agrees(s *shard, state *tier.State) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.parts[s.id].state.Equal(state)
}

// addTo adds the counts to others.
func (o *oracle) addTo(counts map[string]int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for k, n := range o.counts {
		counts[k] += n
	}
}

// A watchedStore tells an oracle what happens to its objects.
type watchedStore struct {
	*memstore.Store
	o *oracle
}

func (s watchedStore) Put(ctx context.Context, key string, r io.ReaderAt, size int64, o tier.PutOptions) error {
	s.o.put(key)
	err := s.Store.Put(ctx, key, r, size, o)
	if err == nil {
		s.o.count("put landed")
	}
	return err
}

func (s watchedStore) Delete(ctx context.Context, keys []string) []tier.DeleteResult {
	for _, key := range keys {
		s.o.delete(key)
	}
	return s.Store.Delete(ctx, keys)
}
