package tier

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/record"
)

// A Chain is one partition as its objects alone tell it: a row of ranges without
// gaps, each of which names the one below it.
type Chain struct {
	Cluster   ID // whose store it is, by the owner object
	Partition log.PartitionID
	Objects   []ChainObject // in the order of offsets; none if all are broken

	// Spare are intact objects that are not in the chain: uploads that were given
	// up, ranges below the log start, leftovers of an older life of the leader.
	Spare []string

	// Broken are objects that can't be read, a gap below the chain if there are
	// objects still further below (they are in Spare, and no part of the chain: see
	// [CatalogOptions].Below), and ranges of Recorded whose objects are not there.
	Broken []Finding

	// Manifest is the key of the newest manifest of the partition that can be read, and
	// Recorded the state in it: what the tier log said when that checkpoint was made. ""
	// and nil if there is none: then the objects are all that tells.
	Manifest string
	Recorded *State
}

// Start is the first offset of the chain. It panics if there are no Objects, as End does.
func (c *Chain) Start() log.Offset { return c.Objects[0].Base }

// End is the offset after the last record of the chain.
func (c *Chain) End() log.Offset { return c.Objects[len(c.Objects)-1].End }

// A ChainObject is one range of a [Chain].
type ChainObject struct {
	Key         string
	ID          ID
	Base, End   log.Offset
	Epoch       log.Epoch // of the leader that uploaded it
	Sealed      time.Time // when the uploader's segment was sealed, by its clock
	Bytes       int64     // of the object
	predecessor ID
	lineage     []log.EpochStart
	tailBytes   int64
}

// CatalogOptions configure [Catalog].
type CatalogOptions struct {
	// Store and Prefix say where the objects are. Nothing is written.
	Store  ObjectStore
	Prefix string

	// Below leaves out the objects that begin at or above it, as if they were not there:
	// so a chain ends there, also if something above it is missing. 0: none is left out.
	// With the base of a finding in [Chain].Broken one gets the chain below that.
	Below log.Offset

	// Parallel is how many objects are looked at at once, a request each. Default 8.
	Parallel int

	// Progress, if set, is called now and then from the goroutine of Catalog.
	Progress func(AuditProgress)
}

// Catalog reads what is in the store without a tier log: it lists the prefix, reads
// the manifests and header and footer of every object, and follows the objects' own
// links. The newest object of a partition, by the leader epochs in it and then by its
// end, is the end of its chain; uploads that the newest manifest calls given up don't
// count. What is below a gap is not in the chain; it is in that of another call, with the
// gap's base as CatalogOptions.Below. A partition of which all objects are left out by that
// has a chain without Objects.
//
// Of partitions with a manifest it is also known which objects there must be. Those
// that are missing are told, unless all older ones are gone too: those were deleted
// since then, for all that can be seen. Small states have no manifest, see [Checkpoint].
//
// What Catalog can't know is what the tier log would add: that a range was deleted
// on request but its object is still there, or that an upload was never finished.
// Records of both are committed records. Errors: [ErrNotFound] if there is no owner
// object, ctx's, and those of the store. An object that can't be read for what is in it
// is no error: see [Chain].Broken.
func Catalog(ctx context.Context, o CatalogOptions) ([]*Chain, error) {
	if o.Parallel <= 0 {
		o.Parallel = 8
	}
	cluster, err := readOwner(ctx, o.Store, o.Prefix, ID{})
	if err != nil {
		return nil, err
	}
	objects, err := listSegments(ctx, o.Store, o.Prefix, listPrefix(o.Prefix))
	if err != nil {
		return nil, err
	}
	chains, err := catalog(ctx, o, cluster, objects, nil)
	stored := map[log.PartitionID]bool{}
	for _, o := range objects {
		stored[o.key.Partition] = stored[o.key.Partition] || !o.manifest
	}
	return slices.DeleteFunc(chains, func(c *Chain) bool { return !stored[c.Partition] && len(c.Broken) == 0 }), err
}

