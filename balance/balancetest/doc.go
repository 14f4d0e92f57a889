// Package balancetest makes the worlds that balance is tried in: queues with known utilisation, clusters with
// heavy-tailed replicas, and traces of latencies that are correlated as real ones are. A host can
// use them to try its own settings. Everything follows from a seed and runs in virtual time, so that any
// run can be repeated. Nothing here is safe for concurrent use.
package balancetest
