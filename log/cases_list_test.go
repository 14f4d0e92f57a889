package log_test

import (
	"bufio"
	"os"
	"strings"
	"testing"
)

// caseIDs are the sources whose cases the package answers, one after the other as they were collected. testdata/cases.txt says what went
// wrong and what is right; a source that reports what another has reported stands there with the other's name.
const caseIDs = `
	ETCD-5230 ETCD-6515 ETCD-11488 RAFT-WAL-10 PEBBLE-453 PEBBLE-864 log-peers-7 log-peers-8 REDPANDA-4113 PEBBLE-36 PROMETHEUS-18552
	PROMETHEUS-16074 PROMETHEUS-7409 PROMETHEUS-13152 PROMETHEUS-TSDB-524 GRAYLOG-9306
	log-peers-19 RAFT-WAL-32 log-peers-22 log-peers-23 NATS-7788 NATS-7654 REDPANDA-4465 REDPANDA-13611 log-peers-28
	ETCD-6368 KAFKA-3968 CLICKHOUSE-116316 log-peers-31 BRAFT-132 COPYCAT-54 CLICKHOUSE-112101 FLUSS-4012 AUTOMQ-3241 REDPANDA-10492
	NATS-6685 NATS-7384 LIFTBRIDGE-333 KAFKA-13603 KAFKA-12520 PEBBLE-5142
	KAFKA-10207 KAFKA-18929 KAFKA-20609 REDPANDA-6604 KAFKA-6264 KAFKA-4451 KAFKA-5634 LIFTBRIDGE-28 KAFKA-12177 KAFKA-6492 KAFKA-10706
	TIDWALL-34 REDPANDA-7155 REDPANDA-17019 REDPANDA-15011 REDPANDA-5991 KAFKA-9693 KAFKA-15046 ETCD-14370 ETCD-12589
	B43 B44 B49 B50 B53`

// TestCase runs the test of each case, and fails for one of caseIDs that has neither a test nor a reason for none.
func TestCase(t *testing.T) {
	f, err := os.Open("testdata/cases.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // read only
	listed := map[string]bool{}
	for sc := bufio.NewScanner(f); sc.Scan(); {
		line := sc.Text()
		if strings.HasPrefix(line, "#") {
			continue
		}
		id, what, ok := strings.Cut(line, " | ")
		if !ok || listed[id] {
			t.Fatalf("bad line %q", line)
		}
		listed[id] = true
		test := cases[id]
		if same, ok := strings.CutPrefix(what, "as "); ok {
			if cases[same] == nil || test != nil {
				t.Errorf("%s: %s has a test: %v, and so has it: %v", id, same, cases[same] != nil, test != nil)
			}
			continue
		}
		if reason := strings.HasPrefix(what, "none: ") || strings.HasPrefix(what, "later: "); reason == (test != nil) {
			t.Errorf("%s: has a test: %v, has a reason for none: %v", id, test != nil, reason)
		}
		if test != nil {
			t.Run(id, test)
		}
	}
	ids := strings.Fields(caseIDs)
	for _, id := range ids {
		if !listed[id] {
			t.Errorf("%s is not listed", id)
		}
	}
	if len(ids) != len(listed) {
		t.Errorf("%d cases are listed, want %d", len(listed), len(ids))
	}
	for id := range cases {
		if !listed[id] {
			t.Errorf("%s has a test and is not listed", id)
		}
	}
}
