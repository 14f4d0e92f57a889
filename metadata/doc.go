// Package metadata keeps the state of a cluster: which brokers there are, which
// topics and partitions, who leads each partition and who is in sync. Three or five
// voters keep it in a Raft log; every other node observes them. One voter at a time
// is the controller, which turns registrations, heartbeats and requests into
// records. The package moves no data of partitions: brokers read from an [Image]
// what is to be done, see [Reconcile], and do it themselves.
//
// # Use
//
// Each node opens one [Server] with the same voters. What arrives from other nodes
// is given to [Server.Step] and [Server.Handle], and what leaves goes through
// [Network]. The node that founds the cluster calls [Server.Campaign] once. Then
// each node that hosts replicas registers and sends heartbeats:
//
//	s, err := metadata.Open(ctx, options)
//	epoch, err := s.Register(ctx, metadata.Registration{ID: self, …})
//	for {
//		r, err := s.Heartbeat(ctx, metadata.HeartbeatRequest{ID: self, Epoch: epoch, AppliedIndex: applied, …})
//		wait(options.HeartbeatInterval())
//	}
//
// and acts on images in [Server.Watch]. AppliedIndex is the index of the image that
// it has acted on. The first heartbeat after the registration, if sent at once,
// makes the broker live at once.
//
// # Guarantees
//
//  1. What a call has returned without an error survives the loss of the power of all
//     nodes and of the disks of a minority.
//  2. All servers go through the same states: at the same [Image.Index] they have the
//     same [Image.StateHash].
//  3. A record of a partition changes only by compare-and-set; PartitionEpoch rises by
//     one with each change, LeaderEpoch with each change of leader. Two processes
//     never lead in the same leader epoch, and a restarted process leads nothing of
//     before.
//  4. Whoever is in [Partition.ISR] is neither fenced nor stopping, and is that very
//     process. Whoever is in [Partition.ELR] held every committed record when it left
//     the in-sync set, provided that leaders commit nothing while that set is smaller
//     than MinISR. Nobody else is ever elected.
//  5. A refusal ([ErrStale], [ErrTopicExists] and the like) is given only by a
//     controller that a quorum has confirmed since. Other errors leave the outcome
//     open.
//  6. Broker epochs and producer ids are never given out twice.
//
// Not guaranteed: that an image is the newest one (it is a past state, and never
// older than a former one of the same server); that a heartbeat's success comes from
// the newest controller (for the time of an election timeout a former one may still
// answer; a lease that rests on heartbeats must allow for that).
//
// # How it works
//
// A voter keeps Raft's log, its hard state and the state machine in one Pebble store,
// so that one write-ahead log orders them all (docs/format/metadata-store.md). Raft
// runs with asynchronous storage writes: one goroutine owns the state machine, one
// makes entries durable, one applies them. Appends that wait at the same time share
// one synced batch; applying is not synced.
//
// The controller answers requests in rounds. A round decides all requests that wait
// on one private copy of the image, each on top of the ones before, proposes the
// records of all as one entry, and waits until that is applied. An entry names the
// term in which it was decided and is void under any other. Decisions are pure
// functions of image, time, soft state and request.
//
// Sessions are soft: a new controller grants each broker a full one. Fencing is a
// record. A session ends by silence, or at once by [Server.PeerDead].
//
// Once the disk has failed, a server changes nothing on it any more and ends; see
// [Server.Err]. The process goes on.
//
// # Limits
//
// The quorum's membership is fixed when the cluster is founded: a voter whose disk is
// lost can't be replaced under its old broker id (the others refuse it, since it has
// forgotten its promises), and no voter can be added. Voters know each other's
// directories from their registrations; that of a voter which does not register is
// learnt by each of the others for itself, at its first message. Brokers
// can't be deleted, and replicas can't be reassigned. Of a deleted topic a record of
// its name and one number a partition stays for ever. A snapshot travels as one
// message.
//
// # Sources
//
// Raft (Ongaro's thesis) by etcd-raft; Kafka's controller and its later repairs:
// KIP-497, KIP-631, KIP-730, KIP-841, KIP-903, KIP-966.
package metadata
