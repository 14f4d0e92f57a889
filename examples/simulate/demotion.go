package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"text/tabwriter"
	"time"

	"github.com/cordwood-io/cordwood/balance"
	"github.com/cordwood-io/cordwood/balance/balancetest"
)

// demotion makes one of 24 brokers ten times as slow after a minute and follows the produce latency, with the detector and the
// planner acting and without.
//
// 1 200 partitions with three replicas. A request takes its leader's time and then that of the slower of the two followers
// that are in sync, each exponential around the broker's own mean. Rounds are ten seconds; orders are carried out
// at once; the planner runs every 30 s and sees the loads that the shifted leaderships cause.
func demotion(r Run) (map[string]any, error) {
	const (
		brokers, sick = 24, 5
		factor        = 10.0
		onset         = 6 // rounds
		rounds        = 90
		base          = 2.0 // ms
		requests      = 4000
	)
	type world struct {
		p99      []float64
		detected int // rounds after the onset
		leads    int // leaderships taken off the slow broker
		room     int // other moves of the plans that did that: between healthy brokers, so that those who took over lead no more than the rest
		wave     int // moves of other plans
		bytes    int64
	}
	play := func(act bool) (world, error) {
		w := world{detected: -1}
		rnd := rand.New(rand.NewPCG(r.Seed, 7))
		c := balancetest.Cluster(balancetest.ClusterSpec{Brokers: brokers, Zones: 3, Partitions: 1200, Replication: 3, Alpha: 1.5, Cap: 50, Seed: r.Seed})
		planner, err := balance.NewPlanner(balance.PlanOptions{})
		if err != nil {
			return w, err
		}
		forced, err := balance.NewPlanner(balance.PlanOptions{Force: true})
		if err != nil {
			return w, err
		}
		plan, err := forced.Plan(c, nil, simEpoch)
		if err != nil {
			return w, err
		}
		if err := c.Apply(plan.Moves); err != nil {
			return w, err
		}
		monitor := balance.NewMonitor(balance.HealthOptions{})
		var ledger balance.Ledger
		out := false
		noise := make([][4]balancetest.Noise, brokers)
		for i := range noise {
			for s := range noise[i] {
				noise[i][s] = balancetest.Noise{Sigma: .3, Correlation: .5}
			}
		}
		for round := range rounds {
			now := simEpoch.Add(time.Duration(round) * balancetest.Round)
			slow := func(b balance.BrokerID) float64 {
				if b == sick && round >= onset {
					return factor
				}
				return 1
			}
			var all []float64
			for range requests {
				p := &c.Partitions[rnd.IntN(len(c.Partitions))]
				t := base * slow(p.Leader) * rnd.ExpFloat64()
				ack := 0.0
				for _, rep := range p.Replicas {
					if rep.Broker != p.Leader && !(out && rep.Broker == sick) {
						ack = max(ack, base*slow(rep.Broker)*rnd.ExpFloat64())
					}
				}
				all = append(all, t+ack)
			}
			w.p99 = append(w.p99, balance.Percentile(all, .99))
			if !act {
				continue
			}
			leads := make([]int, brokers)
			for i := range c.Partitions {
				leads[c.Partitions[i].Leader]++
			}
			obs := make([]balance.Observation, brokers)
			for i := range obs {
				o := balance.Observation{Broker: balance.BrokerID(i), Zone: c.Brokers[i].Zone, Registered: true, Outside: true, StorageProgress: true, Samples: 500, Load: .5, Leads: leads[i]}
				for s := range o.Signals {
					o.Signals[s] = time.Duration(base * slow(o.Broker) * noise[i][s].Next(rnd) * float64(time.Millisecond))
				}
				obs[i] = o
			}
			for _, d := range monitor.Round(obs, now) {
				if d.Broker == sick && d.Suppressed == "" && d.Action == balance.LeaveISR {
					out = true
					c.Brokers[sick].DemotedUntil = d.Until
					if w.detected < 0 {
						w.detected = round - onset + 1
					}
				} else if d.Suppressed == "" && !d.Renewal && d.Broker != sick {
					fmt.Fprintf(r.Log, "round %d: unexpected %v of %d\n", round, d.Action, d.Broker)
				}
			}
			if out && leads[sick] > 0 || round%3 == 0 {
				plan, err := planner.Plan(c, &ledger, now)
				if err != nil {
					return w, err
				}
				off := 0
				for _, m := range plan.Moves {
					w.bytes += m.Bytes
					if m.From == sick && m.Kind == balance.MoveLeadership {
						off++
					}
					ledger.Begin(m)
					ledger.End(m, now, true)
				}
				w.leads += off
				if off > 0 {
					w.room += len(plan.Moves) - off
				} else {
					w.wave += len(plan.Moves)
				}
				if err := c.Apply(plan.Moves); err != nil {
					return w, err
				}
			}
		}
		return w, nil
	}
	with, err := play(true)
	if err != nil {
		return nil, err
	}
	without, err := play(false)
	if err != nil {
		return nil, err
	}
	mean := func(v []float64) float64 {
		s := 0.0
		for _, x := range v {
			s += x / float64(len(v))
		}
		return s
	}
	before, ill, after := mean(with.p99[:onset]), mean(without.p99[onset:]), mean(with.p99[onset+with.detected+1:])
	table := tabwriter.NewWriter(r.Log, 2, 8, 2, ' ', 0)
	fmt.Fprintln(table, "figure\tvalue")
	fmt.Fprintf(table, "p99 before\t%.1f ms\n", before)
	fmt.Fprintf(table, "p99 with the slow broker, nothing done\t%.1f ms\n", ill)
	fmt.Fprintf(table, "p99 after the decision\t%.1f ms\n", after)
	fmt.Fprintf(table, "decided after\t%d s\n", with.detected*10)
	fmt.Fprintf(table, "leaderships moved off\t%d\n", with.leads)
	fmt.Fprintf(table, "bytes moved\t%d\n", with.bytes)
	fmt.Fprintf(table, "others moved in the same plans, to make room\t%d\n", with.room)
	fmt.Fprintf(table, "moves of other plans in these %d min\t%d\n", rounds/6, with.wave)
	if err := table.Flush(); err != nil {
		return nil, err
	}
	if r.SVG != "" {
		labels := make([]string, rounds)
		for i := range labels {
			labels[i] = fmt.Sprint((i + 1) / 6)
		}
		most, step := upTo(maxOf([][]float64{without.p99}))
		a := chart("p99 of produce: one of 24 brokers becomes ten times as slow at minute 1",
			fmt.Sprintf("Decided after %d s. %d leaderships leave it and %d others make room, in one plan; %d moves later; %d bytes.", with.detected*10, with.leads, with.room, with.wave, with.bytes),
			"minutes", []string{"acting", "nothing done"}, labels, [][]float64{with.p99, without.p99}, 0, most, step, "%.0f ms")
		a.XAxis.LabelCount = rounds/6 + 1
		if err := plotPanels(r.SVG, a); err != nil {
			return nil, err
		}
	}
	return map[string]any{"p99_before_ms": before, "p99_ill_ms": ill, "p99_after_ms": after, "detected_seconds": with.detected * 10,
		"leaderships": with.leads, "bytes_moved": with.bytes, "room_moves": with.room, "other_moves": with.wave, "within_10_percent": math.Abs(after/before-1) <= .1}, nil
}
