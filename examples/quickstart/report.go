package main

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// A report is what a run measured. Its JSON names are stable.
type report struct {
	Records          int64   `json:"records"`           // in the topic, read back
	Bytes            int64   `json:"bytes"`             // of their values
	Seconds          float64 `json:"seconds"`           // of the whole run
	AppendMBPerS     float64 `json:"append_mb_per_s"`   // 10^6 bytes of values appended, the failover included
	FailoverMs       float64 `json:"failover_ms"`       // from SIGKILL to the first append that the new leader acknowledged
	AckedBeforeKill  int64   `json:"acked_before_kill"` // records acknowledged when the leader was killed
	InFlightAtKill   int64   `json:"in_flight_at_kill"` // records sent and not acknowledged then
	LeaderBefore     int32   `json:"leader_before"`     // node id
	LeaderAfter      int32   `json:"leader_after"`      //
	EpochBefore      int32   `json:"epoch_before"`      // leader epoch
	EpochAfter       int32   `json:"epoch_after"`       //
	Lost             int64   `json:"lost"`              // acknowledged and not read back
	Changed          int64   `json:"changed"`           // read back with another value, or out of order
	Duplicated       int64   `json:"duplicated"`        // read back more than once
	StorePuts        int64   `json:"store_puts"`        // segment objects put, counted before they get their name
	StoreDeletes     int64   `json:"store_deletes"`     // segment objects deleted, counted before
	StoreObjects     int64   `json:"store_objects"`     // segment objects listed that this run added
	SegmentsFinished int64   `json:"segments_finished"` // by the tier's state, added by this run
	LocalBytes       int64   `json:"local_bytes"`       // of the topic's segments on the three nodes' disks
	ColdBytes        int64   `json:"cold_bytes"`        // read back from the object store
	HotBytes         int64   `json:"hot_bytes"`         // read back from a local disk
	PeakRSSBytes     int64   `json:"peak_rss_bytes"`    // largest memory of each process, summed
	ContentSHA256    string  `json:"content_sha256"`    // of the values read back, each followed by a newline
}

// ok reports whether every record is there once, as it was.
func (r *report) ok() bool { return r.Lost == 0 && r.Changed == 0 && r.Duplicated == 0 }

// table prints the report for a person.
func (r *report) table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	mb := func(n int64) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }
	fmt.Fprintf(t, "records\t%d\t%s in %.1f s, appended at %.1f MB/s\n", r.Records, mb(r.Bytes), r.Seconds, r.AppendMBPerS)
	if r.EpochAfter > r.EpochBefore {
		fmt.Fprintf(t, "failover\t%.0f ms\tleader %d, epoch %d -> leader %d, epoch %d; %d acknowledged before, %d in flight\n",
			r.FailoverMs, r.LeaderBefore, r.EpochBefore, r.LeaderAfter, r.EpochAfter, r.AckedBeforeKill, r.InFlightAtKill)
	}
	fmt.Fprintf(t, "read back\t%s cold\t%s hot, sha256 %s\n", mb(r.ColdBytes), mb(r.HotBytes), r.ContentSHA256)
	fmt.Fprintf(t, "store\t%d objects\t%d put, %d deleted, %d finished\n", r.StoreObjects, r.StorePuts, r.StoreDeletes, r.SegmentsFinished)
	fmt.Fprintf(t, "local\t%s\ton three disks; peak memory %s in all\n", mb(r.LocalBytes), mb(r.PeakRSSBytes))
	verdict := "every record is there once, as it was"
	if !r.ok() {
		verdict = "DATA IS WRONG"
	}
	fmt.Fprintf(t, "lost %d\tchanged %d\tduplicated %d: %s\n", r.Lost, r.Changed, r.Duplicated, verdict)
	return t.Flush()
}
