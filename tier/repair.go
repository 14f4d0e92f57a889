package tier

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"iter"
	"maps"
	"path"
	"slices"
	"time"

	"github.com/cordwood-io/cordwood/log"
)

// A StateDir is where a node keeps its file of states: [Options].StateFS and StateDir.
type StateDir struct {
	FS  log.FS
	Dir string
}

// RepairOptions configure [Repair].
type RepairOptions struct {
	// Store and Prefix say where the objects are. Nothing is written there.
	Store  ObjectStore
	Prefix string

	// Cluster is whose prefix it must be. Zero: that of the owner object.
	Cluster ID

	// Events are the committed events of the tier log, as in [AuditOptions].
	Events iter.Seq2[Committed, error]

	// Nodes are where the nodes keep their files of states. The nodes must be stopped:
	// their files are read, and replaced.
	Nodes []StateDir

	// LogStart, if set, returns the highest log start that a replica's local log has;
	// false if there is none. The local log starts follow that of the tier, so this is
	// better than what the objects say: they are kept for a while after they were deleted.
	// An error ends Repair.
	LogStart func(log.PartitionID) (start log.Offset, ok bool, err error)

	// DryRun looks and replaces nothing.
	DryRun bool
}

// A RepairReport is what [Repair] found and did.
type RepairReport struct {
	Partitions []Repaired // whose state the tier log does not tell; none if all is well
	Written    int        // files of states
}

// A Repaired is a partition whose state the tier log does not tell any more.
type Repaired struct {
	Partition log.PartitionID
	Missing   string // key of the manifest that its last checkpoint names
	Reason    error  // why that can't be read

	// What the new state was built from: the state that a node has kept (Kept), or else an
	// older manifest, "" if there is none that can be read, and so many objects.
	Kept     bool
	Manifest string
	Objects  int

	// Err says why no state could be built, nil if one was. As long as there is one
	// nothing is written, and the partition stays unknown.
	Err error

	LogStart, TierEnd log.Offset // of the new state
	Findings          []Finding  // what the store lacks of it
}

// errNothingTells: an empty state would be a guess.
var errNothingTells = errors.New("tier: neither an object nor a manifest nor a local log tells of it")

// Repair is the way back when what the last checkpoint of a partition names can't be
// read, and the tier log has been trimmed below it, so that no node knows the state after
// a restart: [Partition.Status] and [FindingManifest] say so. The state is taken from a
// node that has kept it in its file; else it is built anew from the newest older manifest,
// the headers and tails of the objects in the store, the events after the checkpoint, and
// the log starts of the local logs. Then each node gets a file of states with it, and
// starts from there; the next leader writes a checkpoint at once, which tells those that
// were not there.
//
// What was built may differ from what was lost: records whose deletion only the lost
// state knew may be readable again, unless LogStart says better, and objects of uploads
// that did not finish are orphans, for a sweep. What lies below the log start is kept for
// [DefaultBackupWindow]. Findings tell what can't be read. A node that still has the true state
// but was not in Nodes stops at the next checkpoint, and must lose its file of states.
//
// All nodes of the cluster must be stopped and in Nodes; or those that are away come
// back without their files of states. Repair can be called again. If nothing is missing
// nothing is written. It takes two requests an object of such a partition, one by one.
//
// Errors: [ErrForeignStore]; those of events that can't be read, of the store, and of
// writing the files, some of which are new then. ctx ends it.
//
// Source: our own.
func Repair(ctx context.Context, o RepairOptions) (*RepairReport, error) {
	r := &repair{o: o, report: &RepairReport{}}
	if err := r.run(ctx); err != nil {
		return nil, fmt.Errorf("tier: repair: %w", err)
	}
	return r.report, nil
}

type repair struct {
	o        RepairOptions
	report   *RepairReport
	audit    audit
	kept     map[log.PartitionID]*State // the newest that a node has
	keepTime time.Time                  // until when objects below the log start are kept
}

