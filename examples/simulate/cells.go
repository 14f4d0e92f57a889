package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/go-analyze/charts"

	"github.com/cordwood-io/cordwood/balance"
	"github.com/cordwood-io/cordwood/balance/balancetest"
	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/record"
)

// The workload of Kora's experiment with cells (VLDB 2023, section 5.3): 24 brokers; topics with one producer at 50 000 messages a second and one
// consumer each, 16 of them. The paper does not say message size, replication factor, batching and hardware: these are ours, chosen before the
// result was seen. Every arm offers the same bytes to every broker; only how many brokers a client and a follower talk to differs.
const (
	cellsTopics      = 16
	cellsRate        = 50_000.0 // messages per second and topic
	cellsMessage     = 1024.0   // bytes
	cellsReplication = 3
	cellsLinger      = 5 * time.Millisecond // of producers; one request for each broker and linger
	cellsFetch       = 5 * time.Millisecond // between two fetches of a follower, or a consumer, from one broker
	publishedFlat    = 73.0
	publishedCells   = 53.0
	publishedRatio   = .726
	agreement        = .08
)

var cellSizes = []int{3, 4, 6, 8, 12, 24}

// cost is what a broker pays: seconds for a request and for a byte.
type cost struct{ request, byte float64 }

// perSecond returns the requests and the bytes that one broker handles in a second when cells have size brokers.
func perSecond(size int) (requests, bytes float64) {
	s := float64(size)
	ingress := cellsTopics * cellsRate * cellsMessage / brokersInAll
	topics := cellsTopics * s / brokersInAll // topics whose clients talk to one broker
	// A pair of client and broker exchanges a request each interval, or fewer if less than one message arrives in it.
	perPair := func(interval time.Duration) float64 {
		return min(1/interval.Seconds(), cellsRate/s)
	}
	produce := topics * perPair(cellsLinger)
	consume := topics * perPair(cellsFetch)
	followers := (s - 1) / cellsFetch.Seconds() // fetches served; as many are issued
	requests = produce + consume + 2*followers
	bytes = ingress * (1 + 1 + 2*(cellsReplication-1)) // in, out to consumers, out to followers and in from leaders
	return requests, bytes
}

const brokersInAll = 24.0

// busy returns the cost of a second of one broker.
func (c cost) busy(size int) float64 {
	requests, bytes := perSecond(size)
	return c.request*requests + c.byte*bytes
}

