// Package metadata keeps the state of a cluster: which brokers there are, which
// topics and partitions, who leads them and who is in sync.
package metadata
