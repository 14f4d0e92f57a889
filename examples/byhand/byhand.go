// Package byhand is the wiring of a Cordwood node, copied out of the library into
// a module of its own: node.go and what stands beside it, under another package
// name. It shows that a host which wants other wiring can start from this copy,
// since nothing in it needs more than the library's public packages.
//
//	go generate   copies the wiring anew
//	go test       checks that the copy is the library's, and runs a cluster on it
package byhand

//go:generate go run copy.go
