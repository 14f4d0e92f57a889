package tier_test

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"testing/synctest"
	"time"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
	"github.com/cordwood-io/cordwood/tier"
)

// Topics of the schedules. The test plays the cluster's metadata: a row of facts, that a
// topic is there, and that it was deleted, which each node takes in one by one at its own
// time. Its tier can be told of a deletion before its replica is closed, and, after a
// crash, know less than before. A topic that is made under a name that was free has
// another id; a node has a replica of it once it has heard of it. Leaders of a deleted
// topic go on until they hear: they append, upload, trim and sweep.

// backupWindow is how long deleted ranges are kept in the schedules that keep them.
const backupWindow = 45 * time.Minute

// A topic is one life of a name.
type topic struct {
	name   int
	life   int
	id     log.TopicID
	shards []*shard
	epochs []log.Epoch // of its deletion; nil while it is there
}

func (t *topic) deleted() bool { return t.epochs != nil }

// A fact is one entry of the metadata.
type fact struct {
	topic   *topic
	deleted bool
}

// replicas yields those that a node has.
func (n *node) replicas() iter.Seq[*replica] {
	return func(yield func(*replica) bool) {
		for _, r := range n.reps {
			if r != nil && !yield(r) {
				return
			}
		}
	}
}

// live returns the shards of topics that are there.
func (w *world) live() (shards []*shard) {
	for _, t := range w.topics {
		if !t.deleted() {
			shards = append(shards, t.shards...)
		}
	}
	return shards
}

// deletedTopic is what a node's tier is told of a topic.
func (w *world) deletedTopic(n *node, id log.TopicID) ([]log.Epoch, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range w.facts[:n.image.Load()] {
		if f.deleted && f.topic.id == id {
			return f.topic.epochs, true
		}
	}
	return nil, false
}

func (w *world) announce(f fact) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.facts = append(w.facts, f)
}

// topic deletes one at times and makes one at times, has nodes hear of it, and moves the
// word for the cluster. At least one topic is there afterwards.
func (w *world) topic() {
	w.calm--
	switch n := w.r.IntN(60); {
	case n < 3 && w.calm < 0:
		if t := w.topics[w.r.IntN(len(w.topics))]; !t.deleted() {
			w.delete(t)
		}
	case n < 8:
		if t := w.topics[w.r.IntN(len(w.topics))]; t.deleted() {
			w.create(t.name, 1+w.r.IntN(2), w.r.IntN(worldNodes))
		}
	case n < 11:
		w.speak(w.r.IntN(worldNodes))
	}
	for _, n := range w.nodes {
		pending := len(w.facts) - min(n.done, int(n.image.Load()))
		if pending == 0 {
			continue
		}
		switch w.r.IntN(16) {
		case 0:
			w.hear(n)
		case 1:
			n.image.Store(max(n.image.Load(), int64(len(w.facts)-w.r.IntN(pending))))
			n.manager.TopicsDeleted()
		}
	}
	if len(w.live()) == 0 {
		t := w.topics[w.r.IntN(len(w.topics))]
		w.create(t.name, 1+w.r.IntN(2), w.r.IntN(worldNodes))
	}
}

// create makes a topic under a name that is free, with a first leader for all of it. A
// node that has to catch up first and can't does not get it.
func (w *world) create(name, partitions, leader int) {
	n := w.nodes[leader]
	w.back(n)
	if !w.hearAll(n) {
		return
	}
	t := &topic{name: name}
	if old := w.topics[name]; old != nil {
		t.life = old.life + 1
		w.count("topic made anew", 1)
	}
	t.id = log.TopicID{byte(1 + name), byte(t.life)}
	w.topics[name] = t
	for range partitions {
		s := w.newShard(t)
		s.leader = leader
		w.open(n, s)
	}
	w.say("topic %d is made, life %d: shards from %d on", name, t.life, t.shards[0].i)
	w.announce(fact{topic: t})
	n.done++
	n.image.Store(int64(n.done))
	for _, s := range t.shards {
		w.lead(s, leader)
	}
}

// delete deletes a topic in the metadata: nothing else happens until somebody hears.
func (w *world) delete(t *topic) {
	w.count("topic deleted", 1)
	w.say("topic %d is deleted, life %d: shards from %d on", t.name, t.life, t.shards[0].i)
	for _, s := range t.shards {
		if w.r.IntN(6) == 0 {
			continue
		}
		// So that the leader is at work.
		w.append(s)
		if err := w.first(s).log.Roll(w.ctx); err != nil {
			w.fail("roll: %v", err)
		}
		w.first(s).part.Kick()
	}
	epochs := make([]log.Epoch, len(t.shards))
	for i, s := range t.shards {
		epochs[i] = s.epoch + 1
		w.oracle.deleted(s, epochs[i])
	}
	t.epochs = epochs
	w.announce(fact{topic: t, deleted: true})
	for _, n := range w.nodes {
		if w.r.IntN(6) == 0 {
			w.hearAll(n)
		}
	}
}

// hear has a node act on the next fact. false: it knows all, or can't have a replica now.
func (w *world) hear(n *node) bool {
	n.image.Store(max(n.image.Load(), int64(n.done)))
	if n.done == len(w.facts) {
		return false
	}
	f := w.facts[n.done]
	n.image.Store(max(n.image.Load(), int64(n.done)+1))
	for _, s := range f.topic.shards {
		switch {
		case f.deleted:
			w.drop(n, s)
		case !f.topic.deleted() && !w.join(n, s):
			return false
		}
	}
	n.done++
	if f.deleted {
		w.count("deletion heard", 1)
		w.say("node %d hears that topic %d, life %d, is deleted", n.n, f.topic.name, f.topic.life)
		n.manager.TopicsDeleted()
	}
	return true
}

