package tier

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cordwood-io/cordwood/log"
)

// SweepOptions configure a sweep.
type SweepOptions struct {
	// DryRun finds and deletes nothing.
	DryRun bool

	// MinAge spares younger objects, by the store's clock against the local one. It
	// is a second lock on the door: the first is that nothing which the tier log has
	// ever announced and not declared gone is touched. 0 means
	// [DefaultSweepAge]; negative spares none.
	MinAge time.Duration
}

// DefaultSweepAge is longer than any upload may take, with room for clocks that
// differ.
const DefaultSweepAge = 2 * time.Hour

func (o SweepOptions) spares(info ObjectInfo, now time.Time) bool {
	age := o.MinAge
	if age == 0 {
		age = DefaultSweepAge
	}
	return age > 0 && now.Sub(info.LastModified) < age
}

// A SweepReport is what a sweep found and did.
type SweepReport struct {
	Listed  int          // segment objects and manifests
	Orphans []ObjectInfo // unknown to the state and old enough
	Young   int          // unknown to the state and spared by MinAge
	Bytes   int64        // of Orphans
	Deleted int
	Failed  []DeleteResult
}

// Sweep finds the objects of this partition that its state does not know, and
// deletes them: leftovers of a store that took a write long after it was given up,
// or of people. Only the leader can do it.
//
// It lists first. Then it appends a barrier of its own epoch, which changes nothing,
// and reads the tier log up to its end: so it has seen every event that was
// committed before the listing, and an upload announces its object before the first
// byte leaves. It stops when another has become leader.
//
// Errors: [ErrNotLeader], [ErrFenced]; what else has ended the leadership here, such as
// [ErrTwoWriters], see [Partition.Status]; [ErrUnknown] while the store's owner or the
// state is not known, with [ErrForeignStore] if it is another cluster's; those of the
// store's listing and of the tier log, and ctx's. What was deleted before stays deleted,
// and the report says it. Failures to delete one object are in the report.
//
// Source: the order of listing and re-validation is that of RabbitMQ's tiered
// streams; the fence is our own.
func (p *Partition) Sweep(ctx context.Context, o SweepOptions) (*SweepReport, error) {
	m := p.m
	m.mu.Lock()
	lead := p.lead
	ready := lead != nil && lead.barrier
	var ended error
	if lead != nil {
		ended = lead.err
	}
	m.mu.Unlock()
	if ended != nil {
		return nil, fmt.Errorf("tier: sweep: %w", ended)
	}
	if !ready {
		return nil, ErrNotLeader
	}
	if err := m.notOurs(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(lead.ctx, func() { cancel(ErrNotLeader) })()

	r := &SweepReport{}
	objects, err := listSegments(ctx, m.o.Store, m.o.Prefix, PartitionPrefix(m.o.Prefix, p.id))
	if err != nil {
		return r, err
	}
	r.Listed = len(objects)
	// No event is in flight meanwhile: a manifest that was listed is named by the state
	// then, or will never be.
	select {
	case <-lead.token:
	case <-ctx.Done():
		return r, context.Cause(ctx)
	}
	state, err := p.fence(ctx, lead)
	lead.token <- struct{}{}
	if err != nil {
		return r, err
	}
	now := time.Now()
	for _, c := range objects {
		switch {
		case c.manifest && c.key.ID == state.manifest, !c.manifest && state.knows(c.key.ID):
		case o.spares(c.info, now):
			r.Young++
		default:
			r.Orphans = append(r.Orphans, c.info)
			r.Bytes += c.info.Size
		}
	}
	if o.DryRun {
		return r, nil
	}
	return r, deleteOrphans(ctx, m.o.Store, m.o.StoreTimeout, r)
}

// fence returns the state as of after everything that was committed before the
// call.
func (p *Partition) fence(ctx context.Context, lead *leadership) (*State, error) {
	m := p.m
	event, err := EncodeEvent(Event{Partition: p.id, Epoch: lead.epoch, Body: Barrier{}})
	if err != nil {
		return nil, err
	}
	actx, cancel := context.WithTimeout(ctx, m.o.EventTimeout)
	err = m.o.Events.Append(actx, p.id, event)
	cancel()
	if err == nil {
		err = m.catchUp(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("tier: sweep: %w", cmpCause(ctx, err))
	}
	state, known := p.State()
	switch {
	case !known:
		p.ledger.mu.RLock()
		defer p.ledger.mu.RUnlock()
		return nil, p.unknownErr()
	case state.Epoch() != lead.epoch:
		return nil, ErrFenced
	}
	return state, nil
}

// SweepDeleted finds the objects of deleted topics of which the tier log does not speak
// any more, and deletes them: writes that landed after the last listing of their
// partition (see [Forgotten]), hours after they had been given up. It goes by the names
// of objects under this cluster's prefix and by [Options].Deleted, and leaves all others
// alone. Any node can do it; one is enough.
//
// It lists the whole prefix first and then reads the tier log up to its end. Errors:
// [ErrUnknown] while the store's owner or a state is not known; [ErrClosed]; those of the
// store's listing and of the tier log, and ctx's. Failures to delete one object are in
// the report, whose Listed counts objects of partitions that the tier log does not know.
func (m *Manager) SweepDeleted(ctx context.Context, o SweepOptions) (*SweepReport, error) {
	if err := context.Cause(m.ctx); err != nil {
		return nil, m.closedErr()
	}
	if err := m.notOurs(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(m.ctx, func() { cancel(m.closedErr()) })()
	r := &SweepReport{}
	objects, err := listSegments(ctx, m.o.Store, m.o.Prefix, listPrefix(m.o.Prefix))
	if err != nil {
		return r, err
	}
	if err := m.catchUp(ctx); err != nil {
		return r, fmt.Errorf("tier: sweep: %w", cmpCause(ctx, err))
	}
	m.mu.Lock()
	tentative := m.tentative.Load() // its ledgers are not all there yet
	objects = slices.DeleteFunc(objects, func(c segmentObject) bool { return m.ledgers[c.key.Partition] != nil })
	m.mu.Unlock()
	if tentative {
		return r, ErrUnknown
	}
	now := time.Now()
	r.Listed = len(objects)
	for _, c := range objects {
		// A deletion is for good, and nobody writes to what is not in the tier log.
		if _, ok := m.deleted(c.key.Partition.Topic); !ok {
			continue
		}
		if o.spares(c.info, now) {
			r.Young++
			continue
		}
		r.Orphans = append(r.Orphans, c.info)
		r.Bytes += c.info.Size
	}
	if o.DryRun {
		return r, nil
	}
	return r, deleteOrphans(ctx, m.o.Store, m.o.StoreTimeout, r)
}

func cmpCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// knows says whether an object with this id may exist by the state's leave.
func (s *State) knows(id ID) bool {
	_, held := s.held[id]
	return held || s.findPending(id) >= 0
}

// A candidate object of a listing.
type segmentObject struct {
	key      Key // of a manifest: partition and id only
	info     ObjectInfo
	manifest bool
}

// listSegments lists segment objects and manifests.
func listSegments(ctx context.Context, s ObjectStore, prefix, under string) ([]segmentObject, error) {
	var out []segmentObject
	for info, err := range s.List(ctx, under, "") {
		if err != nil {
			return out, fmt.Errorf("list the store: %w", cmpCause(ctx, err))
		}
		if k, ok := ParseKey(prefix, info.Key); ok {
			out = append(out, segmentObject{key: k, info: info})
		} else if p, id, ok := parseManifestKey(prefix, info.Key); ok {
			out = append(out, segmentObject{Key{Partition: p, ID: id}, info, true})
		}
	}
	return out, nil
}

// deleteOrphans deletes what a report lists.
func deleteOrphans(ctx context.Context, s ObjectStore, timeout time.Duration, r *SweepReport) error {
	for left := r.Orphans; len(left) > 0; {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		n := min(len(left), deleteBatch)
		keys := make([]string, n)
		for i, info := range left[:n] {
			keys[i] = info.Key
		}
		left = left[n:]
		dctx, cancel := context.WithTimeout(ctx, timeout)
		results := s.Delete(dctx, keys)
		cancel()
		for _, d := range results {
			if d.Err == nil || errors.Is(d.Err, ErrNotFound) {
				r.Deleted++
			} else {
				r.Failed = append(r.Failed, d)
			}
		}
	}
	return nil
}

// SweepStopped deletes the orphans of an audit while no cluster runs on the store,
// in the partitions that the tier log knows, and of topics that were deleted. known is asked about each object id and
// must say yes for every one that any replica's tier log names, committed or not: an
// audit reads one replica's log only. Foreign objects are left alone.
//
// Requires: all replicas of the tier log are stopped and were asked. Errors are
// those of the store; the report says what was done.
func SweepStopped(ctx context.Context, s ObjectStore, prefix string, audit *AuditReport, known func(log.PartitionID, ID) bool, o SweepOptions) (*SweepReport, error) {
	r := &SweepReport{Listed: audit.Objects}
	now := time.Now()
	for _, f := range audit.Findings {
		if f.Kind != FindingOrphan {
			continue
		}
		k, ok := ParseKey(prefix, f.Key)
		if !ok {
			k.Partition, k.ID, ok = parseManifestKey(prefix, f.Key)
		}
		if !ok || known(k.Partition, k.ID) {
			continue
		}
		info, err := s.Head(ctx, f.Key)
		switch {
		case errors.Is(err, ErrNotFound):
		case err != nil:
			return r, err
		case o.spares(info, now):
			r.Young++
		default:
			r.Orphans = append(r.Orphans, info)
			r.Bytes += info.Size
		}
	}
	if o.DryRun {
		return r, nil
	}
	return r, deleteOrphans(ctx, s, time.Minute, r)
}
