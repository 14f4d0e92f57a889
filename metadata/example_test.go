package metadata_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/cordwood-io/cordwood/log/logtest"
	"github.com/cordwood-io/cordwood/metadata"
)

// alone is the network of a quorum of one.
type alone struct{}

func (alone) Send(metadata.BrokerID, []byte) error { return errors.New("there is nobody else") }

func (alone) Call(context.Context, metadata.BrokerID, []byte) ([]byte, error) {
	return nil, errors.New("there is nobody else")
}

// One node that is voter, controller and broker.
func Example() {
	ctx := context.Background()
	directory := metadata.NewID()
	s, err := metadata.Open(ctx, metadata.Options{
		FS: logtest.NewFS(1), Dir: "metadata", // log.OSFS{} on a real disk
		Cluster: metadata.NewID(), Self: 1, Directory: directory,
		Voters: []metadata.Voter{{ID: 1}}, Network: alone{},
	})
	if err != nil {
		panic(err)
	}
	defer s.Close()
	s.Campaign()

	epoch, err := s.Register(ctx, metadata.Registration{ID: 1, Directory: directory, Incarnation: metadata.NewID(), HostsReplicas: true})
	if err != nil {
		panic(err)
	}
	if _, err := s.Heartbeat(ctx, metadata.HeartbeatRequest{ID: 1, Epoch: epoch, AppliedIndex: s.Image().Index()}); err != nil {
		panic(err)
	}
	topic, err := s.CreateTopic(ctx, metadata.TopicSpec{Name: "orders", Partitions: 2})
	if err != nil {
		panic(err)
	}
	self := metadata.Member{ID: 1, Epoch: epoch}
	for _, a := range metadata.Reconcile(nil, s.Image(), self, nil) {
		fmt.Println(a.Kind, topic.Name, a.Partition.ID.Index, "in leader epoch", a.Partition.LeaderEpoch)
	}
	// Output:
	// open orders 0 in leader epoch 0
	// lead orders 0 in leader epoch 0
	// open orders 1 in leader epoch 0
	// lead orders 1 in leader epoch 0
}

// The defaults, as they are.
func ExampleOptions() {
	fmt.Println("Tick", metadata.DefaultTick)
	fmt.Println("ElectionTicks", metadata.DefaultElectionTicks)
	fmt.Println("HeartbeatTicks", metadata.DefaultHeartbeatTicks)
	fmt.Println("Session", metadata.DefaultSession)
	fmt.Println("HeartbeatInterval", metadata.Options{}.HeartbeatInterval())
	fmt.Println("SystemReplication", metadata.DefaultSystemReplication)
	fmt.Println("LogBytes", metadata.DefaultLogBytes)
	fmt.Println("ProducerBlock", metadata.DefaultProducerBlock)
	// Output:
	// Tick 50ms
	// ElectionTicks 10
	// HeartbeatTicks 2
	// Session 1.5s
	// HeartbeatInterval 250ms
	// SystemReplication 3
	// LogBytes 4194304
	// ProducerBlock 1000
}
