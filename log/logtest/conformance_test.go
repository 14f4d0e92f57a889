package logtest_test

import (
	"path/filepath"
	"testing"

	"github.com/cordwood-io/cordwood/log"
	"github.com/cordwood-io/cordwood/log/logtest"
)

func TestConformance(t *testing.T) {
	t.Run("memory", func(t *testing.T) { logtest.TestFS(t, logtest.NewFS(1), "/") })
	t.Run("operating system", func(t *testing.T) { logtest.TestFS(t, log.OSFS{}, filepath.ToSlash(t.TempDir())) })
}
