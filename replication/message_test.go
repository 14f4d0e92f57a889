package replication

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/cordwood-io/cordwood/log"
)

func testID(rng *rand.Rand) (p log.PartitionID) {
	for i := range p.Topic {
		p.Topic[i] = byte(rng.Uint32())
	}
	p.Index = rng.Int32()
	return p
}

func testMessages(rng *rand.Rand) (requestMessage, answerMessage, progressMessage) {
	off := func() log.Offset { return log.Offset(rng.Int64() - 1) }
	ep := func() log.Epoch { return log.Epoch(rng.Int32() - 1) }
	q := requestMessage{CatchUp: rng.IntN(2) == 0, Full: rng.IntN(2) == 0, Epoch: rng.Int64(), Session: rng.Uint64(), N: rng.Uint32(),
		WaitMS: rng.Uint32(), MaxBytes: rng.Uint32(), Parts: []fetchRequest{}}
	a := answerMessage{NewSession: rng.IntN(2) == 0, Session: rng.Uint64(), N: rng.Uint32(), Parts: []fetchAnswer{}}
	p := progressMessage{CatchUp: rng.IntN(2) == 0, Wake: rng.IntN(2) == 0, Epoch: rng.Int64(), Session: rng.Uint64(), N: rng.Uint32(), Parts: []progressEntry{}}
	for range rng.IntN(4) {
		q.Parts = append(q.Parts, fetchRequest{testID(rng), rng.Uint64(), ep(), ep(), rng.Int32(), rng.IntN(2) == 0, off(), off(), off(), off()})
		x := fetchAnswer{Partition: testID(rng), Seq: rng.Uint64(), Status: fetchStatus(rng.IntN(12)), Leader: NodeID(rng.Int32() - 1), LeaderEpoch: ep(),
			PrevEpoch: ep(), PayloadBytes: rng.Int32(), HW: off(), LogStart: off(), End: off(), DivergeEpoch: ep()}
		if x.Status == statusTierStart {
			x.Start = off()
		} else {
			x.DivergeEnd = off()
		}
		for range rng.IntN(3) {
			x.Chain = append(x.Chain, log.EpochStart{Epoch: ep(), Start: off()})
		}
		for range rng.IntN(5) {
			x.Producers = append(x.Producers, byte(rng.Uint32()))
		}
		a.Parts = append(a.Parts, x)
		p.Parts = append(p.Parts, progressEntry{testID(rng), ep(), rng.Uint64(), off()})
	}
	for range rng.IntN(3) {
		q.Left = append(q.Left, testID(rng))
	}
	return q, a, p
}

func TestMessagesRoundTrip(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		q, a, p := testMessages(rng)
		if got, err := decodeRequest(q.encode(nil)); err != nil || !reflect.DeepEqual(got, q) {
			t.Fatalf("request: got %+v, %v\nwant %+v", got, err, q)
		}
		if got, err := decodeAnswer(a.encode(nil)); err != nil || !reflect.DeepEqual(got, a) {
			t.Fatalf("answer: got %+v, %v\nwant %+v", got, err, a)
		}
		if got, err := decodeProgress(p.encode(nil)); err != nil || !reflect.DeepEqual(got, p) {
			t.Fatalf("progress: got %+v, %v\nwant %+v", got, err, p)
		}
	}
}

// Every flipped bit and every cut is refused.
func TestMessagesDamaged(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 20 {
		q, a, p := testMessages(rng)
		for _, m := range []struct {
			b      []byte
			decode func([]byte) error
		}{
			{q.encode(nil), func(b []byte) error { _, err := decodeRequest(b); return err }},
			{a.encode(nil), func(b []byte) error { _, err := decodeAnswer(b); return err }},
			{p.encode(nil), func(b []byte) error { _, err := decodeProgress(b); return err }},
		} {
			for i := range m.b {
				b := bytes.Clone(m.b)
				b[i] ^= 1 << rng.IntN(8)
				if err := m.decode(b); !errors.Is(err, ErrMessage) {
					t.Fatalf("bit of byte %d flipped: %v", i, err)
				}
				if err := m.decode(m.b[:i]); !errors.Is(err, ErrMessage) {
					t.Fatalf("cut at %d: %v", i, err)
				}
			}
		}
	}
}

// fuzz gives a decoder bytes with a good checksum, so that the fuzzer gets behind it.
func fuzz[M any](f *testing.F, seeds [][]byte, decode func([]byte) (M, error), encode func(M) []byte) {
	for _, b := range seeds {
		f.Add(b[:len(b)-crcBytes])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		decode(b)
		b = finish(bytes.Clone(b))
		m, err := decode(b)
		if err != nil {
			if !errors.Is(err, ErrMessage) {
				t.Fatalf("error of another kind: %v", err)
			}
			return
		}
		again, err := decode(encode(m))
		if err != nil || !reflect.DeepEqual(again, m) {
			t.Fatalf("does not round-trip: %+v, %v, %+v", m, err, again)
		}
	})
}

func fuzzSeeds() (q, a, p [][]byte) {
	rng := rand.New(rand.NewPCG(5, 6))
	for range 8 {
		x, y, z := testMessages(rng)
		q, a, p = append(q, x.encode(nil)), append(a, y.encode(nil)), append(p, z.encode(nil))
	}
	return q, a, p
}

func FuzzRequest(f *testing.F) {
	seeds, _, _ := fuzzSeeds()
	fuzz(f, seeds, decodeRequest, func(m requestMessage) []byte { return m.encode(nil) })
}

func FuzzAnswer(f *testing.F) {
	_, seeds, _ := fuzzSeeds()
	fuzz(f, seeds, decodeAnswer, func(m answerMessage) []byte { return m.encode(nil) })
}

func FuzzProgress(f *testing.F) {
	_, _, seeds := fuzzSeeds()
	fuzz(f, seeds, decodeProgress, func(m progressMessage) []byte { return m.encode(nil) })
}

func FuzzHint(f *testing.F) {
	type hw struct {
		seq uint64
		hw  log.Offset
	}
	f.Add(encodeHint(simPartition, 7, 1234)[:hintBytes-crcBytes])
	f.Fuzz(func(t *testing.T, b []byte) {
		decodeHint(b, simPartition)
		b = finish(bytes.Clone(b[:min(len(b), hintBytes-crcBytes)]))
		seq, off, err := decodeHint(b, simPartition)
		if err != nil {
			if !errors.Is(err, ErrMessage) {
				t.Fatalf("error of another kind: %v", err)
			}
			return
		}
		s2, o2, err := decodeHint(encodeHint(simPartition, seq, off), simPartition)
		if err != nil || (hw{s2, o2}) != (hw{seq, off}) {
			t.Fatalf("does not round-trip: %d %d, %d %d %v", seq, off, s2, o2, err)
		}
	})
}
