package log

import (
	"errors"
	"hash/crc32"
)

// The journal of a [Disk] makes small appends of many logs durable by one write
// and one sync. Its files hold groups, one after the other, each from a multiple of
// 4096 on, so that no write touches a sector of a durable group:
//
//	table, padded to 4096
//	payloads of the entries, in order, padded to 4096
//	the table again, padded to 4096
//
// The table stands twice, so that one damaged sector takes away the bytes of a few
// entries at most, and never which logs and offsets they were:
//
//	offset  size  field
//	0       4     magic "CWJG"
//	4       4     version
//	8       16    journal id
//	24      8     use: its life (high 32 bits), and a number that grows in it
//	32      4     number of the group in the use, from 0
//	36      4     0 in the first table, 1 in the second
//	40      4     number of entries
//	44      4     number of other uses that are still needed
//	48      8     bytes of payloads
//	56      4     CRC32C of the table without this field
//	60      …     for each other use, ascending: use (8), number of its groups (4)
//	…       …     for each entry:
//	16              log id
//	8               generation of the log, see meta.go
//	8               base offset of the segment
//	8               position of the bytes in its file
//	4               number of bytes: whole batches
//	8               offset of the first record
//	8               offset after the last one, E
//	4               CRC32C of the first 21 bytes of each batch of the segment below E
//	4               leader epoch of the last batch
//	8               first append to the segment, ms since 1970
//	4               CRC32C of the bytes
//
// A use is one pass over a file; it never gets its number again. A group is written
// only after the one before is durable. So what a table says of others is true
// whether or not its own group is whole, and only the last group of a life may be
// torn: a bad one before it is damage.
const (
	journalMagic       = "CWJG"
	journalVersion     = 1
	journalBlock       = 4096
	journalHeaderBytes = 60
	journalUseBytes    = 12
	journalEntryBytes  = 80

	maxJournalUses    = 64
	maxJournalEntries = 4096
	maxJournalPayload = 4 << 20
)

type useNumber uint64

func (u useNumber) life() uint32 { return uint32(u >> 32) }

type journalID [16]byte

// A liveUse says that the first groups of a use are still needed.
type liveUse struct {
	use    useNumber
	groups uint32
}

// A journalEntry says where bytes belong and what they are.
type journalEntry struct {
	id            logID
	generation    uint64
	segment       Offset
	position      int64
	size          uint32
	base, end     Offset
	headers       uint32
	epoch         Epoch
	firstAppendMs int64
	sum           uint32
}

// A journalTable is what a group says of itself.
type journalTable struct {
	id      journalID
	use     useNumber
	index   uint32
	live    []liveUse
	entries []journalEntry
	payload int64
}

func journalAlign(n int64) int64 { return (n + journalBlock - 1) &^ (journalBlock - 1) }

func journalTableBytes(uses, entries int) int64 {
	return journalHeaderBytes + int64(uses)*journalUseBytes + int64(entries)*journalEntryBytes
}

// groupBytes returns the length of a group.
func groupBytes(uses, entries int, payload int64) int64 {
	return 2*journalAlign(journalTableBytes(uses, entries)) + journalAlign(payload)
}

func (t *journalTable) bytes() int64 { return groupBytes(len(t.live), len(t.entries), t.payload) }

// payloadAt returns where the payloads begin, from the start of the group.
func (t *journalTable) payloadAt() int64 {
	return journalAlign(journalTableBytes(len(t.live), len(t.entries)))
}

// encode writes the table into b, which has its length.
func (t *journalTable) encode(b []byte, second bool) {
	copy(b[0:4], journalMagic)
	be.PutUint32(b[4:], journalVersion)
	copy(b[8:24], t.id[:])
	be.PutUint64(b[24:], uint64(t.use))
	be.PutUint32(b[32:], t.index)
	be.PutUint32(b[36:], 0)
	be.PutUint32(b[40:], uint32(len(t.entries)))
	be.PutUint32(b[44:], uint32(len(t.live)))
	be.PutUint64(b[48:], uint64(t.payload))
	at := journalHeaderBytes
	for _, u := range t.live {
		be.PutUint64(b[at:], uint64(u.use))
		be.PutUint32(b[at+8:], u.groups)
		at += journalUseBytes
	}
	for i := range t.entries {
		t.entries[i].encode(b[at:])
		at += journalEntryBytes
	}
	sealJournalTable(b, second)
}

// sealJournalTable makes b the first or the second table of its group.
func sealJournalTable(b []byte, second bool) {
	be.PutUint32(b[36:], 0)
	if second {
		be.PutUint32(b[36:], 1)
	}
	be.PutUint32(b[56:], journalTableSum(b))
}

func journalTableSum(b []byte) uint32 {
	return crc32.Update(crc32.Checksum(b[:56], castagnoli), castagnoli, b[60:])
}

