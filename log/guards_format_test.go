package log

import (
	"errors"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/cordwood-io/cordwood/log/record"
)

// Each test here is for guards of a format, by their names in testdata/mutations.txt.

// meta: a start above the local one is taken; changes of a later version are taken; a marker of segments with gaps is taken; a seal
// without sums is taken
func TestGuardFormats(t *testing.T) {
	good := meta{id: logID{1}, start: 4, local: 6, floor: -1}
	for name, change := range map[string]func(m *meta){
		"as it is":                 func(*meta) {},
		"start above local start":  func(m *meta) { m.start = 7 },
		"negative start":           func(m *meta) { m.start = -1 },
		"change of a later one":    func(m *meta) { m.pending = changeReset + 1 },
		"change to nowhere":        func(m *meta) { m.pending, m.pendingTo = changeTruncate, -1 },
		"reset with later epochs":  func(m *meta) { m.pending, m.pendingTo, m.resetChain = changeReset, 5, epochChain{{1, 9}} },
		"reset with falling epoch": func(m *meta) { m.pending, m.pendingTo, m.resetChain = changeReset, 5, epochChain{{4, 1}, {2, 3}} },
	} {
		m := good
		change(&m)
		if _, err := decodeMeta(single(m.encode())); errors.Is(err, errDamaged) != (name != "as it is") {
			t.Errorf("meta, %s: got %v", name, err)
		}
	}
	first, second := segmentInfo{0, 4, 100, 7, 2, 8, 0, 0}, segmentInfo{4, 9, 150, 9, 8, 0, 2, 3}
	for name, c := range map[string]struct {
		segments []segmentInfo
		end      Offset
		ok       bool
	}{
		"as it is":  {[]segmentInfo{first, second}, 9, true},
		"gap":       {[]segmentInfo{first, {5, 9, 150, 9, 8, 0, 2, 3}}, 9, false},
		"overlap":   {[]segmentInfo{first, {3, 9, 150, 9, 8, 0, 2, 3}}, 9, false},
		"wrong way": {[]segmentInfo{second, first}, 4, false},
	} {
		m := cleanMarker{id: logID{1}, end: c.end, segments: c.segments}
		if _, err := decodeClean(single(m.encode())); (err == nil) != c.ok {
			t.Errorf("marker, %s: got %v", name, err)
		}
	}
	for _, sums := range [][]uint32{{1}, nil} {
		s := sealFile{id: logID{1}, info: first, headers: sums}
		if _, err := decodeSeal(single(s.encode())); (err == nil) != (sums != nil) {
			t.Errorf("seal with %d sums: got %v", len(sums), err)
		}
	}
}

// index: entries need not ascend; positions behind the file are taken; times need not ascend
func TestGuardIndexEntries(t *testing.T) {
	for name, c := range map[string]struct {
		entries []indexEntry
		ok      bool
	}{
		"as it is":           {[]indexEntry{{3, 100}, {9, 500}}, true},
		"same offset":        {[]indexEntry{{3, 100}, {3, 500}}, false},
		"lower offset":       {[]indexEntry{{3, 100}, {2, 500}}, false},
		"same position":      {[]indexEntry{{3, 100}, {9, 100}}, false},
		"lower position":     {[]indexEntry{{3, 100}, {9, 99}}, false},
		"at the file's end":  {[]indexEntry{{3, 100}, {9, 600}}, false},
		"at the span's end":  {[]indexEntry{{3, 100}, {12, 500}}, false},
		"position 0":         {[]indexEntry{{3, 0}}, false},
		"last of both":       {[]indexEntry{{11, 599}}, true},
		"negative in 32 bit": {[]indexEntry{{3, 100}, {1 << 31, 500}}, false},
	} {
		if _, err := parseIndex(appendIndex(nil, c.entries), 600, 12); (err == nil) != c.ok {
			t.Errorf("index, %s: got %v", name, err)
		}
	}
	for name, c := range map[string]struct {
		entries []timeEntry
		ok      bool
	}{
		"as it is":          {[]timeEntry{{5, 1}, {7, 3}}, true},
		"same time":         {[]timeEntry{{5, 1}, {5, 3}}, false},
		"lower time":        {[]timeEntry{{5, 1}, {4, 3}}, false},
		"same offset":       {[]timeEntry{{5, 1}, {7, 1}}, false},
		"lower offset":      {[]timeEntry{{5, 1}, {7, 0}}, false},
		"at the span's end": {[]timeEntry{{5, 12}}, false},
	} {
		if _, err := parseTimeIndex(appendTimeIndex(nil, c.entries), 12); (err == nil) != c.ok {
			t.Errorf("time index, %s: got %v", name, err)
		}
	}
}

