package record_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cordwood-io/cordwood/log/record"
)

// text returns a value of that many bytes that compresses about as JSON does.
func text(size int) []byte {
	rng := rand.New(rand.NewPCG(1, 2))
	var b []byte
	for len(b) < size {
		b = fmt.Appendf(b, `{"id":%d,"stack":"oak-%d","dry":true}`, rng.IntN(1e9), rng.IntN(50))
	}
	return b[:size]
}

func BenchmarkBuild(b *testing.B) {
	for _, codec := range codecs {
		b.Run(fmt.Sprintf("codec=%v/records=100/size=1KiB", codec), func(b *testing.B) {
			r := record.Record{Timestamp: noon, Value: text(1024)}
			builder := &record.Builder{Compression: codec}
			b.SetBytes(100 * 1024)
			b.ReportAllocs()
			for b.Loop() {
				builder.Reset()
				for range 100 {
					builder.Append(r)
				}
				if _, err := builder.Build(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkRecords(b *testing.B) {
	for _, codec := range codecs {
		b.Run(fmt.Sprintf("codec=%v/records=100/size=1KiB", codec), func(b *testing.B) {
			var records []record.Record
			all := text(100 << 10)
			for i := range 100 {
				records = append(records, record.Record{Timestamp: noon, Value: all[i<<10 : (i+1)<<10]})
			}
			batch := build(b, &record.Builder{Compression: codec}, records...)
			b.SetBytes(100 * 1024)
			b.ReportAllocs()
			for b.Loop() {
				for _, err := range batch.Records() {
					if err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}

func BenchmarkVerify(b *testing.B) {
	for _, size := range []int{1 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("size=%dKiB", size>>10), func(b *testing.B) {
			batch := build(b, new(record.Builder), record.Record{Value: make([]byte, size)})
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				if err := batch.Verify(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
