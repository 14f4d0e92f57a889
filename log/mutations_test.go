package log_test

import (
	"bytes"
	"os"
	"testing"

	"github.com/cordwood-io/cordwood/internal/mutate"
)

// The tests here take guards out one at a time, as the lists in testdata say, and
// expect some test to notice. They run only when CORDWOOD_MUTATE is set, to 1 or to
// part of a guard's name; testdata/mutations.md says who notices.

func TestMutations(t *testing.T) {
	mutate.Run(t, "testdata/mutations.txt", mutate.Tests{"-timeout=200s", "-short", "-failfast", "-skip", "TestMutations", "."})
}

// TestTxnMutations is for guards of producers and transactions.
func TestTxnMutations(t *testing.T) { mutateWith(t, "testdata/txn_mutations.txt", txnTests) }

// TestRollMutations is for guards of rolls and recycled files.
func TestRollMutations(t *testing.T) { mutateWith(t, "testdata/roll_mutations.txt", rollTests) }

// mutateWith runs some tests only.
func mutateWith(t *testing.T, list, tests string) {
	mutate.Run(t, list, mutate.Tests{"-timeout=100s", "-short", "-failfast", "-run", tests, ".", "-rapid.shrinktime=1s"})
}

// txnTests are the tests that must notice.
const txnTests = "^(TestTransactions|TestProducers|TestProducerExpiry|TestKafkaSnapshot|TestFlippedTxn|TestStale|TestManyEnded|TestControlBatch|TestCase|TestTxnModel|TestTxnGuard)"

// rollTests are those for rolls and recycled files.
const rollTests = "^(TestForgedBatches|TestTornRecycled|TestRecycled|TestRollOnly|TestFlipEveryByte|TestFaultRecycled|TestCrashRecycled|TestCase|TestCrashEverywhere)"

// TestJournalMutations is for guards of the journal. With -short the tests are.
func TestJournalMutations(t *testing.T) {
	short := "-short=false"
	if testing.Short() {
		short = "-short"
	}
	mutate.Run(t, "testdata/journal_mutations.txt", mutate.Tests{"-timeout=100s", "-failfast", "-run", "Journal|Held|Behind", short, "."})
}

// TestEachGuardHasATest: each guard of the lists stands in the code once, and has a row in the table, with a test.
func TestEachGuardHasATest(t *testing.T) {
	table, err := os.ReadFile("testdata/mutations.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"mutations.txt", "journal_mutations.txt", "txn_mutations.txt", "roll_mutations.txt"} {
		list, err := mutate.Read("testdata/" + name)
		if err != nil {
			t.Error(err)
		}
		for _, m := range list {
			if code, err := os.ReadFile(m.File); err != nil || bytes.Count(code, []byte(m.Old)) != 1 {
				t.Errorf("%s: %q stands %d times in %s: %v", name, m.Name, bytes.Count(code, []byte(m.Old)), m.File, err)
			}
			if mutate.Named(table, m.Name) == "" {
				t.Errorf("%s: no test in the table notices that %q is out", name, m.Name)
			}
		}
	}
}
