//go:build ignore

// Nothing does nothing: where it runs, programs of its platform run.
package main

func main() {}
