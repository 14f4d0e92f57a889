package tier

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/record"
)

// AuditDepth says how much of each object an audit looks at.
type AuditDepth uint8

// The depths. Each includes those before it.
const (
	AuditNames AuditDepth = iota // keys and sizes: no request per object
	AuditTails                   // headers, indexes and footers: two reads per object
	AuditBytes                   // everything: each object is read whole, and each batch checked
)

// AuditOptions configure [Audit]. Store and Events are required.
type AuditOptions struct {
	// Store and Prefix say where the objects are. Nothing is written.
	Store  ObjectStore
	Prefix string

	// Cluster is whose prefix it must be. Zero: that of the owner object.
	Cluster ID

	// Events are the committed events of the tier log, from its start to its end; the
	// iterator must end there, as that of [ReadToEnd] does. They are read after the store
	// has been listed: an object is in the store only after the event that announces it
	// is committed, so what the events then do not know is nobody's. If an object that
	// they name is not there, they are read again: a cluster that is at work may have
	// deleted it by right since. An iterator that can be used once only makes it a finding.
	Events iter.Seq2[Committed, error]

	// Deleted, if set, says of a topic whether this cluster has deleted it. An object of
	// such a topic of which the tier log does not speak any more is an orphan: it was
	// written so long after its writer had given up that the last listing did not find it.
	// And objects that are not there of such a topic are no finding: nobody reads them.
	Deleted func(log.TopicID) bool

	// Depth is how much of each object is read. Default [AuditNames].
	Depth AuditDepth

	// Parallel is how many objects are read at once. Default 8. Each takes memory for
	// one chunk.
	Parallel int

	// Progress, if set, is called now and then, from the goroutine of Audit.
	Progress func(AuditProgress)
}

// AuditProgress is how far an audit has come.
type AuditProgress struct {
	Listed  int   // objects
	Events  int   // read
	Checked int   // objects looked into
	Total   int   // objects to look into, when Listed is final
	Bytes   int64 // read of objects
}

// A FindingKind is what is wrong.
type FindingKind uint8

// The kinds of findings.
const (
	FindingMissing  FindingKind = iota + 1 // the state has a range whose object is not there: records are lost
	FindingCorrupt                         // an object is not what the state says, or fails a check: records are lost
	FindingGap                             // offsets between log start and tier end that no range holds: records are lost
	FindingOverlap                         // offsets that two ranges hold
	FindingOrphan                          // an object that the state does not know, of a partition that it knows or a topic that was deleted
	FindingForeign                         // an object of a partition that the tier log does not know
	FindingEvent                           // an event that no state could take: two writers, or a damaged log
	FindingManifest                        // the object with the state of a partition's last checkpoint is not there, or damaged
)

var findingNames = [...]string{"", "missing", "corrupt", "gap", "overlap", "orphan", "foreign", "event", "manifest"}

// String names the kind.
func (k FindingKind) String() string {
	if int(k) < len(findingNames) && k > 0 {
		return findingNames[k]
	}
	return fmt.Sprintf("FindingKind(%d)", uint8(k))
}

// Loss says whether records can't be read.
func (k FindingKind) Loss() bool {
	return k == FindingMissing || k == FindingCorrupt || k == FindingGap
}

// A Finding is one thing that is wrong.
type Finding struct {
	Kind      FindingKind
	Partition log.PartitionID
	Base, End log.Offset // the offsets concerned, [Base, End)
	Key       string     // of the object, "" if there is none
	Bytes     int64      // of the object, if it is in the store
	Err       error      // more about it, or nil
}

// String describes it in one line.
func (f Finding) String() string {
	s := fmt.Sprintf("%v: partition %v, offsets [%d, %d)", f.Kind, f.Partition, f.Base, f.End)
	if f.Key != "" {
		s += ", object " + f.Key
	}
	if f.Err != nil {
		s += ": " + f.Err.Error()
	}
	return s
}

// An AuditReport is what [Audit] found.
type AuditReport struct {
	Cluster    ID
	Events     int
	Partitions int   // that the tier log speaks of
	Ranges     int   // finished, above the log start
	Bytes      int64 // of batches in them
	Objects    int   // segment objects in the store
	Others     int   // objects that are no segments: the owner's and the like
	Pending    int   // uploads and deletions that have not finished; their objects may be there or not
	Expired    int   // ranges below the log start whose deletion is due and has not begun
	Backup     int   // ranges that were deleted and whose objects are kept a while, see [Options].BackupWindow
	Findings   []Finding
}

