package tier

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// The owner object, 28 bytes, integers big-endian:
//
//	offset size field
//	0      4    magic "CWOW"
//	4      2    version, 1
//	6      2    0
//	8      16   cluster id
//	24     4    CRC32C of bytes 0-23
//
// On disk: must not change. See docs/format/segment-object.md.
const (
	ownerMagic   = "CWOW"
	ownerVersion = 1
	ownerBytes   = 28
)

func checksum(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

func ownerContent(id ID) []byte {
	b := make([]byte, 0, ownerBytes)
	b = append(b, ownerMagic...)
	b = binary.BigEndian.AppendUint16(b, ownerVersion)
	b = binary.BigEndian.AppendUint16(b, 0)
	b = append(b, id[:]...)
	return binary.BigEndian.AppendUint32(b, checksum(b))
}

// parseOwner reads what ownerContent wrote.
func parseOwner(b []byte) (ID, error) {
	if len(b) != ownerBytes || string(b[:4]) != ownerMagic || checksum(b[:24]) != binary.BigEndian.Uint32(b[24:]) {
		return ID{}, fmt.Errorf("%w: not an owner object", ErrCorrupt)
	}
	if v := binary.BigEndian.Uint16(b[4:]); v != ownerVersion {
		return ID{}, &VersionError{What: "owner object", Version: int(v)}
	}
	return ID(b[8:24]), nil
}

type ownership uint8

const (
	ownerUnknown ownership = iota
	ownerOurs
	ownerForeign
)

// checkOwner finds out whose the prefix is, in the background.
func (m *Manager) checkOwner(ctx context.Context) {
	key := OwnerKey(m.o.Prefix)
	content := ownerContent(m.o.Cluster)
	for failures := 0; ctx.Err() == nil; failures++ {
		owner, err := m.askOwner(ctx, key, content)
		m.mu.Lock()
		m.owner, m.ownErr = owner, err
		var parts []*Partition
		if owner == ownerOurs {
			for _, p := range m.parts {
				parts = append(parts, p)
			}
		}
		m.mu.Unlock()
		if owner == ownerForeign {
			m.o.Logger.Error("object store refused", "key", key, "error", err)
			return
		}
		if owner == ownerOurs {
			for _, p := range parts {
				p.Kick()
			}
			return
		}
		if sleep(ctx, backoff(failures, &m.o, err)) != nil {
			return
		}
	}
}

func (m *Manager) askOwner(ctx context.Context, key string, content []byte) (ownership, error) {
	ctx, cancel := context.WithTimeout(ctx, m.o.StoreTimeout)
	defer cancel()
	put := func() error {
		return m.o.Store.Put(ctx, key, bytes.NewReader(content), int64(len(content)), PutOptions{
			IfAbsent: true, CRC32C: checksum(content), HasCRC32C: true,
		})
	}
	if m.o.Store.Capabilities().IfAbsent {
		err := put()
		if err == nil {
			return ownerOurs, nil
		}
		if !errors.Is(err, ErrExists) {
			return ownerUnknown, err
		}
	}
	got, err := m.o.Store.GetRange(ctx, key, 0, int64(len(content)))
	if errors.Is(err, ErrNotFound) {
		// A store without conditions: two clusters that begin at the same moment
		// can both write here, and one of them finds out at its next start.
		if err = put(); err == nil {
			got, err = m.o.Store.GetRange(ctx, key, 0, int64(len(content)))
		}
	}
	if err != nil {
		return ownerUnknown, err
	}
	// Only an intact object of another cluster is final: damage may be that of one
	// read, and until it is settled nothing is written.
	id, err := parseOwner(got)
	if err != nil {
		return ownerUnknown, fmt.Errorf("%s: %w", key, err)
	}
	if id != m.o.Cluster {
		return ownerForeign, fmt.Errorf("%w: %s names cluster %v, this is %v", ErrForeignStore, key, id, m.o.Cluster)
	}
	return ownerOurs, nil
}

// ours says whether objects may be written and deleted.
func (m *Manager) ours() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.owner == ownerOurs
}

// notOurs returns nil if the store is known to be ours, or else ErrUnknown with the cause.
func (m *Manager) notOurs() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.owner == ownerOurs:
		return nil
	case m.ownErr != nil:
		return fmt.Errorf("%w: owner of the store: %w", ErrUnknown, m.ownErr)
	}
	return fmt.Errorf("%w: owner of the store", ErrUnknown)
}