func (e *journalEntry) encode(b []byte) {
	copy(b[0:16], e.id[:])
	be.PutUint64(b[16:], e.generation)
	be.PutUint64(b[24:], uint64(e.segment))
	be.PutUint64(b[32:], uint64(e.position))
	be.PutUint32(b[40:], e.size)
	be.PutUint64(b[44:], uint64(e.base))
	be.PutUint64(b[52:], uint64(e.end))
	be.PutUint32(b[60:], e.headers)
	be.PutUint32(b[64:], uint32(e.epoch))
	be.PutUint64(b[68:], uint64(e.firstAppendMs))
	be.PutUint32(b[76:], e.sum)
}

func decodeJournalEntry(b []byte) journalEntry {
	e := journalEntry{
		generation: be.Uint64(b[16:]),
		segment:    Offset(be.Uint64(b[24:])),
		position:   int64(be.Uint64(b[32:])),
		size:       be.Uint32(b[40:]),
		base:       Offset(be.Uint64(b[44:])), end: Offset(be.Uint64(b[52:])),
		headers:       be.Uint32(b[60:]),
		epoch:         Epoch(be.Uint32(b[64:])),
		firstAppendMs: int64(be.Uint64(b[68:])),
		sum:           be.Uint32(b[76:]),
	}
	copy(e.id[:], b[0:16])
	return e
}

func (e *journalEntry) valid() bool {
	return e.segment >= 0 && e.base >= e.segment && e.end > e.base && e.position >= 0 && e.position <= MaxSegmentBytes+maxBatchBytesOnDisk &&
		e.size > 0 && e.size <= maxJournalPayload
}

var errJournalTable = errors.New("no journal table")

// journalTableLength returns the length of the table that b seems to begin with, as
// far as its first journalHeaderBytes tell; 0 if it is none. A *VersionError tells of
// a newer version.
func journalTableLength(b []byte) int64 {
	if len(b) < journalHeaderBytes || string(b[:4]) != journalMagic {
		return 0
	}
	entries, uses, payload := be.Uint32(b[40:]), be.Uint32(b[44:]), be.Uint64(b[48:])
	if entries > maxJournalEntries || uses > maxJournalUses || payload > maxJournalPayload || be.Uint32(b[36:]) > 1 {
		return 0
	}
	return journalTableBytes(int(uses), int(entries))
}

// decodeJournalTable decodes a table that fills b.
func decodeJournalTable(b []byte, name string) (t journalTable, second bool, err error) {
	if n := journalTableLength(b); n == 0 || n != int64(len(b)) || be.Uint32(b[56:]) != journalTableSum(b) {
		return journalTable{}, false, errJournalTable
	}
	if v := be.Uint32(b[4:]); v != journalVersion {
		return journalTable{}, false, &VersionError{Path: name, Version: v, Supported: journalVersion}
	}
	copy(t.id[:], b[8:24])
	t.use, t.index = useNumber(be.Uint64(b[24:])), be.Uint32(b[32:])
	second = be.Uint32(b[36:]) == 1
	t.payload = int64(be.Uint64(b[48:]))
	t.entries = make([]journalEntry, be.Uint32(b[40:]))
	t.live = make([]liveUse, be.Uint32(b[44:]))
	at := journalHeaderBytes
	for i := range t.live {
		t.live[i] = liveUse{useNumber(be.Uint64(b[at:])), be.Uint32(b[at+8:])}
		if i > 0 && t.live[i].use <= t.live[i-1].use || t.live[i].use >= t.use {
			return journalTable{}, false, errJournalTable
		}
		at += journalUseBytes
	}
	var sum int64
	for i := range t.entries {
		t.entries[i] = decodeJournalEntry(b[at:])
		if !t.entries[i].valid() {
			return journalTable{}, false, errJournalTable
		}
		sum += int64(t.entries[i].size)
		at += journalEntryBytes
	}
	if sum != t.payload {
		return journalTable{}, false, errJournalTable
	}
	return t, second, nil
}

// The file journal.id in the journal's folder names the journal; it is replaced,
// durably, before the first group of a life. Payload:
//
//	offset  size  field
//	0       16    journal id: random, made with the folder
//	16      4     life: one more for each Disk that used the journal
//	20      4     first life of which nothing has been given up
const (
	journalDirName   = "cordwood.journal"
	journalIDName    = "journal.id"
	journalIDMagic   = "CWJOURID"
	journalIDVersion = 2
	journalSuffix    = ".journal"
)

type journalIdentity struct {
	id   journalID
	life uint32
	kept uint32
	used uint32
}

func (i *journalIdentity) encode() []byte {
	b := make([]byte, envelopeBytes, envelopeBytes+28)
	b = append(b, i.id[:]...)
	b = be.AppendUint32(b, i.life)
	b = be.AppendUint32(b, i.kept)
	b = be.AppendUint32(b, i.used)
	sealEnvelope(b, journalIDMagic, journalIDVersion)
	return doubled(b)
}

func decodeJournalIdentity(payload []byte) (journalIdentity, error) {
	d := decoder{b: payload}
	var i journalIdentity
	copy(i.id[:], d.take(16))
	i.life, i.kept, i.used = d.u32(), d.u32(), d.u32()
	if !d.done() || i.kept > i.life || i.used > i.life {
		return journalIdentity{}, errDamaged
	}
	return i, nil
}
