package log_test

import (
	"os"
	"syscall"
	"testing"

	"github.com/cordwood-io/cordwood/log"
)

// TestReserves: where OSFS says that files reserve what is preallocated, the kernel can do so, and no file stays.
func TestReserves(t *testing.T) {
	if (log.OSFS{}).Reserves("/proc") || (log.OSFS{}).Reserves("/no such folder") {
		t.Error("what can't hold a file reserves room")
	}
	dir := t.TempDir()
	says := log.OSFS{}.Reserves(dir)
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left are %v, %v", left, err)
	}
	f, err := os.Create(dir + "/f")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // nothing is in it
	var st syscall.Statfs_t
	if err := syscall.Fstatfs(int(f.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	can := syscall.Fallocate(int(f.Fd()), 0, 0, 4096) == nil
	if ext4 := st.Type == 0xef53; says && !can || !says && can && ext4 {
		t.Errorf("type %x: says %v, can %v", st.Type, says, can)
	}
}
