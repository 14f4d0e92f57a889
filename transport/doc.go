// Package transport carries frames between the nodes of a cluster, over a
// listener and a dialer that the host supplies, or in memory.
package transport
