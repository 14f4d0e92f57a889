// Package cordwood is an embeddable, tiered, Raft-replicated log.
package cordwood