// hearAll has a node act on all facts.
func (w *world) hearAll(n *node) bool {
	for w.hear(n) {
	}
	return n.done == len(w.facts)
}

// drop closes a node's replica of a deleted topic. Its readers are told.
func (w *world) drop(n *node, s *shard) {
	r := n.reps[s.i]
	if r == nil {
		return
	}
	r.part.Close()
	if _, err := r.part.Read(w.ctx, 0, 1); !errors.Is(err, tier.ErrClosed) {
		w.fail("node %d, shard %d: read of a deleted topic: %v", n.n, s.i, err)
	}
	if err := r.log.Close(); err != nil {
		w.fail("node %d, shard %d: close: %v", n.n, s.i, err)
	}
	n.reps[s.i] = nil
}

// join gives a node a replica of a topic that it has heard of, with what the leader has.
func (w *world) join(n *node, s *shard) bool {
	if n.away {
		return false
	}
	if n.reps[s.i] != nil {
		return true
	}
	lead := w.first(s)
	b, ok := w.begin(s, lead.log, lead.part.View())
	if !ok {
		return false
	}
	w.open(n, s)
	w.fill(n, s, b)
	return true
}

// speak makes a node the one that speaks for the cluster. One before may go on to take
// itself for it, until the next change.
func (w *world) speak(i int) {
	w.count("speaker", 1)
	for _, n := range w.nodes {
		stays := n.speaks.Load() && n.n != i && w.r.IntN(3) == 0
		n.speaks.Store(n.n == i || stays)
		if stays {
			w.count("two speakers", 1)
		}
	}
	w.say("node %d speaks for the cluster", i)
}

// speakAlone makes a node the only one that speaks for the cluster.
func (w *world) speakAlone(i int) {
	w.speak(i)
	for _, n := range w.nodes {
		n.speaks.Store(n.n == i)
	}
}

// undelete brings back what deleted topics have left, as long as that is promised.
func (w *world) undelete() {
	var chains []*tier.Chain
	for _, s := range w.shards {
		promised := w.oracle.promises(s)
		if len(promised) == 0 || !s.topic.deleted() || w.oracle.alive(s) {
			continue
		}
		w.count("kept for undelete", len(promised))
		if chains == nil {
			var err error
			if chains, err = tier.Catalog(w.ctx, tier.CatalogOptions{Store: w.mem, Prefix: "p"}); err != nil {
				w.fail("catalog: %v", err)
			}
		}
		for _, c := range chains {
			if c.Partition == s.id {
				w.restore(s, c)
			}
		}
	}
}

// restore restores a deleted shard and holds it against what was written.
func (w *world) restore(s *shard, c *tier.Chain) {
	w.count("undelete", 1)
	from := c.Start()
	l, err := log.Open(w.ctx, "restored", log.Options{FS: logtest.NewFS(w.seed), Partition: log.PartitionID{Topic: log.TopicID{0xff}}})
	if err != nil {
		w.fail("%v", err)
	}
	end, err := c.Restore(w.ctx, l, tier.RestoreOptions{Store: w.mem, From: from})
	if err != nil || end != c.End() || end > s.end {
		w.fail("shard %d is restored from %d to %d of %d: %v", s.i, from, end, c.End(), err)
	}
	at := from
	for r, err := range l.Records(w.ctx, from) {
		if err != nil || r.Offset != at || string(r.Value) != s.values[at] {
			w.fail("shard %d is restored with %.30q as %d at %d, want %.30q: %v", s.i, r.Value, r.Offset, at, s.values[at], err)
		}
		at++
	}
	if at != end {
		w.fail("shard %d is restored from %d to %d, and has records up to %d", s.i, from, end, at)
	}
	if err := l.Close(); err != nil {
		w.fail("%v", err)
	}
}

// forgotten checks that nothing is left of deleted topics on any node. What came late of
// one, after its end, can make a node know it again; so each may have to speak for the
// cluster once.
func (w *world) forgotten() {
	for _, s := range w.shards {
		if s.topic.deleted() && w.oracle.remembered(s) {
			w.fail("shard %d, after all is quiet: its topic was deleted, and not forgotten", s.i)
		}
	}
	for _, n := range w.nodes {
		if w.remains(n) == "" {
			continue
		}
		w.count("deleted, and known again", 1)
		w.speakAlone(n.n)
		time.Sleep(2*uploadDeadline + 10*time.Minute)
	}
	for _, n := range w.nodes {
		if s := w.remains(n); s != "" {
			w.fail("node %d %s", n.n, s)
		}
	}
}

// remains describes what a node has of deleted topics.
func (w *world) remains(n *node) string {
	synctest.Wait()
	live := len(w.live())
	if err := n.manager.Err(); err != nil {
		return fmt.Sprintf("has stopped: %v", err)
	}
	s := n.manager.Stats()
	if s.Remains == 0 && n.manager.Ledgers() == live && (s.Pin == s.Applied || w.owns(s.PinnedBy)) {
		return ""
	}
	return fmt.Sprintf("has %d remains, states of %v for %d partitions, the tier log is held at %d of %d by %v",
		s.Remains, n.manager.Known(), live, s.Pin, s.Applied, s.PinnedBy)
}

// forgot says whether the tier log has declared that nothing is left of a partition.
func (w *world) forgot(id log.PartitionID) bool {
	return slices.ContainsFunc(w.shards, func(s *shard) bool { return s.id == id && w.oracle.forgot(s) })
}

// owns says whether a partition is of a topic that is there.
func (w *world) owns(id log.PartitionID) bool {
	return slices.ContainsFunc(w.live(), func(s *shard) bool { return s.id == id })
}
