//go:build !linux

package main

import "errors"

func benchLog(func(string) bool) ([]Row, error) {
	return nil, errors.New("the figures of log need Linux")
}
