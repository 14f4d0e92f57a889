package memstore_test

import (
	"strings"
	"testing"

	"github.com/cordwood-io/cordwood/tier"
	"github.com/cordwood-io/cordwood/tier/memstore"
	"github.com/cordwood-io/cordwood/tier/tiertest"
)

func TestStore(t *testing.T) {
	tiertest.TestStore(t, func(t *testing.T) tier.ObjectStore { return memstore.New() })
}

func put(t *testing.T, s *memstore.Store, key, data string, ifAbsent bool) {
	t.Helper()
	if err := s.Put(t.Context(), key, strings.NewReader(data), int64(len(data)), tier.PutOptions{IfAbsent: ifAbsent}); err != nil {
		t.Fatal(err)
	}
}

func TestCheck(t *testing.T) {
	tests := []struct {
		name string
		run  func(*testing.T, *memstore.Store)
		ok   bool
	}{
		{"once", func(t *testing.T, s *memstore.Store) { put(t, s, "k", "a", true) }, true},
		{"replaced", func(t *testing.T, s *memstore.Store) { put(t, s, "k", "a", true); put(t, s, "k", "b", false) }, false},
		{"same again", func(t *testing.T, s *memstore.Store) { put(t, s, "k", "a", true); put(t, s, "k", "a", false) }, true},
		{"reused", func(t *testing.T, s *memstore.Store) {
			put(t, s, "k", "a", true)
			s.Delete(t.Context(), []string{"k"})
			put(t, s, "k", "b", true)
		}, false},
		{"mutable", func(t *testing.T, s *memstore.Store) { put(t, s, "k", "a", false); put(t, s, "k", "b", false) }, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := memstore.New()
			test.run(t, s)
			if err := s.Check(); (err == nil) != test.ok {
				t.Errorf("Check: %v", err)
			}
		})
	}
}

func TestCountsAndCorrupt(t *testing.T) {
	s := memstore.New()
	put(t, s, "a", "12345", false)
	put(t, s, "b", "123", false)
	put(t, s, "a", "1", false)
	if s.Len() != 2 || s.Bytes() != 4 {
		t.Errorf("Len %d, Bytes %d, want 2, 4", s.Len(), s.Bytes())
	}
	s.Delete(t.Context(), []string{"b", "b"})
	if s.Len() != 1 || s.Bytes() != 1 {
		t.Errorf("Len %d, Bytes %d, want 1, 1", s.Len(), s.Bytes())
	}
	if s.Corrupt("none", 0) || s.Corrupt("a", 1) || !s.Corrupt("a", 0) {
		t.Error("Corrupt reports the wrong thing")
	}
	if b, err := s.GetRange(t.Context(), "a", 0, 1); err != nil || string(b) == "1" {
		t.Errorf("after Corrupt: %q, %v", b, err)
	}
}
