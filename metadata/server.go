package metadata

import (
	"context"
	"errors"
)

var errUnfinished = errors.New("metadata: unfinished")

// A Server is one node's part of the metadata quorum.
type Server struct{ opt Options }

func Open(ctx context.Context, o Options) (*Server, error) { return nil, errUnfinished }

// Campaign makes a voter stand for election at once.
func (s *Server) Campaign() {}

// Step takes a message that another server gave to [Network.Send]. Never blocks.
func (s *Server) Step(from BrokerID, msg []byte) {}

// Handle answers a request that another server gave to [Network.Call].
func (s *Server) Handle(ctx context.Context, from BrokerID, req []byte) ([]byte, error) {
	return nil, errUnfinished
}

// PeerDead reports evidence that a broker's process has died: a connection ended
// and the re-dial was refused. incarnation is the process meant; the zero ID
// means whichever is registered now.
func (s *Server) PeerDead(id BrokerID, incarnation ID) {}

// Image returns the newest image.
func (s *Server) Image() *Image { return nil }

// Watch calls fn with the present image (Delta.Full) and then with each later
// one, in order, in the caller's goroutine; images may be skipped, their deltas
// are then joined. Ends when ctx does (its error), fn fails (its error), or the
// server ends.
func (s *Server) Watch(ctx context.Context, fn func(*Image, Delta) error) error { return errUnfinished }

// WaitFor returns the first image seen for which ok holds.
func (s *Server) WaitFor(ctx context.Context, ok func(*Image) bool) (*Image, error) {
	return nil, errUnfinished
}

// Controller returns who is the controller as far as known here.
func (s *Server) Controller() (BrokerID, bool) { return NoBroker, false }

// Status describes the server.
func (s *Server) Status() Status { return Status{} }

// Done is closed when the server has ended, by Close or by itself.
func (s *Server) Done() <-chan struct{} { return nil }

// Err returns why the server has ended by itself.
func (s *Server) Err() error { return nil }

// Close ends the server.
func (s *Server) Close() error { return nil }

// Register announces a process and returns its broker epoch.
func (s *Server) Register(ctx context.Context, r Registration) (BrokerEpoch, error) {
	return 0, errUnfinished
}

// Heartbeat keeps a session alive.
func (s *Server) Heartbeat(ctx context.Context, r HeartbeatRequest) (HeartbeatReply, error) {
	return HeartbeatReply{}, errUnfinished
}

// CreateTopic creates a topic.
func (s *Server) CreateTopic(ctx context.Context, t TopicSpec) (Topic, error) {
	return Topic{}, errUnfinished
}

// AlterISR changes an in-sync set.
func (s *Server) AlterISR(ctx context.Context, c ISRChange) (Partition, error) {
	return Partition{}, errUnfinished
}

// AllocateProducerIDs hands out a range of producer ids.
func (s *Server) AllocateProducerIDs(ctx context.Context, id BrokerID, epoch BrokerEpoch) (ProducerBlock, error) {
	return ProducerBlock{}, errUnfinished
}
