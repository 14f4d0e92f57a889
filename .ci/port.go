//go:build ignore

// Prints a TCP port of the loopback interface that nobody uses at the moment, below
// those that systems give to connections, which could take it before its user does.
package main

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
)

func main() {
	for range 100 {
		port := 10_000 + rand.IntN(20_000)
		l, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", port))
		if err == nil {
			fmt.Println(port)
			l.Close()
			return
		}
	}
	fmt.Fprintln(os.Stderr, "no free port was found")
	os.Exit(1)
}