// cells predicts the load with cells from that without: the two costs come from a micro-benchmark, the total is scaled to the published flat load,
// and the load of every other size follows.
func cells(r Run) (map[string]any, error) {
	fmt.Fprintln(r.Log, "Micro-benchmark: framed TCP over loopback, CRC, append to a log; processor time of client and server.")
	points, err := benchLoop(r)
	if err != nil {
		return nil, fmt.Errorf("micro-benchmark: %w", err)
	}
	measured, err := fitCost(points)
	if err != nil {
		return nil, err
	}
	table := tabwriter.NewWriter(r.Log, 2, 8, 2, ' ', 0)
	fmt.Fprintln(table, "bytes a request\tmeasured\tfitted")
	for _, p := range points {
		fmt.Fprintf(table, "%d\t%.1f µs\t%.1f µs\n", p.bytes, 1e6*p.seconds, 1e6*(measured.request+measured.byte*float64(p.bytes)))
	}
	fmt.Fprintf(table, "a request costs %.1f µs, a byte %.3f ns: as much as %.0f bytes\n\n", 1e6*measured.request, 1e9*measured.byte, measured.request/measured.byte)

	// The fit takes the ratio of the costs that gives the published ratio; it is no prediction for size 6.
	fitted := cost{byte: measured.byte}
	lo, hi := 0.0, 1.0
	for range 200 {
		fitted.request = (lo + hi) / 2
		if fitted.busy(6)/fitted.busy(24) > publishedRatio {
			lo = fitted.request
		} else {
			hi = fitted.request
		}
	}
	null := cost{byte: measured.byte}
	load := func(c cost, size int) float64 { return publishedFlat * c.busy(size) / c.busy(24) }
	ratio := measured.busy(6) / measured.busy(24)
	agrees := math.Abs(ratio-publishedRatio) <= agreement

	fmt.Fprintln(table, "brokers a cell\trequests a broker and second\tload, predicted\tload, costs fitted\tload by waits\tp99 wait")
	curve, fittedCurve := []map[string]any{}, []map[string]any{}
	var labels []string
	lines := [][]float64{{}, {}}
	var p99 []float64
	for _, s := range cellSizes {
		requests, _ := perSecond(s)
		l, f := load(measured, s), load(fitted, s)
		byWait, wait := queueAt(l/100, r.Seed)
		fmt.Fprintf(table, "%d\t%.0f\t%.1f %%\t%.1f %%\t%.1f %%\t%.2f services\n", s, requests, l, f, 100*byWait, wait)
		curve = append(curve, map[string]any{"size": s, "load": l})
		fittedCurve = append(fittedCurve, map[string]any{"size": s, "load": f})
		labels = append(labels, fmt.Sprint(s))
		lines[0], lines[1] = append(lines[0], l), append(lines[1], f)
		p99 = append(p99, wait)
	}
	fmt.Fprintf(table, "\npublished: %.0f %% flat, %.0f %% with cells of six, ratio %.3f\n", publishedFlat, publishedCells, publishedRatio)
	fmt.Fprintf(table, "predicted ratio %.3f, agrees within %.2f: %v; without a cost of requests %.3f\n\n", ratio, agreement, agrees, null.busy(6)/null.busy(24))

	fmt.Fprintln(table, "message size assumed\tratio predicted")
	sensitivity := []map[string]any{}
	for _, size := range []float64{128, 256, 512, 1024, 2048, 4096} {
		ratioAt := func(s int) float64 {
			requests, bytes := perSecond(s)
			return measured.request*requests + measured.byte*bytes*size/cellsMessage
		}
		x := ratioAt(6) / ratioAt(24)
		fmt.Fprintf(table, "%.0f bytes\t%.3f\n", size, x)
		sensitivity = append(sensitivity, map[string]any{"message_bytes": size, "ratio": x})
	}
	fmt.Fprintln(table, "\narm\ttenants that a slow broker touches\tp99 of them\tp99 of the others")
	flatBlast, cellBlast := blast(24, r.Seed), blast(6, r.Seed)
	for _, b := range []map[string]any{flatBlast, cellBlast} {
		others := "none left"
		if x, ok := b["p99_unaffected_ms"].(float64); ok {
			others = fmt.Sprintf("%.1f ms", x)
		}
		fmt.Fprintf(table, "cells of %v\t%.0f %%\t%.1f ms\t%s\n", b["size"], 100*b["tenants"].(float64), b["p99_affected_ms"], others)
	}
	if err := table.Flush(); err != nil {
		return nil, err
	}
	fmt.Fprintln(r.Log, "\nThis is a model with measured costs, not a measurement of a cluster. The flat arm is scaled to the published load, so only the ratio is predicted.")
	if r.SVG != "" {
		published := make([]float64, len(cellSizes))
		for i, size := range cellSizes {
			switch size {
			case 6:
				published[i] = publishedCells
			case 24:
				published[i] = publishedFlat
			default:
				published[i] = charts.GetNullValue()
			}
		}
		a := dots(chart("Load of a broker by the size of cells: 24 brokers, the same traffic",
			fmt.Sprintf("From %.1f µs a request and %.2f ns a byte, scaled to 73 %% flat: ratio %.3f; published .726.", 1e6*measured.request, 1e9*measured.byte, ratio),
			"brokers in a cell", []string{"predicted", "costs fitted to .726", "published"}, labels, append(lines, published), 0, 80, 20, "%.0f %%"))
		a.SeriesList[2].Symbol = charts.Symbol{Shape: charts.SymbolDiamond, Size: 5}
		most, step := upTo(maxOf([][]float64{p99}))
		b := dots(chart("99th percentile of the wait in a broker with eight handlers", "In mean service times, at the predicted load.", "brokers in a cell",
			[]string{"p99 wait"}, labels, [][]float64{p99}, 0, most, step, "%.1f"))
		if err := plotPanels(r.SVG, a, b); err != nil {
			return nil, err
		}
	}
	var bench []map[string]any
	for _, p := range points {
		bench = append(bench, map[string]any{"bytes": p.bytes, "seconds": p.seconds})
	}
	return map[string]any{"flat": load(measured, 24), "cells": load(measured, 6), "ratio": ratio, "agrees": agrees,
		"ratio_fitted": fitted.busy(6) / fitted.busy(24), "null_ratio": null.busy(6) / null.busy(24), "curve": curve, "curve_fitted": fittedCurve,
		"request_seconds": measured.request, "byte_seconds": measured.byte, "benchmark": bench, "message_sizes": sensitivity,
		"blast_radius": []map[string]any{flatBlast, cellBlast}}, nil
}