// catalog is Catalog of objects that were listed; those whose ids skip names are passed
// over. A chain comes for each partition that has any object, also if that is a manifest
// or left out by o.Below.
func catalog(ctx context.Context, o CatalogOptions, cluster ID, objects []segmentObject, skip map[ID]bool) ([]*Chain, error) {
	ids, present := map[log.PartitionID]struct{}{}, map[ID]bool{}
	var look []segmentObject
	for _, c := range objects {
		ids[c.key.Partition] = struct{}{}
		if !c.manifest && o.Below > 0 && c.key.Base >= o.Below {
			present[c.key.ID] = true
			continue
		}
		look = append(look, c)
	}
	objects = look
	read := make([]ChainObject, len(objects))
	states := make([]*State, len(objects))
	errs := make([]error, len(objects))
	progress := AuditProgress{Listed: len(objects), Total: len(objects)}
	var mu sync.Mutex
	next, done := 0, make(chan struct{})
	var wg sync.WaitGroup
	for range min(o.Parallel, len(objects)) {
		wg.Go(func() {
			for {
				mu.Lock()
				i := next
				next++
				mu.Unlock()
				if i >= len(objects) || ctx.Err() != nil {
					return
				}
				if objects[i].manifest {
					states[i], errs[i] = readState(ctx, o.Store, objects[i].info)
				} else {
					read[i], errs[i] = describeObject(ctx, o.Store, objects[i], cluster)
				}
				done <- struct{}{}
			}
		})
	}
	go func() { wg.Wait(); close(done) }()
	for range done {
		if progress.Checked++; o.Progress != nil && (progress.Checked%16 == 0 || progress.Checked == progress.Total) {
			o.Progress(progress)
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}

	var chains []*Chain
	by := map[log.PartitionID][]ChainObject{}
	broken := map[log.PartitionID][]Finding{}
	manifests := map[log.PartitionID]int{}
	for i, c := range objects {
		id := c.key.Partition
		if err := errs[i]; err != nil {
			if !damaged(err) {
				return nil, fmt.Errorf("look at %s: %w", c.info.Key, err)
			}
			if c.manifest && errors.Is(err, ErrNotFound) {
				continue // a newer one has replaced it since the listing
			}
			f := Finding{Kind: FindingCorrupt, Partition: id, Base: c.key.Base, End: c.key.End, Key: c.info.Key, Bytes: c.info.Size, Err: err}
			if c.manifest {
				f.Kind = FindingManifest
			}
			broken[id] = append(broken[id], f)
			present[c.key.ID] = true
			continue
		}
		if c.manifest {
			if at, ok := manifests[id]; !ok || states[i].after(states[at]) {
				manifests[id] = i
			}
			continue
		}
		present[c.key.ID] = true
		by[id] = append(by[id], read[i])
	}
	for id := range ids {
		var recorded *State
		if at, ok := manifests[id]; ok {
			recorded = states[at]
		}
		c := &Chain{}
		if objects := by[id]; len(objects) > 0 {
			c = link(objects, func(o ID) bool { return skip[o] || recorded.gaveUp(o) })
		}
		c.Cluster, c.Partition = cluster, id
		c.Broken = append(c.Broken, broken[id]...)
		if recorded != nil {
			c.Manifest, c.Recorded = objects[manifests[id]].info.Key, recorded
			absent := slices.DeleteFunc(recorded.absent(id, o.Prefix, present), func(f Finding) bool { return o.Below > 0 && f.Base >= o.Below })
			c.Broken = slices.DeleteFunc(c.Broken, func(f Finding) bool { // the same in fewer words
				return f.Kind == FindingGap && slices.ContainsFunc(absent, func(a Finding) bool { return a.Base < f.End && a.End > f.Base })
			})
			c.Broken = append(c.Broken, absent...)
		}
		for i := range c.Broken {
			c.Broken[i].Partition = id
		}
		chains = append(chains, c)
	}
	slices.SortFunc(chains, func(x, y *Chain) int { return comparePartitions(x.Partition, y.Partition) })
	return chains, nil
}

// damaged says whether an error is of what is in an object, or that it is gone.
func damaged(err error) bool {
	return errors.Is(err, ErrCorrupt) || errors.Is(err, ErrInvalidObject) || errors.Is(err, ErrRange) || errors.Is(err, ErrNotFound) || isVersion(err)
}

// readState reads a manifest of which no checkpoint is at hand. It has a checksum of its
// own.
func readState(ctx context.Context, s ObjectStore, info ObjectInfo) (*State, error) {
	if info.Size <= 0 || info.Size > maxManifestBytes {
		return nil, fmt.Errorf("%w: manifest of %d bytes", ErrCorrupt, info.Size)
	}
	b, err := getRange(ctx, s, info.Key, 0, info.Size)
	if err != nil {
		return nil, err
	}
	return decodeState(b)
}

// after says whether a state is of a later moment than another of the same partition.
func (s *State) after(o *State) bool {
	return cmp.Or(cmp.Compare(s.Epoch(), o.Epoch()), cmp.Compare(s.seq, o.seq)) > 0
}

// gaveUp says whether an upload was given up, so that its object will be deleted.
func (s *State) gaveUp(id ID) bool {
	if s == nil {
		return false
	}
	i := s.findPending(id)
	return i >= 0 && s.pending[i].Deleting && !s.pending[i].Finished
}

// absent returns what is missing of the ranges of a state that may be of some time ago:
// objects go from the oldest on, so one that is gone after one that is there is lost. If
// none is there, it can't be told.
func (s *State) absent(id log.PartitionID, prefix string, present map[ID]bool) (found []Finding) {
	live := s.ranges[s.live:]
	first := slices.IndexFunc(live, func(r Range) bool { return present[r.ID] })
	for i, r := range live {
		if present[r.ID] || i < first {
			continue
		}
		f := Finding{Kind: FindingMissing, Partition: id, Base: max(r.Base, s.logStart), End: r.End, Key: r.key(id, prefix)}
		if first < 0 {
			f.Err = errors.New("or it was deleted since the manifest was written")
		}
		found = append(found, f)
	}
	return found
}

// describeObject reads an object's header and footer.
func describeObject(ctx context.Context, s ObjectStore, c segmentObject, cluster ID) (ChainObject, error) {
	size := c.info.Size
	if size < objectHeaderBytes+4+objectFooterBytes {
		return ChainObject{}, fmt.Errorf("%w: %d bytes", ErrInvalidObject, size)
	}
	b, err := s.GetRange(ctx, c.info.Key, 0, min(size, 4<<10))
	if err != nil {
		return ChainObject{}, err
	}
	n, err := objectHeaderLength(b)
	if err == nil && n > len(b) {
		if int64(n) > size {
			return ChainObject{}, fmt.Errorf("%w: header of %d bytes in an object of %d", ErrInvalidObject, n, size)
		}
		b, err = s.GetRange(ctx, c.info.Key, 0, int64(n))
	}
	if err != nil {
		return ChainObject{}, err
	}
	h, err := parseObjectHeader(b)
	if err != nil {
		return ChainObject{}, err
	}
	foot, err := s.GetRange(ctx, c.info.Key, size-objectFooterBytes, objectFooterBytes)
	if err != nil {
		return ChainObject{}, err
	}
	tail, err := objectTailLength(foot)
	if err != nil {
		return ChainObject{}, err
	}
	k := c.key
	if h.Cluster != cluster || h.Partition != k.Partition || h.ID != k.ID || h.Base != k.Base || h.End != k.End || h.Epoch != k.Epoch || ID(foot[32:48]) != k.ID || tail > size {
		return ChainObject{}, fmt.Errorf("%w: it is not what its key says", ErrInvalidObject)
	}
	return ChainObject{
		Key: c.info.Key, ID: h.ID, Base: h.Base, End: h.End, Epoch: h.Epoch, Sealed: time.UnixMilli(h.SealedMs), Bytes: size,
		predecessor: h.Predecessor, lineage: h.Lineage, tailBytes: tail,
	}, nil
}

func (o *ChainObject) lastEpoch() log.Epoch {
	if n := len(o.lineage); n > 0 {
		return o.lineage[n-1].Epoch
	}
	return -1
}

// link finds the row of objects that ends with the newest one. Those that skip names are
// spare.
func link(objects []ChainObject, skip func(ID) bool) *Chain {
	byID := map[ID]*ChainObject{}
	var tip *ChainObject
	for i := range objects {
		o := &objects[i]
		if skip(o.ID) {
			continue
		}
		byID[o.ID] = o
		if tip == nil {
			tip = o
		} else if c := cmp.Or(cmp.Compare(o.lastEpoch(), tip.lastEpoch()), cmp.Compare(o.End, tip.End), cmp.Compare(o.Epoch, tip.Epoch)); c > 0 {
			tip = o
		}
	}
	c := &Chain{}
	used := map[ID]bool{}
	if tip == nil {
		for _, o := range objects {
			c.Spare = append(c.Spare, o.Key)
		}
		return c
	}
	for at := tip; ; {
		used[at.ID] = true
		c.Objects = append(c.Objects, *at)
		below := byID[at.predecessor]
		// A predecessor ends where this one begins, or inside its first batch when a
		// log start had cut it.
		if below == nil || used[below.ID] || below.End < at.Base || below.Base >= at.Base {
			break
		}
		at = below
	}
	slices.Reverse(c.Objects)
	gap := log.Offset(-1)
	for i := range objects {
		if o := &objects[i]; !used[o.ID] {
			c.Spare = append(c.Spare, o.Key)
			if o.End <= c.Start() {
				gap = max(gap, o.End)
			}
		}
	}
	if gap >= 0 && gap < c.Start() && c.Objects[0].predecessor != (ID{}) {
		c.Broken = append(c.Broken, Finding{Kind: FindingGap, Base: gap, End: c.Start()})
	}
	return c
}

// RestoreOptions configure [Chain.Restore].
type RestoreOptions struct {
	// Store has the objects.
	Store ObjectStore

	// From is the log start to be: no record below it is readable in the restored log.
	// 0 means the start of the chain, and so does anything below that.
	From log.Offset

	// To is the offset to stop at: no record at or above it is restored. It is rounded
	// down to a batch. 0 means the end of the chain.
	To log.Offset

	// Progress, if set, is called after each chunk.
	Progress func(RestoreProgress)
}

// RestoreProgress is how far [Chain.Restore] has come.
type RestoreProgress struct {
	End   log.Offset // restored up to here
	Bytes int64      // of batches
}

// Restore writes the chain's records into l, which must be empty, with their
// offsets, epochs and times, and returns the offset after the last one when they are
// durable. Every batch is checked. The log then has the chain's start, or From, as its
// log start, and its producers as the batches leave them. It may be of another topic
// id: so what was deleted comes back under a name of its own, while its objects are
// kept ([Options].BackupWindow).
//
// Errors: a log that is not empty; log.ErrOffsetOutOfRange for a From above the chain; those of the store and of l. What was restored
// before stays in l; [log.Log.Reset] empties it.
func (c *Chain) Restore(ctx context.Context, l *log.Log, o RestoreOptions) (log.Offset, error) {
	if len(c.Objects) == 0 {
		return 0, fmt.Errorf("tier: restore of partition %v: %w: it has no intact object", c.Partition, ErrNotFound)
	}
	if l.Start() != l.End() {
		return 0, fmt.Errorf("tier: restore of partition %v: the log has records from %d to %d", c.Partition, l.Start(), l.End())
	}
	var progress RestoreProgress
	fresh := true
	at := max(c.Start(), o.From)
	if o.From > c.Start() && (at >= c.End() || o.To > 0 && at >= o.To) {
		return 0, fmt.Errorf("tier: restore of partition %v from %d to %d: %w: the chain has [%d, %d)",
			c.Partition, o.From, o.To, log.ErrOffsetOutOfRange, c.Start(), c.End())
	}
	start := at
	// begin empties the log where the first batch does, at most there where the log
	// shall; what came before is known by its epochs only.
	begin := func(at log.Offset, epochs []log.EpochStart) error {
		fresh = false
		n := slices.IndexFunc(epochs, func(e log.EpochStart) bool { return e.Start >= at })
		if n < 0 {
			n = len(epochs)
		}
		if err := l.Reset(ctx, at, epochs[:n], nil); err != nil {
			return err
		}
		return l.TrimTo(ctx, at)
	}
	err := c.walk(ctx, o.Store, at, o.To, func(b []byte, end log.Offset, epochs []log.EpochStart) error {
		if fresh {
			first, _, err := record.Next(b, maxBatchBytes)
			if err != nil {
				return err
			}
			if err := begin(first.BaseOffset(), epochs); err != nil {
				return err
			}
		}
		if _, err := l.AppendReplicated(b); err != nil {
			return err
		}
		at = end
		progress.End, progress.Bytes = at, progress.Bytes+int64(len(b))
		if o.Progress != nil {
			o.Progress(progress)
		}
		return nil
	})
	if err == nil && fresh {
		err = begin(at, nil)
	}
	if err != nil {
		return at, err
	}
	if _, err := l.Sync(ctx); err != nil {
		return at, err
	}
	if start > l.Start() {
		return at, l.TrimTo(ctx, start)
	}
	return at, nil
}

// Read gives the chain's batches from the one that holds from on, checked, in order
// and chunk by chunk; they are the callee's only during its call. A from below the
// chain counts as its start; one at or above its end gives nothing. It returns the
// first error of fn or the store, and a [*CorruptionError] for a chunk that fails
// its check.
func (c *Chain) Read(ctx context.Context, s ObjectStore, from log.Offset, fn func(batches []byte) error) error {
	return c.walk(ctx, s, from, 0, func(b []byte, _ log.Offset, _ []log.EpochStart) error { return fn(b) })
}

// walk visits the batches of [from, to) that are whole in it, but the first one may
// begin below from. epochs is the epoch chain of the object that the batches are in.
func (c *Chain) walk(ctx context.Context, s ObjectStore, from, to log.Offset, visit func(b []byte, end log.Offset, epochs []log.EpochStart) error) error {
	at := from
	for n := range c.Objects {
		object := &c.Objects[n]
		if object.End <= at || to > 0 && object.Base >= to {
			continue
		}
		b, err := getRange(ctx, s, object.Key, object.Bytes-object.tailBytes, object.tailBytes)
		if err != nil {
			return err
		}
		t, err := parseObjectTail(b)
		if err != nil {
			return &CorruptionError{Key: object.Key, Offset: object.Bytes - object.tailBytes, Err: err}
		}
		for i := range t.chunks {
			ch := &t.chunks[i]
			if ch.end <= at || to > 0 && ch.base >= to {
				continue
			}
			b, err := getRange(ctx, s, object.Key, ch.pos, int64(ch.stored))
			if err != nil {
				return err
			}
			if b, err = ch.unpack(b); err == nil {
				err = checkBatches(b, ch.base, ch.end)
			}
			if err != nil {
				return &CorruptionError{Key: object.Key, Offset: ch.pos, Err: err}
			}
			b, end := within(b, at, to)
			if len(b) == 0 {
				continue
			}
			if err := visit(b, end, t.epochs); err != nil {
				return err
			}
			at = end
		}
	}
	return nil
}

func getRange(ctx context.Context, s ObjectStore, key string, off, n int64) ([]byte, error) {
	b, err := s.GetRange(ctx, key, off, n)
	if err == nil && int64(len(b)) != n {
		err = fmt.Errorf("%w: %d bytes of %d", ErrCorrupt, len(b), n)
	}
	if err != nil {
		return nil, fmt.Errorf("read %d bytes at %d of %s: %w", n, off, key, err)
	}
	return b, nil
}

// within returns the batches of b from the one that holds from on, as far as they
// end at or below to (0: all), and where they end. Requires: checkBatches passed b.
func within(b []byte, from, to log.Offset) ([]byte, log.Offset) {
	lo, hi, end := 0, 0, from
	for at := 0; at < len(b); {
		batch, _, err := record.Next(b[at:], maxBatchBytes)
		if err != nil || to > 0 && batch.NextOffset() > to {
			break
		}
		at += batch.Size()
		if batch.NextOffset() <= from {
			lo = at
		}
		hi, end = at, max(end, batch.NextOffset())
	}
	if hi <= lo {
		return nil, from
	}
	return b[lo:hi], end
}