func (r *repair) run(ctx context.Context) error {
	cluster, err := readOwner(ctx, r.o.Store, r.o.Prefix, r.o.Cluster)
	if err != nil {
		return err
	}
	if err := r.readFiles(cluster); err != nil {
		return err
	}
	a := &r.audit
	a.o, a.report = AuditOptions{Store: r.o.Store, Prefix: r.o.Prefix, Events: r.o.Events}, &AuditReport{}
	if err := a.replay(ctx); err != nil {
		return err
	}
	for id, l := range a.lost {
		kept := r.kept[id]
		if kept == nil || kept.newer(l.checkpoint) {
			continue
		}
		s := kept.Clone()
		for _, e := range l.held {
			s.Apply(e) // those that it knows do nothing
		}
		a.states[id] = s
		delete(a.lost, id)
		r.report.Partitions = append(r.report.Partitions, Repaired{
			Partition: id, Missing: l.key, Reason: l.err, Kept: true, LogStart: s.logStart, TierEnd: s.tierEnd, Findings: s.continuity(id, r.o.Prefix),
		})
	}
	if err := r.rebuild(ctx, cluster); err != nil {
		return err
	}
	slices.SortFunc(r.report.Partitions, func(x, y Repaired) int { return comparePartitions(x.Partition, y.Partition) })
	// A node takes a partition that is not in its file for one that nothing is known of
	// because there is nothing: so the file is of all or there is none.
	if r.o.DryRun || len(r.report.Partitions) == 0 || slices.ContainsFunc(r.report.Partitions, func(p Repaired) bool { return p.Err != nil }) {
		return nil
	}
	return r.writeFiles(cluster)
}

// readFiles reads what the nodes have kept.
func (r *repair) readFiles(cluster ID) error {
	r.kept = map[log.PartitionID]*State{}
	for _, n := range r.o.Nodes {
		b, err := readFile(n.FS, path.Join(n.Dir, stateFileName), maxStateFile)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrCorrupt) {
			continue
		}
		if err != nil {
			return err
		}
		_, states, err := parseStateFile(b, cluster)
		if err != nil {
			continue // as at a start, which reads the tier log instead
		}
		for _, s := range states {
			if have := r.kept[s.id]; have == nil || s.state.after(have) {
				r.kept[s.id] = s.state
			}
		}
	}
	return nil
}

// rebuild builds the states that are lost.
func (r *repair) rebuild(ctx context.Context, cluster ID) error {
	a := &r.audit
	if len(a.lost) == 0 {
		return nil
	}
	skip := map[ID]bool{}
	for _, l := range a.lost {
		for _, e := range l.held {
			switch b := e.Body.(type) {
			case CopyStarted:
				skip[b.ID] = true
			case CopyFinished:
				delete(skip, b.ID)
			}
		}
	}
	objects, err := listSegments(ctx, r.o.Store, r.o.Prefix, listPrefix(r.o.Prefix))
	if err != nil {
		return err
	}
	objects = slices.DeleteFunc(objects, func(o segmentObject) bool { return a.lost[o.key.Partition] == nil })
	present := map[ID]bool{}
	for _, o := range objects {
		present[o.key.ID] = true
	}
	chains, err := catalog(ctx, CatalogOptions{Store: r.o.Store, Prefix: r.o.Prefix, Parallel: 8}, cluster, objects, skip)
	if err != nil {
		return err
	}
	r.keepTime = time.UnixMilli(time.Now().Add(DefaultBackupWindow).UnixMilli())
	for id, l := range a.lost {
		c := &Chain{Partition: id}
		if i := slices.IndexFunc(chains, func(c *Chain) bool { return c.Partition == id }); i >= 0 {
			c = chains[i]
		}
		s, p, err := r.build(ctx, l, c, present)
		if err != nil {
			return fmt.Errorf("partition %v: %w", id, err)
		}
		if p.Err == nil {
			s.opened, s.epoch, s.seq, s.manifest = true, a.states[id].epoch, a.states[id].seq, l.checkpoint.Body.(Checkpoint).Manifest
			// What only this node's release takes for a state must not reach the others.
			if _, err := decodeState(s.encode(nil)); err != nil {
				return fmt.Errorf("partition %v: the objects make no state: %w", id, err)
			}
			a.states[id] = s
		}
		r.report.Partitions = append(r.report.Partitions, p)
	}
	return nil
}

