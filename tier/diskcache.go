package tier

import (
	"cmp"
	"container/list"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"log/slog"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cordwood-io/cordwood/log"
)

// Cache entry, version 1: a file with a part of an object as it is in the store.
// Integers are big-endian, CRCs are CRC32C (Castagnoli). See
// docs/format/tier-cache.md. On disk: must not change.
//
//	offset size field
//	0      4    magic "CWCE"
//	4      2    version, 1
//	6      2    flags, 0
//	8      16   object id
//	24     4    part: number of the chunk, or -1 for the tail
//	28     8    length n of the content
//	36     4    CRC of the content
//	40     4    CRC of bytes 0-39
//	44     n    content
const (
	entryMagic       = "CWCE"
	entryVersion     = 1
	entryHeaderBytes = 44

	cacheLock = "lock"
	cacheTemp = "new-" // what files are called while they are written
)

// entryName names the file of a part.
func entryName(k partKey) string {
	return hex.EncodeToString(k.id[:]) + "-" + strconv.Itoa(int(k.part))
}

// parseEntryName reads what entryName gives.
func parseEntryName(name string) (k partKey, ok bool) {
	id, part, found := strings.Cut(name, "-")
	n, err := strconv.ParseInt(part, 10, 32)
	b, err2 := hex.DecodeString(id)
	if !found || err != nil || err2 != nil || len(b) != len(k.id) || n < int64(tailPart) {
		return partKey{}, false
	}
	k = chunkKey(ID(b), int(n))
	return k, entryName(k) == name
}

func entryHeader(k partKey, content []byte) []byte {
	b := make([]byte, 0, entryHeaderBytes)
	b = append(b, entryMagic...)
	b = binary.BigEndian.AppendUint16(b, entryVersion)
	b = binary.BigEndian.AppendUint16(b, 0)
	b = append(b, k.id[:]...)
	b = binary.BigEndian.AppendUint32(b, uint32(k.part))
	b = binary.BigEndian.AppendUint64(b, uint64(len(content)))
	b = binary.BigEndian.AppendUint32(b, checksum(content))
	return binary.BigEndian.AppendUint32(b, checksum(b))
}

// openEntry returns the content of the entry of a part, which shares b's memory.
func openEntry(k partKey, b []byte) ([]byte, error) {
	if len(b) <= entryHeaderBytes || string(b[:4]) != entryMagic || binary.BigEndian.Uint16(b[4:]) != entryVersion ||
		checksum(b[:40]) != binary.BigEndian.Uint32(b[40:]) {
		return nil, fmt.Errorf("%w: no cache entry", ErrCorrupt)
	}
	content := b[entryHeaderBytes:len(b):len(b)]
	if ID(b[8:24]) != k.id || int32(binary.BigEndian.Uint32(b[24:])) != k.part ||
		binary.BigEndian.Uint64(b[28:]) != uint64(len(content)) || crc32.Checksum(content, castagnoli) != binary.BigEndian.Uint32(b[36:]) {
		return nil, fmt.Errorf("%w: cache entry of another part, or damaged", ErrCorrupt)
	}
	return content, nil
}

// A diskCache keeps parts of objects in files, so that they survive a restart. It is
// a cache: nothing in it is synced, everything is checked when it is read, and no
// error of its disk is one of a reader.
//
// Readers call get and put, which do not wait for each other; files are written and
// removed by one goroutine, run.
type diskCache struct {
	fs      log.FS
	dir     string
	bytes   int64 // bounds of what is in the folder
	files   int
	reserve int64 // bytes that stay free on the device
	queued  int64 // bound of what waits to be written
	logger  *slog.Logger
	lock    io.Closer
	wake    chan struct{} // capacity 1

	mu      sync.Mutex
	entries map[partKey]*cacheEntry
	recent  *list.List // of *cacheEntry that are ready; front: used last
	used    int64      // bytes of all entries, those that are being written or removed included
	queue   []cacheWrite
	waiting int64         // bytes in queue
	doomed  []*cacheEntry // to be removed
	gone    int64         // bytes of these
	stuck   bool          // a file that is in no entry could not be removed: nothing is written any more
	serial  int           // of files while they are written; only run changes it
	pause   time.Time     // no writes before
	stats   diskStats
}

type diskStats struct {
	hits, writes, failures, damaged int64
}

type entryState uint8

const (
	entryWriting entryState = iota // its name may not be there yet
	entryReady
	entryDoomed // not to be read again; its name may still be there
)

type cacheEntry struct {
	key   partKey
	size  int64 // of the file
	state entryState
	refs  int           // readers; the file stays while there are any
	place *list.Element // in recent, while it is ready
}

type cacheWrite struct {
	entry   *cacheEntry
	content []byte
}