// Clean says whether nothing was found.
func (r *AuditReport) Clean() bool { return len(r.Findings) == 0 }

// Audit compares what the tier log says with what is in the store, and changes
// nothing. It holds all states and the keys of all objects in memory, about 300
// bytes an object. It blocks until it is done; ctx ends it.
//
// It returns a report, or an error if it could not be made: [ErrForeignStore] if
// the prefix is another cluster's, an event that can't be read ([ErrInvalidEvent],
// [*VersionError]), and errors of the store other than a missing object. What a cluster
// at work does meanwhile is no finding: an upload, a deletion, a checkpoint. Only a
// manifest that is not named yet, or not deleted yet, can be found as an orphan then: what
// another audit does not find again is none.
//
// Source: the scrubber of Redpanda; its use as an oracle is our own.
func Audit(ctx context.Context, o AuditOptions) (*AuditReport, error) {
	if o.Store == nil || o.Events == nil {
		return nil, errors.New("tier: AuditOptions need Store and Events")
	}
	if o.Parallel <= 0 {
		o.Parallel = 8
	}
	a := &audit{o: o, report: &AuditReport{}}
	if err := a.run(ctx); err != nil {
		return nil, err
	}
	return a.report, nil
}

type audit struct {
	o        AuditOptions
	report   *AuditReport
	progress AuditProgress
	objects  map[string]ObjectInfo // segment objects and manifests
	states   map[log.PartitionID]*State
	lost     map[log.PartitionID]*lostState
	notes    map[log.PartitionID]*pinNote
	end      log.Offset       // of the events
	looked   map[string]error // objects that were looked into, and what is wrong with them
	gone     map[string]bool  // objects that the events name and that are not there
}

// A lostState is what is known of a state whose manifest can't be read.
type lostState struct {
	key        string  // of the manifest
	err        error   // of reading it
	checkpoint Event   // that names it
	held       []Event // that were taken after it
}

// A pinNote is what a file of states has beside a state; see [ledger].
type pinNote struct {
	pin   log.Offset
	since int
}

func (a *audit) run(ctx context.Context) error {
	var err error
	if a.report.Cluster, err = readOwner(ctx, a.o.Store, a.o.Prefix, a.o.Cluster); err != nil {
		return err
	}
	if err := a.list(ctx); err != nil {
		return err
	}
	listed := *a.report
	if err := a.replay(ctx); err != nil {
		return err
	}
	if err := a.compare(ctx); err != nil {
		return err
	}
	for pass := 1; len(a.gone) > 0; pass++ {
		again, report := *a, listed
		again.report, again.end = &report, 0
		if err := again.replay(ctx); err != nil {
			return err
		}
		if again.end <= a.end {
			break // nothing has happened, or the events can be read once only
		}
		if pass == auditPasses {
			a.settle(&again)
			break
		}
		if err := again.compare(ctx); err != nil {
			return err
		}
		// What was missing before, and what is named after that, is missing.
		known := a.gone
		*a = again
		if !slices.ContainsFunc(slices.Collect(maps.Keys(a.gone)), func(key string) bool { return !known[key] }) {
			break
		}
	}
	return nil
}

// auditPasses is how often the events are read again for objects that are not there. One
// does for each object; more are for those that others delete during that one. The last
// only says what is still named.
const auditPasses = 8

// settle takes back what was found missing and is not named by later events.
func (a *audit) settle(later *audit) {
	named := map[string]bool{}
	for id, s := range later.states {
		if s.manifest != (ID{}) {
			named[ManifestKey(a.o.Prefix, id, s.manifest)] = true
		}
		for _, r := range s.ranges[s.live:] {
			named[r.key(id, a.o.Prefix)] = true
		}
	}
	a.report.Findings = slices.DeleteFunc(a.report.Findings, func(f Finding) bool {
		return a.gone[f.Key] && a.lost[f.Partition] == nil && later.lost[f.Partition] == nil && !named[f.Key]
	})
}

// readOwner returns whose prefix it is.
func readOwner(ctx context.Context, s ObjectStore, prefix string, want ID) (ID, error) {
	key := OwnerKey(prefix)
	b, err := s.GetRange(ctx, key, 0, ownerBytes)
	if err != nil {
		return ID{}, fmt.Errorf("owner of the store: %w", err)
	}
	id, err := parseOwner(b)
	if err != nil {
		return ID{}, fmt.Errorf("%s: %w", key, err)
	}
	if want != (ID{}) && id != want {
		return ID{}, fmt.Errorf("%w: %s names cluster %v, not %v", ErrForeignStore, key, id, want)
	}
	return id, nil
}

