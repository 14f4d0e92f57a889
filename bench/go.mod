module github.com/cordwood-io/cordwood/bench

go 1.26.0

replace github.com/cordwood-io/cordwood => ../

require (
	github.com/cordwood-io/cordwood v0.0.0-00010101000000-000000000000
	golang.org/x/time v0.16.0
)
