//go:build linux

package logpeers

import (
	"errors"
	"os"
	"path/filepath"
	"time"
	"unsafe"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// JetStream's file store isn't exported. It's reached by its linker names, so
// that the store can be measured without the server's protocol around it.

//go:linkname newFileStore github.com/nats-io/nats-server/v2/server.newFileStore
func newFileStore(server.FileStoreConfig, server.StreamConfig) (unsafe.Pointer, error)

//go:linkname fsStoreMsg github.com/nats-io/nats-server/v2/server.(*fileStore).StoreMsg
func fsStoreMsg(fs unsafe.Pointer, subj string, hdr, msg []byte, ttl int64) (uint64, int64, error)

//go:linkname fsFlush github.com/nats-io/nats-server/v2/server.(*fileStore).FlushAllPending
func fsFlush(fs unsafe.Pointer) error

//go:linkname fsLoadMsg github.com/nats-io/nats-server/v2/server.(*fileStore).LoadMsg
func fsLoadMsg(fs unsafe.Pointer, seq uint64, sm *server.StoreMsg) (*server.StoreMsg, error)

//go:linkname fsStop github.com/nats-io/nats-server/v2/server.(*fileStore).Stop
func fsStop(fs unsafe.Pointer) error

//go:linkname fsFastState github.com/nats-io/nats-server/v2/server.(*fileStore).FastState
func fsFastState(fs unsafe.Pointer, st *server.StreamState)

type natsStore struct {
	fs   unsafe.Pointer
	sync bool
}

func (l *natsStore) Append(recs [][]byte) error {
	for _, r := range recs {
		if _, _, err := fsStoreMsg(l.fs, "bench", nil, r, 0); err != nil {
			return err
		}
	}
	if l.sync {
		return fsFlush(l.fs)
	}
	return nil
}
func (l *natsStore) Flush() error { return fsFlush(l.fs) }
func (l *natsStore) Close() error { return fsStop(l.fs) }

func openNatsStore(dir string, sync bool) (unsafe.Pointer, error) {
	// With sync: the mode that the server gives its own write-ahead batches,
	// one sync for each flush. Without: what a stream that isn't replicated
	// gets by default, a write to the file for each message, and a sync in
	// the background.
	return newFileStore(server.FileStoreConfig{
		StoreDir: dir, AsyncFlush: sync, SyncAlways: sync, SyncOnFlush: sync,
		SyncInterval: time.Hour,
	}, server.StreamConfig{
		Name: "BENCH", Subjects: []string{"bench"}, Storage: server.FileStorage, Replicas: 1,
	})
}

var natsStorePeer = Peer{
	Name: "nats-store",
	Open: func(dir string, sync bool) (Log, error) {
		fs, err := openNatsStore(dir, sync)
		if err != nil {
			return nil, err
		}
		return &natsStore{fs: fs, sync: sync}, nil
	},
	Read: func(dir string, each func([]byte)) error {
		fs, err := openNatsStore(dir, false)
		if err != nil {
			return err
		}
		defer fsStop(fs)
		var st server.StreamState
		fsFastState(fs, &st)
		var sm server.StoreMsg
		for seq := st.FirstSeq; seq <= st.LastSeq && seq > 0; seq++ {
			m, err := fsLoadMsg(fs, seq, &sm)
			if err != nil {
				return err
			}
			each(*storeMsgPayload(m))
		}
		return nil
	},
	Reopen: func(dir string) (func() error, error) {
		fs, err := openNatsStore(dir, false)
		if err != nil {
			return nil, err
		}
		return func() error { return fsStop(fs) }, nil
	},
	Crash: func(dir string) error {
		err := os.Remove(filepath.Join(dir, "msgs", "index.db"))
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	},
}

// storeMsgPayload finds the unexported payload of a StoreMsg, laid out as
// subj string; hdr, msg, buf []byte; seq uint64; ts int64.
func storeMsgPayload(m *server.StoreMsg) *[]byte {
	return (*[]byte)(unsafe.Add(unsafe.Pointer(m), unsafe.Sizeof("")+unsafe.Sizeof([]byte{})))
}

// natsServer is a whole server in this process, spoken to over an in-process
// connection: what an embedder of JetStream really gets.
type natsServer struct {
	s  *server.Server
	nc *nats.Conn
	js nats.JetStreamContext
}

func (l *natsServer) Append(recs [][]byte) error {
	if len(recs) == 1 {
		_, err := l.js.Publish("bench", recs[0])
		return err
	}
	acks := make([]nats.PubAckFuture, len(recs))
	for i, r := range recs {
		a, err := l.js.PublishAsync("bench", r)
		if err != nil {
			return err
		}
		acks[i] = a
	}
	for _, a := range acks {
		select {
		case <-a.Ok():
		case err := <-a.Err():
			return err
		}
	}
	return nil
}
func (l *natsServer) Flush() error { return nil }
func (l *natsServer) Close() error {
	l.nc.Close()
	l.s.Shutdown()
	l.s.WaitForShutdown()
	return nil
}

var natsServerPeer = Peer{
	Name: "nats-server",
	Open: func(dir string, sync bool) (Log, error) {
		s, err := server.NewServer(&server.Options{
			JetStream: true, StoreDir: dir, DontListen: true, NoLog: true, NoSigs: true,
			SyncAlways: sync, SyncInterval: time.Hour,
			JetStreamMaxStore: 16 << 30, JetStreamMaxMemory: 1 << 30,
		})
		if err != nil {
			return nil, err
		}
		s.Start()
		if !s.ReadyForConnections(10 * time.Second) {
			return nil, errors.New("nats: not ready")
		}
		nc, err := nats.Connect("", nats.InProcessServer(s))
		if err != nil {
			return nil, err
		}
		js, err := nc.JetStream(nats.PublishAsyncMaxPending(4096))
		if err != nil {
			return nil, err
		}
		if _, err := js.AddStream(&nats.StreamConfig{
			Name: "BENCH", Subjects: []string{"bench"}, Storage: nats.FileStorage,
		}); err != nil {
			return nil, err
		}
		return &natsServer{s: s, nc: nc, js: js}, nil
	},
	Concurrent: true,
}