func (a *audit) tell() {
	if a.o.Progress != nil {
		a.o.Progress(a.progress)
	}
}

// listPrefix is what all keys of a prefix begin with.
func listPrefix(prefix string) string {
	if prefix == "" {
		return ""
	}
	return prefix + "/"
}

func (a *audit) list(ctx context.Context) error {
	a.objects = map[string]ObjectInfo{}
	for info, err := range a.o.Store.List(ctx, listPrefix(a.o.Prefix), "") {
		if err != nil {
			return fmt.Errorf("list the store: %w", err)
		}
		_, ok := ParseKey(a.o.Prefix, info.Key)
		if ok {
			a.report.Objects++
		} else {
			a.report.Others++
			if _, _, manifest := parseManifestKey(a.o.Prefix, info.Key); !manifest {
				continue
			}
		}
		a.objects[info.Key] = info
		if a.progress.Listed++; a.progress.Listed%1000 == 0 {
			a.tell()
		}
	}
	return nil
}

func (a *audit) replay(ctx context.Context) error {
	a.states, a.lost = map[log.PartitionID]*State{}, map[log.PartitionID]*lostState{}
	a.notes = map[log.PartitionID]*pinNote{}
	first, tentative := true, false
	for c, err := range a.o.Events {
		if err != nil {
			return fmt.Errorf("read the tier log: %w", err)
		}
		if first {
			// Of a tier log that was trimmed the checkpoints tell what came before.
			first, tentative = false, c.Offset > 0
		}
		a.end = c.Offset + 1
		if c.Event == nil {
			continue
		}
		e, err := DecodeEvent(c.Event)
		if err != nil {
			return fmt.Errorf("tier log at offset %d: %w", c.Offset, err)
		}
		s := a.states[e.Partition]
		if s == nil {
			s = &State{}
			a.states[e.Partition] = s
		}
		a.report.Events++
		if a.notes[e.Partition] == nil && (s.opened || e.Seq == 0) {
			a.notes[e.Partition] = &pinNote{pin: c.Offset}
		}
		cp, ok := e.Body.(Checkpoint)
		if ok && tentative && s.newer(e) {
			a.notes[e.Partition] = &pinNote{pin: c.Offset}
			delete(a.lost, e.Partition)
			if err := a.load(ctx, s, e, cp); err != nil {
				return fmt.Errorf("tier log at offset %d: %w", c.Offset, err)
			}
			continue
		}
		if _, ok := e.Body.(Forgotten); ok && tentative && s.newer(e) {
			// Its word counts, whatever there was before.
			*s = State{opened: true, deleted: true, epoch: e.Epoch, seq: e.Seq}
			delete(a.lost, e.Partition)
			delete(a.notes, e.Partition)
			continue
		}
		v := s.Apply(e)
		if l := a.lost[e.Partition]; l != nil && v.Taken() {
			l.held = append(l.held, e)
		}
		if n := a.notes[e.Partition]; n != nil {
			switch {
			case ok && v == Applied:
				*n = pinNote{pin: c.Offset}
			case v == Applied && e.Body.kind() == kindForgotten:
				delete(a.notes, e.Partition)
			case v.Taken() && e.Seq > 0:
				n.since++
			}
		}
		switch v {
		case RefusedGap, RefusedLineage, RefusedID, RefusedPartition, RefusedState:
			if tentative || s.outrun(e) || s.deleted && (v == RefusedID || v == RefusedState) {
				continue // what came before it is not there, the log start came before it, or two nodes clear up
			}
			a.find(Finding{Kind: FindingEvent, Partition: e.Partition, Err: fmt.Errorf("event at offset %d of the tier log: %v", c.Offset, v)})
		}
		if a.progress.Events++; a.progress.Events%1000 == 0 {
			a.tell()
		}
	}
	a.report.Partitions = len(a.states)
	return nil
}