// build makes a state from what is left.
func (r *repair) build(ctx context.Context, l *lostState, c *Chain, present map[ID]bool) (*State, Repaired, error) {
	p := Repaired{Partition: c.Partition, Missing: l.key, Reason: l.err, Manifest: c.Manifest}
	local, ok := log.Offset(0), false
	if r.o.LogStart != nil {
		var err error
		if local, ok, err = r.o.LogStart(c.Partition); err != nil {
			return nil, p, err
		}
	}
	s, base := &State{}, c.Recorded
	if kept := r.kept[c.Partition]; kept != nil && (base == nil || kept.after(base)) {
		p.Kept, p.Manifest, base = true, "", kept // of before the checkpoint
	}
	if base != nil {
		s = base.Clone()
	}
	for _, f := range c.Broken {
		if f.Kind == FindingCorrupt {
			p.Findings = append(p.Findings, f)
		}
	}
	for i := range c.Objects {
		if err := r.addObject(ctx, s, &c.Objects[i], &p); err != nil {
			return nil, p, err
		}
	}
	start := s.logStart
	switch {
	case ok:
		start = max(start, local)
	case base == nil && len(s.ranges) == 0:
		p.Err = errNothingTells
		return nil, p, nil
	case base == nil:
		start = s.ranges[0].Base
	}
	s.moveLogStart(LogStart{Start: start, Until: r.keepTime})
	for _, e := range l.held {
		s.recall(e)
	}
	// Ranges below the log start whose objects are gone were deleted since the manifest.
	gone := 0
	s.ranges = slices.DeleteFunc(s.ranges, func(x Range) bool {
		if x.End > s.logStart || present[x.ID] {
			return false
		}
		delete(s.held, x.ID)
		gone++
		return true
	})
	s.live -= gone
	for _, x := range s.ranges[s.live:] {
		if !present[x.ID] {
			p.Findings = append(p.Findings, Finding{Kind: FindingMissing, Partition: c.Partition, Base: max(x.Base, s.logStart), End: x.End, Key: x.key(c.Partition, r.o.Prefix)})
		}
	}
	p.Findings = append(p.Findings, s.continuity(c.Partition, r.o.Prefix)...)
	p.LogStart, p.TierEnd = s.logStart, s.tierEnd
	return s, p, nil
}

// addObject makes a range of an object, unless the state has it.
func (r *repair) addObject(ctx context.Context, s *State, o *ChainObject, p *Repaired) error {
	if _, held := s.held[o.ID]; held {
		p.Objects++
		return nil
	}
	if i := s.findPending(o.ID); i >= 0 {
		if s.pending[i].Deleting {
			return nil
		}
		s.pending = slices.Delete(s.pending, i, i+1) // it has been finished since
	}
	if len(s.ranges) > 0 && o.End <= s.tierEnd {
		return nil
	}
	x, err := describeRange(ctx, r.o.Store, o)
	if err == nil && !continues(s.lineage, o.lineage) {
		err = fmt.Errorf("%w: its epochs don't continue those below it", ErrInvalidObject)
	}
	if damaged(err) {
		p.Findings = append(p.Findings, Finding{Kind: FindingCorrupt, Partition: p.Partition, Base: o.Base, End: o.End, Key: o.Key, Bytes: o.Bytes, Err: err})
		return nil
	}
	if err != nil {
		return err
	}
	s.ranges = append(s.ranges, x)
	if s.held == nil {
		s.held = map[ID]struct{}{}
	}
	s.held[x.ID] = struct{}{}
	s.liveBytes += x.BatchBytes
	s.tierEnd = x.End
	s.extendLineage(o.lineage)
	p.Objects++
	return nil
}

