//go:build !linux

package main

import "errors"

func benchLog(func(string) bool, func(Row)) error {
	return errors.New("the figures of log need Linux")
}
