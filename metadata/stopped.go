package metadata

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
)

// ReadImage returns the image in the folder of a stopped voter, as of the last
// record that it had applied; a record that was committed and not applied there is
// not in it. Of the options it uses FS, Dir, Cluster, Self, Directory, Voters and
// Logger. It opens the store as [Open] would, which may recover and compact files, and
// closes it again.
//
// Errors: fs.ErrNotExist if there is no folder; an error of [log.ErrLocked] if the
// voter runs; [ErrIdentity], [*FormatError] and [*StorageError] as [Open].
//
// [log.ErrLocked]: https://pkg.go.dev/github.com/cordwood-io/cordwood/log#ErrLocked
func ReadImage(o Options) (*Image, error) {
	if o.FS == nil || o.Dir == "" || len(o.Voters) == 0 {
		return nil, errors.New("metadata: ReadImage needs FS, Dir and Voters")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if info, err := o.FS.Stat(o.Dir); err != nil {
		return nil, fmt.Errorf("metadata: %w", err)
	} else if !info.IsDir {
		return nil, fmt.Errorf("metadata: %s: %w", o.Dir, fs.ErrNotExist)
	}
	s, im, err := openStore(o)
	if err != nil {
		return nil, err
	}
	return im, s.close()
}