// openDiskCache takes the folder for this process. The caller runs run, and calls
// close when that has ended.
func openDiskCache(o *Options) (*diskCache, error) {
	d := &diskCache{
		fs: o.DiskCacheFS, dir: o.DiskCacheDir, bytes: o.DiskCacheBytes, files: o.DiskCacheFiles, reserve: max(0, o.DiskCacheReserveBytes),
		queued: o.ReadBytes, logger: o.Logger, wake: make(chan struct{}, 1), entries: map[partKey]*cacheEntry{}, recent: list.New(),
	}
	if err := d.fs.MkdirAll(d.dir); err != nil {
		return nil, fmt.Errorf("tier: disk cache: %w", err)
	}
	var err error
	if d.lock, err = d.fs.Lock(path.Join(d.dir, cacheLock)); err != nil {
		return nil, fmt.Errorf("tier: disk cache %s: %w", d.dir, err)
	}
	return d, nil
}

func (d *diskCache) close() error { return d.lock.Close() }

// has says whether get may have a part of n bytes. get takes memory for a file as long as
// it was found, so one of another length goes before anybody reads it.
func (d *diskCache) has(k partKey, n int64) bool {
	if d == nil {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.entries[k]
	if e == nil || e.state != entryReady {
		return false
	}
	if e.size != entryHeaderBytes+n {
		d.stats.damaged++
		d.doomLocked(e)
		return false
	}
	return true
}

// get returns what is kept of a part, in memory of the caller's.
func (d *diskCache) get(k partKey) ([]byte, bool) {
	d.mu.Lock()
	e := d.entries[k]
	if e == nil || e.state != entryReady {
		d.mu.Unlock()
		return nil, false
	}
	e.refs++
	d.recent.MoveToFront(e.place)
	d.mu.Unlock()
	content, err := d.read(e)
	d.mu.Lock()
	defer d.mu.Unlock()
	e.refs--
	if err != nil {
		d.stats.damaged++
		d.doomLocked(e)
		return nil, false
	}
	d.stats.hits++
	if e.state == entryDoomed {
		d.kick() // run left it to its last reader
	}
	return content, true
}

func (d *diskCache) read(e *cacheEntry) ([]byte, error) {
	f, err := d.fs.Open(path.Join(d.dir, entryName(e.key)), false)
	if err != nil {
		return nil, err
	}
	b := make([]byte, e.size) // as it was written or found
	n, err := f.ReadAt(b, 0)
	if err == io.EOF && n == len(b) {
		err = nil
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	return openEntry(e.key, b)
}

// drop removes an entry whose content is not what it should be.
func (d *diskCache) drop(k partKey) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if e := d.entries[k]; e != nil && e.state == entryReady {
		d.stats.damaged++
		d.doomLocked(e)
	}
}

// doomLocked takes an entry away from readers and has run remove it.
func (d *diskCache) doomLocked(e *cacheEntry) {
	if e.state == entryDoomed {
		d.kick()
		return
	}
	if e.place != nil {
		d.recent.Remove(e.place)
		e.place = nil
	}
	e.state = entryDoomed
	d.doomed = append(d.doomed, e)
	d.gone += e.size
	d.kick()
}

// put has content kept as that of a part, if there is room; it must not be changed
// afterwards. It does not wait for the disk.
func (d *diskCache) put(k partKey, content []byte) {
	if d == nil || len(content) == 0 {
		return
	}
	size := int64(entryHeaderBytes + len(content))
	d.mu.Lock()
	defer d.mu.Unlock()
	// An entry that is doomed still has its name.
	if d.entries[k] != nil || d.stuck || d.waiting+size > d.queued || time.Now().Before(d.pause) {
		return
	}
	if d.used+size > d.bytes || len(d.entries) >= d.files {
		d.kick() // to make room for the next one
		return
	}
	e := &cacheEntry{key: k, size: size}
	d.entries[k] = e
	d.used += size
	d.waiting += size
	d.queue = append(d.queue, cacheWrite{e, content})
	d.kick()
}

func (d *diskCache) kick() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// run loads what is there and then writes and removes files until ctx ends. Each
// interval it looks at the device.
func (d *diskCache) run(ctx context.Context, interval time.Duration) {
	d.load(ctx)
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		d.work(ctx)
		select {
		case <-ctx.Done():
			return
		case <-d.wake:
		case <-tick.C:
		}
	}
}

// load makes entries of the files in the folder, newest first, up to the bounds, and
// removes the rest of those that are called as ours are. It reads none.
func (d *diskCache) load(ctx context.Context) {
	names, err := d.fs.List(d.dir)
	if err != nil {
		d.failed(fmt.Errorf("list: %w", err))
		return
	}
	type found struct {
		key  partKey
		size int64
		at   time.Time
	}
	var all []found
	for _, name := range names {
		if ctx.Err() != nil {
			return
		}
		k, ours := parseEntryName(name)
		if !ours && !strings.HasPrefix(name, cacheTemp) {
			continue // not ours to remove
		}
		info, err := log.FileInfo{}, error(nil)
		if ours && len(all) < 2*d.files {
			if info, err = d.fs.Stat(path.Join(d.dir, name)); err == nil && info.Size > entryHeaderBytes && !info.IsDir {
				all = append(all, found{k, info.Size, info.ModTime})
				continue
			}
		}
		if err := d.fs.Remove(path.Join(d.dir, name)); err != nil {
			d.failed(fmt.Errorf("remove %s: %w", name, err))
		}
	}
	slices.SortStableFunc(all, func(a, b found) int { return b.at.Compare(a.at) })
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, f := range all {
		old := d.entries[f.key]
		if old != nil {
			continue // it is waiting to be written, over this file
		}
		e := &cacheEntry{key: f.key, size: f.size, state: entryReady}
		d.entries[f.key] = e
		if d.used+f.size > d.bytes || len(d.entries) > d.files {
			d.doomLocked(e)
		} else {
			e.place = d.recent.PushBack(e)
		}
		d.used += f.size
	}
}

