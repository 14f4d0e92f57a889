package byhand

import (
	"errors"
	"io/fs"
	"path"

	"github.com/cordwood-io/cordwood/log"
)

// makeDir makes a folder and its parents so that a crash does not take their
// names away.
func makeDir(fsys log.FS, dir string) error {
	var unsynced []string // folders that get a new name
	for at := path.Clean(dir); ; at = path.Dir(at) {
		_, err := fsys.Stat(at)
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if path.Dir(at) == at {
			break
		}
		unsynced = append(unsynced, path.Dir(at))
	}
	if err := fsys.MkdirAll(dir); err != nil {
		return err
	}
	for _, parent := range unsynced {
		if err := fsys.SyncDir(parent); err != nil {
			return err
		}
	}
	return nil
}

// removeTree deletes a folder and what is in it.
func removeTree(fsys log.FS, name string) error {
	info, err := fsys.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.IsDir {
		names, err := fsys.List(name)
		if err != nil {
			return err
		}
		for _, child := range names {
			if err := removeTree(fsys, path.Join(name, child)); err != nil {
				return err
			}
		}
	}
	return fsys.Remove(name)
}