// load makes s the state of a checkpoint. If that is in a manifest which can't be read,
// the partition is lost until a later checkpoint comes: an older manifest is gone by right.
func (a *audit) load(ctx context.Context, s *State, e Event, cp Checkpoint) error {
	b := cp.State
	if b == nil {
		var err error
		if b, err = readManifest(ctx, a.o.Store, a.o.Prefix, time.Minute, e.Partition, cp); damaged(err) {
			a.lost[e.Partition] = &lostState{key: ManifestKey(a.o.Prefix, e.Partition, cp.Manifest), err: err, checkpoint: e}
			*s = State{opened: true, epoch: e.Epoch, seq: e.Seq} // still newer than what comes late
			return nil
		} else if err != nil {
			return err
		}
	}
	return s.load(e, b)
}

// outrun says whether an event ends an upload whose range the log start has passed.
func (s *State) outrun(e Event) bool {
	f, ok := e.Body.(CopyFinished)
	i := s.findPending(f.ID)
	return ok && i >= 0 && s.pending[i].End <= s.logStart
}

func (a *audit) find(f Finding) { a.report.Findings = append(a.report.Findings, f) }

// compare holds states and objects against each other.
func (a *audit) compare(ctx context.Context) error {
	known := map[string]bool{}
	var look []lookAt
	a.gone = map[string]bool{}
	ids := slices.SortedFunc(maps.Keys(a.states), comparePartitions)
	for _, id := range ids {
		s := a.states[id]
		// Of a deleted topic that is not cleared away yet, or of which events came late after
		// that was done: nobody reads any of it, and its objects may be gone.
		nobodys := !s.deleted && a.o.Deleted != nil && a.o.Deleted(id.Topic)
		if l := a.lost[id]; l != nil {
			if nobodys && !a.stored(id) {
				continue
			}
			a.gone[l.key] = true
			a.find(Finding{Kind: FindingManifest, Partition: id, Key: l.key, Err: fmt.Errorf("what must be in the store is not known without it: %w", l.err)})
			continue
		}
		if !nobodys {
			for _, f := range s.continuity(id, a.o.Prefix) {
				a.find(f)
			}
		}
		a.report.Ranges += s.Len()
		a.report.Bytes += s.liveBytes
		backup := len(s.Kept())
		a.report.Backup += backup
		a.report.Expired += s.live - backup
		a.report.Pending += len(s.pending)
		if s.manifest != (ID{}) {
			key := ManifestKey(a.o.Prefix, id, s.manifest)
			known[key] = true
			if _, ok, err := a.object(ctx, key); err != nil {
				return err
			} else if !ok && !nobodys {
				a.gone[key] = true
				a.find(Finding{Kind: FindingManifest, Partition: id, Key: key})
			}
		}
		for _, p := range s.pending {
			known[Key{Partition: id, Base: p.Base, End: p.End, Epoch: p.Epoch, ID: p.ID}.Path(a.o.Prefix)] = true
		}
		for i, r := range s.ranges {
			key := r.key(id, a.o.Prefix)
			known[key] = true
			if i < s.live || nobodys {
				continue // its deletion is due: whether it is there does not matter
			}
			f := Finding{Partition: id, Base: max(r.Base, s.logStart), End: r.End, Key: key}
			info, ok, err := a.object(ctx, key)
			switch {
			case err != nil:
				return err
			case !ok:
				a.gone[key] = true
				f.Kind = FindingMissing
				a.find(f)
			case info.Size != r.ObjectBytes:
				f.Kind, f.Bytes, f.Err = FindingCorrupt, info.Size, fmt.Errorf("%d bytes, want %d: %w", info.Size, r.ObjectBytes, ErrCorrupt)
				a.find(f)
			default:
				f.Bytes = info.Size
				look = append(look, lookAt{object{r, key}, f})
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(a.objects)) {
		if known[key] {
			continue
		}
		k, ok := ParseKey(a.o.Prefix, key)
		if !ok {
			k.Partition, _, _ = parseManifestKey(a.o.Prefix, key)
		}
		if _, ok := a.lost[k.Partition]; ok {
			continue
		}
		kind := FindingOrphan
		if a.states[k.Partition] == nil && (a.o.Deleted == nil || !a.o.Deleted(k.Partition.Topic)) {
			kind = FindingForeign
		}
		if _, err := a.o.Store.Head(ctx, key); errors.Is(err, ErrNotFound) {
			continue // deleted since it was listed
		} else if err != nil {
			return fmt.Errorf("look for %s: %w", key, err)
		}
		a.find(Finding{Kind: kind, Partition: k.Partition, Base: k.Base, End: k.End, Key: key, Bytes: a.objects[key].Size})
	}
	if a.o.Depth >= AuditTails {
		if err := a.look(ctx, look); err != nil {
			return err
		}
	}
	slices.SortStableFunc(a.report.Findings, func(x, y Finding) int {
		return cmp.Or(comparePartitions(x.Partition, y.Partition), cmp.Compare(x.Base, y.Base), cmp.Compare(x.Kind, y.Kind))
	})
	return nil
}

// stored says whether anything of a partition was in the store.
func (a *audit) stored(id log.PartitionID) bool {
	under := PartitionPrefix(a.o.Prefix, id)
	for key := range a.objects {
		if strings.HasPrefix(key, under) {
			return true
		}
	}
	return false
}

// object looks for an object that the events name: it may have been stored since the
// store was listed.
func (a *audit) object(ctx context.Context, key string) (info ObjectInfo, ok bool, err error) {
	if info, ok = a.objects[key]; ok {
		return info, true, nil
	}
	info, err = a.o.Store.Head(ctx, key)
	if errors.Is(err, ErrNotFound) {
		return info, false, nil
	}
	if err != nil {
		return info, false, fmt.Errorf("look for %s: %w", key, err)
	}
	a.objects[key] = info
	return info, true, nil
}

func comparePartitions(x, y log.PartitionID) int {
	return cmp.Or(slices.Compare(x.Topic[:], y.Topic[:]), cmp.Compare(x.Index, y.Index))
}

func (r Range) key(p log.PartitionID, prefix string) string {
	return Key{Partition: p, Base: r.Base, End: r.End, Epoch: r.Epoch, ID: r.ID}.Path(prefix)
}

// continuity looks for offsets between log start and tier end that no range, or
// more than one, holds.
func (s *State) continuity(id log.PartitionID, prefix string) (found []Finding) {
	at := s.logStart
	for _, r := range s.ranges[s.live:] {
		switch {
		case r.Base > at:
			found = append(found, Finding{Kind: FindingGap, Partition: id, Base: at, End: r.Base})
		case r.Base < at && at > s.logStart:
			found = append(found, Finding{Kind: FindingOverlap, Partition: id, Base: r.Base, End: min(at, r.End), Key: r.key(id, prefix)})
		}
		at = max(at, r.End)
	}
	if at < s.tierEnd {
		found = append(found, Finding{Kind: FindingGap, Partition: id, Base: at, End: s.tierEnd})
	}
	return found
}

// A lookAt is an object to be read, and the finding if it is bad.
type lookAt struct {
	object
	finding Finding
}

// look reads objects that were not read yet, several at once, and finds what is wrong
// with those of the list.
func (a *audit) look(ctx context.Context, objects []lookAt) error {
	if a.looked == nil {
		a.looked = map[string]error{}
	}
	var todo []lookAt
	for _, l := range objects {
		if _, ok := a.looked[l.key]; !ok {
			todo = append(todo, l)
		}
	}
	if err := a.lookAll(ctx, todo); err != nil {
		return err
	}
	for _, l := range objects {
		f := l.finding
		f.Err = a.looked[l.key]
		switch {
		case f.Err == nil:
			continue
		case errors.Is(f.Err, ErrNotFound): // it was listed
			a.gone[l.key] = true
			f.Kind = FindingMissing
		default:
			f.Kind = FindingCorrupt
		}
		a.find(f)
	}
	return nil
}

func (a *audit) lookAll(ctx context.Context, objects []lookAt) error {
	a.progress.Total += len(objects)
	a.tell()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		at    int
		bytes int64
		err   error
	}
	work, results := make(chan int), make(chan result)
	var wg sync.WaitGroup
	for range min(a.o.Parallel, len(objects)) {
		wg.Go(func() {
			for at := range work {
				n, err := a.check(ctx, objects[at])
				results <- result{at, n, err}
			}
		})
	}
	wg.Go(func() {
		defer close(work)
		for at := range objects {
			select {
			case work <- at:
			case <-ctx.Done():
				return
			}
		}
	})
	go func() { wg.Wait(); close(results) }()
	var first error
	for r := range results {
		a.progress.Checked++
		a.progress.Bytes += r.bytes
		key := objects[r.at].key
		switch {
		case r.err == nil, errors.Is(r.err, ErrNotFound), errors.Is(r.err, ErrCorrupt), errors.Is(r.err, ErrInvalidObject),
			errors.Is(r.err, ErrRange), isVersion(r.err):
			a.looked[key] = r.err
		case first == nil:
			first = fmt.Errorf("look at %s: %w", key, r.err)
			cancel()
		}
		if a.progress.Checked%16 == 0 || a.progress.Checked == a.progress.Total {
			a.tell()
		}
	}
	return cmp.Or(first, ctx.Err())
}

func isVersion(err error) bool {
	_, ok := errors.AsType[*VersionError](err)
	return ok
}

// check reads one object and holds it against its range.
func (a *audit) check(ctx context.Context, l lookAt) (read int64, err error) {
	want := l.object
	get := func(off, n int64) ([]byte, error) {
		b, err := a.o.Store.GetRange(ctx, l.key, off, n)
		if err == nil && int64(len(b)) != n {
			err = fmt.Errorf("%w: %d bytes of %d", ErrCorrupt, len(b), n)
		}
		read += int64(len(b))
		return b, err
	}
	tailAt := want.ObjectBytes - want.TailBytes
	b, err := get(tailAt, want.TailBytes)
	if err != nil {
		return read, err
	}
	t, err := parseObjectTail(b)
	if err != nil {
		return read, err
	}
	sum := uint32(0)
	tail := b
	if b, err = get(0, int64(t.headerBytes)); err != nil {
		return read, err
	}
	h, err := parseObjectHeader(b)
	if err != nil {
		return read, err
	}
	if err := agree(h, t, want, l.finding.Partition, a.report.Cluster, tailAt); err != nil {
		return read, err
	}
	if a.o.Depth < AuditBytes {
		return read, nil
	}
	sum = crc32.Update(sum, castagnoli, b)
	for i := range t.chunks {
		c := &t.chunks[i]
		b, err := get(c.pos, int64(c.stored))
		if err != nil {
			return read, err
		}
		sum = crc32.Update(sum, castagnoli, b)
		if b, err = c.unpack(b); err == nil {
			err = checkBatches(b, c.base, c.end)
		}
		if err != nil {
			return read, &CorruptionError{Key: l.key, Offset: c.pos, Err: err}
		}
	}
	if sum = crc32.Update(sum, castagnoli, tail); sum != want.CRC32C {
		return read, fmt.Errorf("%w: checksum %08x of the object, the tier log has %08x", ErrCorrupt, sum, want.CRC32C)
	}
	return read, nil
}

// agree holds an object's own words about itself against each other and against
// those of the tier log.
func agree(h objectHeader, t *objectTail, r object, p log.PartitionID, cluster ID, tailAt int64) error {
	last := t.chunks[len(t.chunks)-1]
	switch {
	case h.ID != r.ID || t.id != r.ID:
		return fmt.Errorf("%w: it is %v and %v, not %v", ErrInvalidObject, h.ID, t.id, r.ID)
	case h.Cluster != cluster || h.Partition != p || h.Epoch != r.Epoch:
		return fmt.Errorf("%w: it is of cluster %v, partition %v, epoch %d", ErrInvalidObject, h.Cluster, h.Partition, h.Epoch)
	case h.Base != r.Base || h.End != r.End || t.base != r.Base || t.end != r.End:
		return fmt.Errorf("%w: it has [%d, %d) and [%d, %d)", ErrInvalidObject, h.Base, h.End, t.base, t.end)
	case t.batchBytes != r.BatchBytes || last.pos+int64(last.stored) != tailAt:
		return fmt.Errorf("%w: %d bytes of batches, chunks end at %d", ErrInvalidObject, t.batchBytes, last.pos+int64(last.stored))
	}
	return nil
}

// checkBatches checks that b is whole, intact batches of [base, end).
func checkBatches(b []byte, base, end log.Offset) error {
	at := base
	for len(b) > 0 {
		batch, rest, err := record.Next(b, maxBatchBytes)
		if err == nil {
			err = batch.Verify()
		}
		if err != nil {
			return fmt.Errorf("batch at offset %d: %w", at, err)
		}
		if batch.BaseOffset() != at {
			return fmt.Errorf("%w: batch at offset %d, want %d", ErrInvalidObject, batch.BaseOffset(), at)
		}
		at, b = batch.NextOffset(), rest
	}
	if at != end {
		return fmt.Errorf("%w: batches end at %d, want %d", ErrInvalidObject, at, end)
	}
	return nil
}
