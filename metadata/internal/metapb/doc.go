// Package metapb holds the generated protobuf code of package metadata's records
// and messages.
package metapb

//go:generate protoc --go_out=. --go_opt=paths=source_relative meta.proto