// queueAt returns the load that a pool of eight handlers estimates from its own waits and busy time at a utilisation, and the
// 99th percentile of the wait, in services, of the same queue by the exact law of M/M/8.
func queueAt(rho float64, seed uint64) (estimate, p99 float64) {
	if rho >= .99 {
		return 1, math.Inf(1)
	}
	pool := &balance.Pool{Servers: 8}
	n := 0.0
	balancetest.Queue{Servers: 8, Utilization: rho, Service: 8 * time.Millisecond, Seed: seed}.Run(pool, simEpoch, 8*time.Minute, 5*time.Second, func(now time.Time) {
		if now.Sub(simEpoch) >= 3*time.Minute {
			n++
			estimate += pool.Stats(now).Load.Overall
		}
	})
	_, wait := balance.ErlangC(8, rho)
	return estimate / n, max(math.Log(wait/.01)/(8*(1-rho)), 0)
}

// blast makes one of 24 brokers ten times as slow and returns how many of 24 tenants it touches and the produce latency of those and of the
// others. A tenant's partitions lie on all brokers of its cell, three copies each; a produce request waits for its leader and two followers.
func blast(size int, seed uint64) map[string]any {
	const tenants, requests, base = 24, 4000, 2.0 // ms
	r := rand.New(rand.NewPCG(seed, 9))
	var hit, spared []float64
	touched := 0
	for t := range tenants {
		cell := t % (24 / size)
		affected := cell == 0 // broker 0 is the slow one
		if affected {
			touched++
		}
		for range requests {
			perm := r.Perm(size)[:cellsReplication]
			time := func(k int) float64 {
				x := base * r.ExpFloat64()
				if affected && perm[k] == 0 {
					x *= 10
				}
				return x
			}
			l := time(0) + max(time(1), time(2))
			if affected {
				hit = append(hit, l)
			} else {
				spared = append(spared, l)
			}
		}
	}
	out := map[string]any{"size": size, "tenants": float64(touched) / tenants, "p99_affected_ms": balance.Percentile(hit, .99), "p99_unaffected_ms": nil}
	if len(spared) > 0 {
		out["p99_unaffected_ms"] = balance.Percentile(spared, .99)
	}
	return out
}

// loopPoint is the processor time of one request of a size.
type loopPoint struct {
	bytes   int
	seconds float64
}

// fitCost fits seconds = request + byte * bytes by least squares of relative errors.
func fitCost(points []loopPoint) (cost, error) {
	var s, sx, sxx, sy, sxy float64
	for _, p := range points {
		w := 1 / (p.seconds * p.seconds)
		x := float64(p.bytes)
		s, sx, sxx, sy, sxy = s+w, sx+w*x, sxx+w*x*x, sy+w*p.seconds, sxy+w*x*p.seconds
	}
	b := (s*sxy - sx*sy) / (s*sxx - sx*sx)
	c := cost{request: (sy - b*sx) / s, byte: b}
	if !(c.request > 0 && c.byte > 0) {
		return cost{}, fmt.Errorf("the micro-benchmark gives %g s a request and %g s a byte", c.request, c.byte)
	}
	return c, nil
}