// recall does to a state that was built what an event says which came after the lost
// one, as far as the state knows of what.
func (s *State) recall(e Event) {
	switch b := e.Body.(type) {
	case CopyStarted:
		s.copyStarted(e.Epoch, b)
	case CopyFinished: // what it made is known by the object
		s.pending = slices.DeleteFunc(s.pending, func(p Pending) bool { return p.ID == b.ID })
	case DeleteStarted:
		for _, id := range b.IDs {
			s.deleteStarted(DeleteStarted{IDs: []ID{id}})
		}
	case DeleteFinished:
		s.pending = slices.DeleteFunc(s.pending, func(p Pending) bool { return p.Deleting && slices.Contains(b.IDs, p.ID) })
	case LogStart:
		s.moveLogStart(b)
	case Deleted:
		s.opened = true // Apply's is the one place that says what is then
		s.epoch, s.seq = e.Epoch, e.Seq-1
		s.Apply(e)
	}
}

// describeRange reads header and tail of an object and returns the range that it is, as
// CopyFinished told it.
func describeRange(ctx context.Context, s ObjectStore, o *ChainObject) (Range, error) {
	tail, err := getRange(ctx, s, o.Key, o.Bytes-o.tailBytes, o.tailBytes)
	if err != nil {
		return Range{}, err
	}
	t, err := parseObjectTail(tail)
	if err != nil {
		return Range{}, err
	}
	header, err := getRange(ctx, s, o.Key, 0, int64(t.headerBytes))
	if err != nil {
		return Range{}, err
	}
	last := t.chunks[len(t.chunks)-1]
	if t.id != o.ID || t.base != o.Base || t.end != o.End || last.pos+int64(last.stored) != o.Bytes-o.tailBytes {
		return Range{}, fmt.Errorf("%w: it is not what its header says", ErrInvalidObject)
	}
	newest := t.chunks[0].maxTimestampMs
	sum := crc32.Checksum(header, castagnoli)
	for i := range t.chunks {
		newest = max(newest, t.chunks[i].maxTimestampMs)
		sum = appendSum(sum, t.chunks[i].sum, int64(t.chunks[i].stored))
	}
	return Range{
		ID: o.ID, Base: o.Base, End: o.End, Epoch: o.Epoch, CRC32C: appendSum(sum, crc32.Checksum(tail, castagnoli), o.tailBytes),
		BatchBytes: t.batchBytes, ObjectBytes: o.Bytes, TailBytes: o.tailBytes,
		maxTimestampMs: max(0, min(newest, maxTimeMillis)), sealedMs: o.Sealed.UnixMilli(),
	}, nil
}

// appendSum returns the CRC32C of bytes with checksum a followed by n bytes with
// checksum b. A checksum is linear: a goes through n zero bytes, which is a matrix to
// the power of 8n, and then b is added.
func appendSum(a, b uint32, n int64) uint32 {
	times := func(m *[32]uint32, v uint32) (r uint32) {
		for i := 0; v != 0; i, v = i+1, v>>1 {
			if v&1 != 0 {
				r ^= m[i]
			}
		}
		return r
	}
	var m [32]uint32 // one zero bit
	m[0] = crc32.Castagnoli
	for i := 1; i < 32; i++ {
		m[i] = 1 << (i - 1)
	}
	for bits := 8 * n; bits > 0; bits >>= 1 {
		if bits&1 != 0 {
			a = times(&m, a)
		}
		var square [32]uint32
		for i := range square {
			square[i] = times(&m, m[i])
		}
		m = square
	}
	return a ^ b
}

// writeFiles gives each node all states as of the end of the tier log.
func (r *repair) writeFiles(cluster ID) error {
	a := &r.audit
	f := newStateFile(cluster, a.end)
	for _, id := range slices.SortedFunc(maps.Keys(a.states), comparePartitions) {
		n := a.notes[id]
		if n == nil {
			continue // nothing of it is needed
		}
		since := n.since
		if slices.ContainsFunc(r.report.Partitions, func(p Repaired) bool { return p.Partition == id }) {
			since = overdue
		}
		f.add(savedState{id, n.pin, since, a.states[id]})
	}
	b := f.finish()
	for _, n := range r.o.Nodes {
		if err := writeFile(n.FS, n.Dir, stateFileName, b); err != nil {
			return err
		}
		r.report.Written++
	}
	return nil
}

// overdue is a number of events after which every leader writes a checkpoint at once.
const overdue = 1 << 30
