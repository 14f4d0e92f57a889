module github.com/cordwood-io/cordwood/bench

go 1.26.0

replace github.com/cordwood-io/cordwood => ../
