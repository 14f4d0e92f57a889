package tier

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"log/slog"
	"path"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/record"
)

// LocalEvents is the tier log of one machine: a [log.Log] in a directory of its
// own, beside those whose ranges it speaks of. It also keeps the cluster id that
// the machine's objects carry. An event is durable when Append returns nil.
//
// A leader's epoch on one machine is the number of barriers its partition has
// seen: [Open] appends the next one, so the log itself is the durable counter of
// openings.
type LocalEvents struct {
	log     *log.Log
	fs      log.FS
	dir     string
	cluster ID
}

// LocalOptions configure [OpenLocalEvents].
type LocalOptions struct {
	// Disk or FS, as in [log.Options]: where the directory is.
	Disk *log.Disk
	FS   log.FS

	// Cluster is the id for a new directory; an existing one must have it. Zero
	// means a random one, made once.
	Cluster ID

	// Logger is the log's. Nil discards.
	Logger *slog.Logger
}

// localTopic names the log of LocalEvents. On disk: must not change.
var localTopic = log.TopicID{'c', 'w', '-', 't', 'i', 'e', 'r', '-', 'e', 'v', 'e', 'n', 't', 's', 0, 1}

// The file "tier-cluster" in the directory of LocalEvents has the content of an
// owner object; see ownerContent.
const clusterFile = "tier-cluster"

// OpenLocalEvents opens the tier log in dir, or makes it. It takes the directory
// for itself: [log.ErrLocked] if it is in use. It returns [ErrForeignStore] if the
// directory belongs to another cluster than Options say, and what [log.Open]
// returns.
func OpenLocalEvents(ctx context.Context, dir string, o LocalOptions) (*LocalEvents, error) {
	if o.Disk == nil {
		if o.FS == nil {
			o.FS = log.OSFS{}
		}
	} else {
		if o.FS != nil && o.FS != o.Disk.FS() {
			return nil, errors.New("tier: LocalOptions.Disk and FS are both set")
		}
		o.FS = o.Disk.FS()
	}
	lo := log.Options{
		Disk: o.Disk, Partition: log.PartitionID{Topic: localTopic}, ProducerExpiry: -1, UseReserve: true, Logger: o.Logger,
	}
	if o.Disk == nil {
		lo.FS = o.FS
	}
	l, err := log.Open(ctx, dir, lo)
	if err != nil {
		return nil, fmt.Errorf("tier: open the tier log: %w", err)
	}
	e := &LocalEvents{log: l, fs: o.FS, dir: dir}
	if r := l.Recovery(); r.Lossy {
		err = errors.Join(fmt.Errorf("tier: the tier log in %s is damaged: %w", dir, ErrCorrupt), joinCorruption(r.Corruption))
	} else {
		// The lock of the log guards this file too.
		e.cluster, err = clusterID(o.FS, dir, o.Cluster)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return e, nil
}

func joinCorruption(cs []*log.CorruptionError) error {
	errs := make([]error, len(cs))
	for i, c := range cs {
		errs[i] = c
	}
	return errors.Join(errs...)
}

// clusterID reads the id beside the log, or makes it. It is durable before the
// caller learns it, since the object store will be told.
func clusterID(f log.FS, dir string, want ID) (ID, error) {
	name := path.Join(dir, clusterFile)
	b, err := readFile(f, name, ownerBytes)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		id := want
		if id == (ID{}) {
			id = newID()
		}
		return id, writeFile(f, dir, clusterFile, ownerContent(id))
	case err != nil:
		return ID{}, fmt.Errorf("tier: read %s: %w", name, err)
	}
	id, err := parseOwner(b)
	if err != nil {
		return ID{}, fmt.Errorf("tier: %s: %w", name, err)
	}
	if want != (ID{}) && id != want {
		return ID{}, fmt.Errorf("%w: %s names cluster %v, not %v", ErrForeignStore, name, id, want)
	}
	return id, nil
}

// readFile reads a small file.
func readFile(f log.FS, name string, limit int64) ([]byte, error) {
	file, err := f.Open(name, false)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	size, err := file.Size()
	if err != nil {
		return nil, err
	}
	if size > limit {
		return nil, fmt.Errorf("%w: %d bytes", ErrCorrupt, size)
	}
	b := make([]byte, size)
	if n, err := file.ReadAt(b, 0); n < len(b) {
		return nil, err
	}
	return b, nil
}

// writeFile puts a file into dir, whole or not at all, durable on return.
func writeFile(f log.FS, dir, name string, content []byte) (err error) {
	temp := path.Join(dir, name+".new")
	if err := f.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("tier: write %s: %w", name, err)
	}
	file, err := f.Create(temp)
	if err != nil {
		return fmt.Errorf("tier: write %s: %w", name, err)
	}
	_, err = file.WriteAt(content, 0)
	if err == nil {
		err = file.Sync()
	}
	err = errors.Join(err, file.Close())
	if err == nil {
		err = f.Rename(temp, path.Join(dir, name))
	}
	if err == nil {
		err = f.SyncDir(dir)
	}
	if err != nil {
		return fmt.Errorf("tier: write %s: %w", name, err)
	}
	return nil
}

// Cluster returns the cluster id of this machine.
func (e *LocalEvents) Cluster() ID { return e.cluster }

// Append implements [Events].
func (e *LocalEvents) Append(ctx context.Context, p log.PartitionID, event []byte) error {
	key := binary.BigEndian.AppendUint32(append([]byte(nil), p.Topic[:]...), uint32(p.Index))
	_, err := e.log.AppendRecords(ctx, record.Record{Key: key, Value: event})
	return err
}

// Read implements [Events].
func (e *LocalEvents) Read(ctx context.Context, from log.Offset) iter.Seq2[Committed, error] {
	return func(yield func(Committed, error) bool) {
		at := from
		for {
			for r, err := range e.log.Records(ctx, at) {
				if err != nil {
					yield(Committed{}, err)
					return
				}
				if !yield(Committed{Offset: r.Offset, Event: r.Value}, nil) {
					return
				}
				at = r.Offset + 1
			}
			if err := e.log.WaitDurable(ctx, at); err != nil {
				yield(Committed{}, err)
				return
			}
		}
	}
}

// End implements [Events].
func (e *LocalEvents) End(ctx context.Context) (log.Offset, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if err := e.log.Err(); err != nil {
		return 0, err
	}
	return e.log.DurableEnd(), nil
}

// Close closes the log. What uses the events must be closed before.
func (e *LocalEvents) Close() error { return e.log.Close() }

// Start implements [Events].
func (e *LocalEvents) Start(context.Context) (log.Offset, error) { return e.log.Start(), nil }

// Trim implements [Events].
func (e *LocalEvents) Trim(ctx context.Context, to log.Offset) error {
	if to = min(to, e.log.DurableEnd()); to <= e.log.Start() {
		return nil
	}
	return e.log.TrimTo(ctx, to)
}

// stateDir is where a manager that uses these events may keep its state.
func (e *LocalEvents) stateDir() (log.FS, string) { return e.fs, e.dir }
