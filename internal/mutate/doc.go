// Package mutate takes guards out of a package's source, one at a time, and sees
// whether its tests notice. It is for tests of this repository.
//
// A list of guards is a text file of blocks, with comments between them. Each has a
// line with the guard's name and the file it is in, the text that is replaced, and what
// takes its place:
//
//	acks count twice | leader.go
//	<<<
//		if acked { return }
//	===
//		if false { return }
//	>>>
//
// [Run] is the whole of a test:
//
//	func TestMutations(t *testing.T) {
//		mutate.Run(t, "testdata/mutations.txt", mutate.Tests{"-short", "-skip", "TestMutations", "."})
//	}
//
// The source on the disk stays as it is: go test's -overlay stands in for the changed
// file. A table beside each list, mutations.md, says which test noticed.
package mutate