// work writes and removes what there is to, and makes room.
func (d *diskCache) work(ctx context.Context) {
	for ctx.Err() == nil {
		d.mu.Lock()
		d.trimLocked()
		var gone *cacheEntry
		for i, e := range d.doomed {
			if e.refs == 0 {
				gone = e
				d.doomed = slices.Delete(d.doomed, i, i+1)
				d.gone -= e.size
				break
			}
		}
		var w cacheWrite
		if gone == nil && len(d.queue) > 0 {
			w, d.queue[0] = d.queue[0], cacheWrite{} // the array must not keep the content
			d.queue = d.queue[1:]
		}
		d.mu.Unlock()
		switch {
		case gone != nil:
			d.remove(gone)
		case w.entry != nil:
			d.write(w)
		default:
			d.keepFree()
			return
		}
	}
}

// trimLocked dooms what was used longest ago once seven eighths of a bound are used,
// down to three quarters.
func (d *diskCache) trimLocked() {
	gone, files := d.gone, len(d.doomed)
	if d.used-gone <= d.bytes-d.bytes/8 && len(d.entries)-files <= d.files-d.files/8 {
		return
	}
	for d.recent.Len() > 0 && (d.used-gone > d.bytes-d.bytes/4 || len(d.entries)-files > d.files-d.files/4) {
		e := d.recent.Back().Value.(*cacheEntry)
		gone, files = gone+e.size, files+1
		d.doomLocked(e)
	}
}

// keepFree shrinks the cache while others need the device.
func (d *diskCache) keepFree() {
	if d.reserve == 0 {
		return
	}
	free, err := d.fs.FreeBytes(d.dir)
	if err != nil {
		return // no answer is no reason to throw away
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for free < d.reserve && d.recent.Len() > 0 {
		e := d.recent.Back().Value.(*cacheEntry)
		free += e.size
		d.doomLocked(e)
	}
}

// remove takes a doomed entry without readers off the disk. If that fails, its name
// and its bytes stay taken, until the next start.
func (d *diskCache) remove(e *cacheEntry) {
	err := d.fs.Remove(path.Join(d.dir, entryName(e.key)))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.failed(fmt.Errorf("remove: %w", err))
		return
	}
	d.forget(e)
}

// forget ends an entry without a file.
func (d *diskCache) forget(e *cacheEntry) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.entries, e.key)
	d.used -= e.size
}

// write makes the file of an entry: under another name first, so that a name never
// stands for half of it while this process lives.
func (d *diskCache) write(w cacheWrite) {
	e := w.entry
	defer func() {
		d.mu.Lock()
		d.waiting -= e.size
		d.mu.Unlock()
	}()
	if d.reserve > 0 {
		if free, err := d.fs.FreeBytes(d.dir); err != nil || free < d.reserve+e.size {
			d.forget(e)
			return
		}
	}
	d.serial++
	temp, name := path.Join(d.dir, cacheTemp+strconv.Itoa(d.serial)), path.Join(d.dir, entryName(e.key))
	if err := d.writeFile(temp, name, entryHeader(e.key, w.content), w.content); err != nil {
		d.failed(fmt.Errorf("write: %w", err))
		err = d.fs.Remove(temp)
		d.mu.Lock()
		defer d.mu.Unlock()
		d.stuck = d.stuck || err != nil && !errors.Is(err, fs.ErrNotExist)
		d.doomLocked(e) // the rename may have been done
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stats.writes++
	e.state = entryReady
	e.place = d.recent.PushFront(e)
}

func (d *diskCache) writeFile(temp, name string, header, content []byte) error {
	f, err := d.fs.Create(temp)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(header, 0)
	if err == nil {
		_, err = f.WriteAt(content, int64(len(header)))
	}
	if err = cmp.Or(err, f.Close()); err != nil {
		return err
	}
	return d.fs.Rename(temp, name)
}

// cachePause is how long a cache whose disk fails is left alone.
const cachePause = time.Minute

func (d *diskCache) failed(err error) {
	d.mu.Lock()
	first := d.stats.failures == 0
	d.stats.failures++
	d.pause = time.Now().Add(cachePause)
	d.mu.Unlock()
	if first {
		d.logger.Warn("tier disk cache", "dir", d.dir, "error", err)
	}
}
