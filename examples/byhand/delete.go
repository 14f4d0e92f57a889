package byhand

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/metadata"
)

// Deletion of topics. The record in the metadata is what deletes a topic; all that
// follows is derived from it and can be cut off anywhere: each broker closes its
// replicas and removes their files, at its next start if need be, and whoever leads the
// tier log clears the object store. A topic made later under the same name has another
// id, and so nothing in common with it.

// DeleteTopic deletes a topic with all its records. On return the deletion is
// committed and known to this node: the name is free, and appends and reads that are
// under way end with [ErrTopicDeleted], on other nodes a moment later. Files and objects
// are removed in the background, objects after [Options].BackupWindow; the store may be
// down meanwhile.
//
// Errors: [ErrUnknownTopic], of a deletion that was tried again too;
// [metadata.ErrInvalidRequest] for an internal topic; [ErrNotInitialized], [ErrClosed];
// the context's cause, after which the topic may or may not be deleted, now or later.
func (t *Tenant) DeleteTopic(ctx context.Context, name string) error {
	topic, err := t.Topic(name).lookup(ctx)
	if err != nil {
		return err
	}
	n := t.node
	c := n.cluster.Load()
	ctx, cancel := n.bound(ctx)
	defer cancel()
	if err := c.meta.DeleteTopic(ctx, topic.ID); err != nil {
		if errors.Is(err, metadata.ErrUnknownTopic) {
			return fmt.Errorf("%w: %w", ErrUnknownTopic, err)
		}
		return n.cause(ctx, err)
	}
	_, err = n.waitImage(ctx, func(img *metadata.Image) bool {
		_, ok := img.DeletedTopic(topic.ID)
		return ok
	})
	return err
}

// deletedTopic tells the tier of deleted topics.
func (c *cluster) deletedTopic(id log.TopicID) (epochs []log.Epoch, ok bool) {
	d, ok := c.meta.Image().DeletedTopic(id)
	return d.Epochs, ok
}

// deletePartition closes a replica that is no longer assigned to this node and
// removes its files. Should that fail, or the process die, the rest goes with
// removeStrays.
func (n *Node) deletePartition(c *cluster, id log.PartitionID) {
	c.mu.Lock()
	p := c.partition[id]
	delete(c.partition, id)
	c.mu.Unlock()
	if p == nil {
		return
	}
	err := n.closePartition(c, p)
	if err == nil {
		err = removeTree(n.o.FS, n.partitionDir(id))
	}
	if err != nil {
		n.o.Logger.Error("replica not removed", "partition", id.String(), "err", err)
		c.mu.Lock()
		c.untidy = true
		c.mu.Unlock()
	}
}

// removeStrays removes the files of replicas whose topics are recorded as deleted, and
// no others: that a topic is not known here proves nothing.
func (n *Node) removeStrays(c *cluster) {
	c.mu.Lock()
	untidy := c.untidy
	c.untidy = false
	c.mu.Unlock()
	if !untidy {
		return
	}
	img := c.meta.Image()
	dir := path.Join(n.o.Dir, "partitions")
	names, err := n.o.FS.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	for _, name := range names {
		id, ok := parsePartitionDir(name)
		if !ok || c.get(id) != nil {
			continue
		}
		if _, deleted := img.DeletedTopic(id.Topic); deleted {
			err = errors.Join(err, removeTree(n.o.FS, path.Join(dir, name)))
		}
	}
	if err != nil {
		n.o.Logger.Error("files of deleted topics not removed", "err", err)
		c.mu.Lock()
		c.untidy = true
		c.mu.Unlock()
	}
}

// parsePartitionDir reads what partitionDir writes.
func parsePartitionDir(name string) (id log.PartitionID, ok bool) {
	if len(name) < 38 {
		return id, false
	}
	topic, err := log.ParseTopicID(name[:36])
	if err != nil {
		return id, false
	}
	index, err := strconv.ParseInt(name[37:], 10, 32)
	if err != nil {
		return id, false
	}
	id = log.PartitionID{Topic: topic, Index: int32(index)}
	return id, id.String() == name
}
