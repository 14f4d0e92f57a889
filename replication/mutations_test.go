package replication

import (
	"testing"

	"github.com/cordwood-io/cordwood/internal/mutate"
)

// TestMutations takes guards out one at a time, as testdata/mutations.txt lists
// them, and expects some test to notice. It runs only when CORDWOOD_MUTATE is set, to 1
// or to part of a guard's name.
func TestMutations(t *testing.T) {
	mutate.Run(t, "testdata/mutations.txt", mutate.Tests{"-timeout=100s", "-run", "^Test[^M]", ".", "-sim.seeds=199"})
}
