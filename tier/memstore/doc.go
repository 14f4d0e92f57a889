// Package memstore keeps objects in memory: for tests and for logs that need not
// outlive their process.
//
//	store := memstore.New()
//	m, err := tier.NewManager(tier.Options{Store: store, ...})
//
// The store watches its users: [Store.Check] tells whether an object that was
// written under the condition "if absent" was ever given other bytes, or whether
// stored bytes were changed through a slice that somebody kept. It copies what
// goes in and what comes out.
//
// A Store is safe for concurrent use and has no goroutine. Calls never block.
package memstore