// slots: checksums are not compared; of another log or segment; the older one is taken; only the last position is looked at
func TestGuardSlots(t *testing.T) {
	own := slot{id: logID{1}, base: 5, sequence: 7, durable: 9, position: 100, written: 200, headers: 1, epoch: 2, end: 11, endHeaders: 3}
	var b [slotBytes]byte
	own.encode(&b)
	for at := range b {
		for bit := range 8 {
			flipped := b
			flipped[at] ^= 1 << bit
			if s, ok := decodeSlot(flipped[:]); ok {
				t.Fatalf("byte %d, bit %d: got %+v", at, bit, s)
			}
		}
	}
	const size = 2*slotFirst + slotArea
	with := func(change func(s *slot)) slot {
		s := own
		change(&s)
		return s
	}
	for name, c := range map[string]struct {
		slots map[int64]slot
		want  uint64
	}{
		"none":            {map[int64]slot{}, 0},
		"first position":  {map[int64]slot{slotFirst: own}, 7},
		"near":            {map[int64]slot{4096 + nearOffset: own}, 7},
		"newer of two":    {map[int64]slot{2 * slotFirst: own, 2*slotFirst + slotGap: with(func(s *slot) { s.sequence = 8 })}, 8},
		"other positions": {map[int64]slot{2 * slotFirst: own, slotFirst + slotGap: with(func(s *slot) { s.sequence = 8 })}, 8},
		"another log":     {map[int64]slot{2 * slotFirst: own, slotFirst: with(func(s *slot) { s.sequence, s.id = 9, logID{2} })}, 7},
		"another segment": {map[int64]slot{2 * slotFirst: own, slotFirst: with(func(s *slot) { s.sequence, s.base = 9, 4 })}, 7},
		"only others":     {map[int64]slot{slotFirst: with(func(s *slot) { s.base = 4 })}, 0},
	} {
		f, err := OSFS{}.Create(filepath.Join(t.TempDir(), "f"))
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Truncate(size); err != nil {
			t.Fatal(err)
		}
		for at, s := range c.slots {
			s.encode(&b)
			if _, err := f.WriteAt(b[:], at); err != nil {
				t.Fatal(err)
			}
		}
		got, _, ok, err := newestSlot(f, size, own.id, own.base)
		if err != nil || ok != (c.want > 0) || got.sequence != c.want {
			t.Errorf("%s: got %+v, %v, %v, want sequence %d", name, got, ok, err, c.want)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// verify: the index is not compared with the batches; the time index is not compared with the batches
func TestGuardForgedIndexes(t *testing.T) {
	for _, suffix := range []string{indexSuffix, timeIndexSuffix} {
		dir := t.TempDir()
		l, err := Open(t.Context(), dir, Options{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 30 {
			if _, err := l.AppendRecords(t.Context(), record.Record{Timestamp: time.UnixMilli(int64(1000 + 10*i)), Value: make([]byte, 1000)}); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(l.Roll(t.Context()), l.Close()); err != nil {
			t.Fatal(err)
		}
		// An entry and its checksum are changed together: only the batches say that it is wrong.
		sealName, name := joinPath(dir, segmentName(0, sealSuffix)), joinPath(dir, segmentName(0, suffix))
		payload, err := readSide(l.fs, sealName, sealMagic, sealVersion)
		if err != nil {
			t.Fatal(err)
		}
		seal, err := decodeSeal(payload)
		if err != nil {
			t.Fatal(err)
		}
		b, err := readFile(l.fs, name, maxSideBytes)
		if err != nil || len(b) < 2*timeEntryBytes {
			t.Fatalf("got %d bytes, %v", len(b), err)
		}
		if suffix == indexSuffix {
			b[indexEntryBytes-1]++ // the position of the first entry
			seal.indexSum = crcUpdate(0, b)
		} else {
			b[7]++ // the time of the first entry
			seal.timeIndexSum = crcUpdate(0, b)
		}
		for _, f := range []newFile{{name, b}, {sealName, seal.encode()}} {
			if err := f.write(l.fs); err != nil {
				t.Fatal(err)
			}
		}
		l, err = Open(t.Context(), dir, Options{})
		if err != nil || !l.Recovery().Clean {
			t.Fatal(err)
		}
		v, err := l.Verify(t.Context(), VerifyOptions{})
		if err != nil || !slices.ContainsFunc(v.Files, func(c *CorruptionError) bool { return filepath.Base(c.Path) == filepath.Base(name) }) {
			t.Errorf("%s: got %+v, %v", suffix, v, err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// read: batches of another place are taken: an index that agrees with its seal leads behind the batch that is wanted.
func TestGuardForgedPosition(t *testing.T) {
	dir := t.TempDir()
	l, err := Open(t.Context(), dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	const n = 30
	for i := range n {
		if _, err := l.AppendRecords(t.Context(), record.Record{Timestamp: time.UnixMilli(int64(1000 + 10*i)), Value: make([]byte, 1000)}); err != nil {
			t.Fatal(err)
		}
	}
	size := l.Segments()[0].Bytes / n
	if err := errors.Join(l.Roll(t.Context()), l.Close()); err != nil {
		t.Fatal(err)
	}
	sealName, name := joinPath(dir, segmentName(0, sealSuffix)), joinPath(dir, segmentName(0, indexSuffix))
	payload, err := readSide(l.fs, sealName, sealMagic, sealVersion)
	if err != nil {
		t.Fatal(err)
	}
	seal, err := decodeSeal(payload)
	if err != nil {
		t.Fatal(err)
	}
	b, err := readFile(l.fs, name, maxSideBytes)
	if err != nil {
		t.Fatal(err)
	}
	entries, err := parseIndex(b, size*n, n)
	if err != nil || len(entries) < 3 {
		t.Fatalf("got %v, %v", entries, err)
	}
	entries[0].position += 2 * uint32(size) // where the batch after the next one begins
	b = appendIndex(nil, entries)
	seal.indexSum = crcUpdate(0, b)
	for _, f := range []newFile{{name, b}, {sealName, seal.encode()}} {
		if err := f.write(l.fs); err != nil {
			t.Fatal(err)
		}
	}
	if l, err = Open(t.Context(), dir, Options{}); err != nil {
		t.Fatal(err)
	}
	for off := range Offset(n) {
		s, err := l.Read(t.Context(), off, 1)
		if err != nil || s.Base() != off {
			t.Errorf("read %d: got %+v, %v", off, s, err)
			continue
		}
		s.Release()
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}
