package logtest_test

import (
	"testing"

	"github.com/cordwood-io/cordwood/log/logtest"
)

func TestConformance(t *testing.T) {
	t.Run("memory", func(t *testing.T) { logtest.TestFS(t, logtest.NewFS(1), "/") })
}
