package quota

import "math"

// FairQueue serves flows in turns by deficit round robin: each visit of a flow adds its quantum to what it may send, and what it may not send yet it
// keeps, but a flow that has nothing waiting loses it. Over any time in which two flows always have something waiting, what they
// got for their quantum differs by at most one round and the largest item of each.
//
// Adding and taking are O(1) if quanta are no smaller than the largest item. Where the cost of an item is known only after it was served, such as
// request time, add it with the cost 0 and [FairQueue.Debit] the cost then. Not safe for concurrent use.
//
// Source: Shreedhar and Varghese, "Efficient Fair Queuing using Deficit Round Robin", 1995.
type FairQueue[F comparable, T any] struct {
	quantum func(F) int64
	flows   map[F]*flow[F, T]
	ring    []*flow[F, T] // with items, in the order of their turns; the first has the turn
	fresh   bool          // the first's visit has not begun
	items   int
}

type flow[F comparable, T any] struct {
	id      F
	items   []queued[T]
	deficit int64
	waiting bool // in the ring
}

type queued[T any] struct {
	item T
	cost int64
}

// NewFairQueue returns an empty queue. quantum gives a flow's share of each round, such as its quota; values below 1 count as 1.
func NewFairQueue[F comparable, T any](quantum func(F) int64) *FairQueue[F, T] {
	return &FairQueue[F, T]{quantum: quantum, flows: make(map[F]*flow[F, T]), fresh: true}
}

// Push adds an item of a flow that costs what its service takes, >= 0.
func (q *FairQueue[F, T]) Push(id F, item T, cost int64) {
	f := q.flows[id]
	if f == nil {
		f = &flow[F, T]{id: id}
		q.flows[id] = f
	}
	f.items = append(f.items, queued[T]{item, max(0, cost)})
	q.items++
	if !f.waiting {
		f.waiting = true
		q.ring = append(q.ring, f)
	}
}

// Len returns how many items wait.
func (q *FairQueue[F, T]) Len() int { return q.items }

// Pop takes the item whose turn it is, or returns false if none waits.
func (q *FairQueue[F, T]) Pop() (id F, item T, ok bool) {
	for visits := 0; len(q.ring) > 0; visits++ {
		if visits >= len(q.ring) && visits%len(q.ring) == 0 && q.fresh {
			q.skip()
		}
		f := q.ring[0]
		if q.fresh {
			f.deficit += max(1, q.quantum(f.id))
			q.fresh = false
		}
		if head := f.items[0]; f.deficit >= head.cost && f.deficit > 0 {
			f.deficit -= head.cost
			f.items[0] = queued[T]{}
			f.items = f.items[1:]
			q.items--
			if len(f.items) == 0 {
				f.waiting = false
				q.next()
				f.deficit = min(f.deficit, 0)
				if f.deficit == 0 {
					delete(q.flows, f.id)
				}
			}
			return f.id, head.item, true
		}
		q.next()
		q.ring = append(q.ring, f)
	}
	return id, item, false
}

// skip gives every flow the quanta of the rounds in which none of them may send anything, so that debt costs no time.
func (q *FairQueue[F, T]) skip() {
	rounds := int64(math.MaxInt64)
	for _, f := range q.ring {
		quantum := max(1, q.quantum(f.id))
		need := max(1, f.items[0].cost) - f.deficit
		rounds = min(rounds, (need-1)/quantum) // one round less than brings it there: that one is a visit
	}
	for _, f := range q.ring {
		f.deficit += rounds * max(1, q.quantum(f.id))
	}
}

// next ends the visit of the first flow and takes it out of the ring.
func (q *FairQueue[F, T]) next() {
	q.ring[0] = nil
	q.ring = q.ring[1:]
	q.fresh = true
}

// Debit charges a flow for an item that was taken before, as far as its Push didn't. The debt stays when the flow runs empty.
func (q *FairQueue[F, T]) Debit(id F, cost int64) {
	f := q.flows[id]
	if f == nil {
		f = &flow[F, T]{id: id}
		q.flows[id] = f
	}
	f.deficit -= cost
}