// benchLoop measures a loopback request loop: four clients send frames with a CRC and a record batch, the server checks the CRC, appends the
// batch to its log, unsynced as a replicated leader does, and answers with sixteen bytes. Time is that of the processor, of the whole process, so
// that other work on the machine counts little.
func benchLoop(r Run) ([]loopPoint, error) {
	total := int64(48 << 20)
	repeat := 3
	if r.Full {
		total, repeat = 256<<20, 7
	}
	var points []loopPoint
	for _, size := range []int{1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10} {
		n := int(min(max(total/int64(size), 64), 8000))
		var samples []float64
		for range repeat {
			x, err := loop(size, n)
			if err != nil {
				return nil, err
			}
			samples = append(samples, x)
		}
		slices.Sort(samples)
		points = append(points, loopPoint{size, samples[len(samples)/2]})
	}
	return points, nil
}

func loop(size, n int) (seconds float64, err error) {
	dir, err := os.MkdirTemp("", "cordwood-cells-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	ctx := context.Background()
	l, err := log.Open(ctx, dir, log.Options{})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	var b record.Builder
	value := make([]byte, 1000)
	for b.Len() == 0 || b.Size()+len(value) < size {
		if err := b.Append(record.Record{Value: value[:min(len(value), size-100)]}); err != nil {
			return 0, err
		}
	}
	batch, err := b.Build()
	if err != nil {
		return 0, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	const clients = 4
	var wg sync.WaitGroup
	failed := make([]error, 2*clients+1)
	wg.Go(func() {
		for i := range clients {
			c, err := listener.Accept()
			if err != nil {
				failed[2*clients] = err
				return
			}
			wg.Go(func() { failed[clients+i] = serveLoop(c, l) })
		}
	})
	before, err := processorTime()
	if err != nil {
		return 0, err
	}
	for i := range clients {
		wg.Go(func() { failed[i] = clientLoop(listener.Addr().String(), batch.Bytes(), n/clients) })
	}
	wg.Wait()
	after, err := processorTime()
	err = errors.Join(append(failed, err, listener.Close())...)
	return (after - before).Seconds() / float64(n/clients*clients), err
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// clientLoop sends n frames of length, CRC and batch, one after the other, and waits for each answer.
func clientLoop(addr string, batch []byte, n int) (err error) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	frame := make([]byte, 8+len(batch))
	binary.BigEndian.PutUint32(frame, uint32(len(batch)))
	copy(frame[8:], batch)
	answer := make([]byte, 16)
	for range n {
		binary.BigEndian.PutUint32(frame[4:], crc32.Checksum(frame[8:], castagnoli))
		if _, err := c.Write(frame); err != nil {
			return err
		}
		if _, err := io.ReadFull(c, answer); err != nil {
			return err
		}
	}
	return nil
}

// serveLoop answers frames until the client leaves.
func serveLoop(c net.Conn, l *log.Log) (err error) {
	defer func() { err = errors.Join(err, c.Close()) }()
	in := bufio.NewReaderSize(c, 64<<10)
	var head [8]byte
	var body []byte
	answer := make([]byte, 16)
	for {
		if _, err := io.ReadFull(in, head[:]); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		n := int(binary.BigEndian.Uint32(head[:]))
		if n > 1<<20 {
			return errors.New("frame too large")
		}
		body = slices.Grow(body[:0], n)[:n]
		if _, err := io.ReadFull(in, body); err != nil {
			return err
		}
		if crc32.Checksum(body, castagnoli) != binary.BigEndian.Uint32(head[4:]) {
			return errors.New("wrong checksum")
		}
		a, err := l.Write(0, body)
		if err != nil {
			return err
		}
		binary.BigEndian.PutUint64(answer, uint64(a.Base))
		binary.BigEndian.PutUint64(answer[8:], uint64(a.End))
		if _, err := c.Write(answer); err != nil {
			return err
		}
	}
}
