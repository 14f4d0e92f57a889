package tier

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cordwood-io/cordwood/log"
)

// Defaults of [Options].
const (
	DefaultChunkBytes     int64         = 4 << 20
	DefaultCacheBytes     int64         = 64 << 20
	DefaultCacheChunks    int           = 4096
	DefaultDiskCacheBytes int64         = 1 << 30
	DefaultDiskCacheFiles int           = 16384
	DefaultReadBytes      int64         = 32 << 20
	DefaultReads          int           = 16
	DefaultUploads        int           = 2
	DefaultUploadDeadline time.Duration = time.Hour
	DefaultInterval       time.Duration = 30 * time.Second
	DefaultStoreTimeout   time.Duration = 30 * time.Second
	DefaultEventTimeout   time.Duration = 10 * time.Second
	DefaultMinBackoff     time.Duration = 100 * time.Millisecond
	DefaultMaxBackoff     time.Duration = 15 * time.Second

	DefaultDiskCacheReserveBytes int64 = 256 << 20

	DefaultBackupWindow time.Duration = 7 * 24 * time.Hour
	DefaultReaderGrace  time.Duration = 10 * time.Minute

	DefaultCheckpointEvents   int           = 1000
	DefaultCheckpointInterval time.Duration = 10 * time.Minute
)

// Options configure a [Manager] or a [Log]. Store and Events are required; the
// zero value of the rest is safe and bounded.
type Options struct {
	// Store keeps the objects. It stays the caller's.
	Store ObjectStore

	// Events is the tier log. It stays the caller's.
	Events Events

	// Cluster says whose objects these are; the prefix's owner object must say the
	// same. [NewManager] requires it. [Open] takes that of [LocalEvents] when it is
	// zero.
	Cluster ID

	// Prefix is what all keys begin with, without a slash at its end. Default "",
	// which means no prefix.
	Prefix string

	// ChunkBytes is the size of a chunk, the unit of cold reads; a chunk is larger
	// when a batch is. 4 KiB to 64 MiB, default DefaultChunkBytes.
	ChunkBytes int64

	// CompressChunks has uploads compress each chunk with zstd, if most of it is in
	// batches that are not compressed and it gets smaller by a sixteenth or more.
	// Objects that are in the store stay as they are, and both are read whatever this
	// says. An upload then compresses twice, to know the object's size beforehand.
	// Default false.
	CompressChunks bool

	// CacheBytes and CacheChunks bound the memory cache of chunks and object tails.
	// Defaults DefaultCacheBytes and DefaultCacheChunks.
	CacheBytes  int64
	CacheChunks int

	// DiskCacheFS and DiskCacheDir say where parts of objects that were read are kept
	// in files, as they are in the store, so that they survive a restart. One process
	// at a time has the folder; nothing else belongs into it, and it may be deleted
	// while nobody has it. Neither a full nor a broken disk fails a read. Nil means no
	// such cache.
	DiskCacheFS  log.FS
	DiskCacheDir string

	// DiskCacheBytes and DiskCacheFiles bound it. Some of what was used longest ago
	// goes when seven eighths of either are in use. Defaults DefaultDiskCacheBytes and
	// DefaultDiskCacheFiles.
	DiskCacheBytes int64
	DiskCacheFiles int

	// DiskCacheReserveBytes is what the disk cache leaves free on its device: below
	// that it shrinks, within Interval. It should be well above what others on the
	// device refuse to write below. Default DefaultDiskCacheReserveBytes; negative
	// means that nothing is left.
	DiskCacheReserveBytes int64

	// ReadBytes and Reads bound the bytes and the requests of cold reads under way
	// over all readers. A single chunk larger than ReadBytes is read alone.
	// Defaults DefaultReadBytes and DefaultReads.
	ReadBytes int64
	Reads     int

	// Uploads is how many objects are written at once, one per partition; further
	// partitions wait for their turn. Each takes memory of about two chunks, and of six
	// with CompressChunks: the next chunk is read while one is sent, and the next object
	// is planned while one is on its way. Default DefaultUploads.
	Uploads int

	// UploadBytesPerSecond bounds what all uploads of the node together give to the
	// store, retries included, and also what they read of local logs before: an
	// object is read twice. It holds within an object, piece by piece. 1 KiB and up;
	// default 0, which means no limit.
	UploadBytesPerSecond int64

	// UploadDeadline is how long one object may take from the committed
	// CopyStarted on, retries included; after it the attempt is given up and its
	// object deleted. What UploadBytesPerSecond can make it wait comes on top.
	// Default DefaultUploadDeadline.
	UploadDeadline time.Duration

	// BackupWindow is how long the objects of ranges that the log start has passed, or
	// whose topic was deleted, are kept, so that [Chain.Restore] can bring them back.
	// The event that deletes the range carries the time; a later change does not move
	// it. Default DefaultBackupWindow; negative means none.
	BackupWindow time.Duration

	// ReaderGrace is how long they are kept at least, for readers on nodes that have
	// not heard of it yet. Default DefaultReaderGrace; negative means none.
	ReaderGrace time.Duration

	// Deleted says of a topic whether it was deleted, for good, and in which epoch what
	// is left of each of its partitions is cleaned up: above each epoch in which the
	// partition was ever led, and never used otherwise. The node that speaks for the
	// cluster (see Writer) does that. Deleted must not block. Nil means that none was.
	Deleted func(log.TopicID) (epochs []log.Epoch, ok bool)

	// Interval is the time between two passes over all partitions for retention,
	// ageing and whatever was missed; many partitions are spread over it. What a kick
	// or an event announces does not wait for it. Default DefaultInterval.
	Interval time.Duration

	// StoreTimeout bounds one request to the store other than a Put, and
	// EventTimeout one attempt to append an event. Defaults DefaultStoreTimeout
	// and DefaultEventTimeout.
	StoreTimeout time.Duration
	EventTimeout time.Duration

	// StateFS and StateDir say where the manager keeps the states that it has read
	// from the tier log, so that it need not read it from the start again. The file
	// "tier-state" there is a cache: without it, or with a damaged one, reading begins
	// at the start of the tier log. Nil means none; [Open] takes the directory of
	// [LocalEvents].
	StateFS  log.FS
	StateDir string

	// CheckpointEvents and CheckpointInterval say how often the leader of a partition
	// writes its state into the tier log: after so many events, and when there was an
	// event and so much time has passed. Defaults DefaultCheckpointEvents and
	// DefaultCheckpointInterval.
	CheckpointEvents   int
	CheckpointInterval time.Duration

	// MinBackoff and MaxBackoff bound the jittered exponential wait after a failed
	// request to the store or the tier log. Defaults DefaultMinBackoff and
	// DefaultMaxBackoff.
	MinBackoff time.Duration
	MaxBackoff time.Duration

	// Writer says whether this node speaks for the cluster: while it does, the object
	// [WriterKey] is rewritten each [WriterInterval], so that tools leave the prefix
	// alone. One node at a time should; in a cluster it is the leader of the tier
	// log, and on one machine it may always say yes. It must not block. Nil means no.
	Writer func() bool

	// Logger hears of what keeps records from the store. Nil discards.
	Logger *slog.Logger

	// Hooks are told what happens.
	Hooks Hooks

	inlineBytes int64 // MaxInlineState, less in tests

	// Partition is what [Open] opens its only partition with. [NewManager] does
	// not use it: there each partition brings its own.
	Partition PartitionOptions
}

// PartitionOptions configure one partition of a [Manager].
type PartitionOptions struct {
	// HighWatermark returns the offset below which records are committed. Nothing
	// at or above it is uploaded or dropped. It must be cheap and must not block.
	// [Manager.Open] requires it; [Open] uses the log's durable end.
	HighWatermark func() log.Offset

	// Tiered says that the partition ages into the object store. False keeps it
	// out: nothing is uploaded or dropped, total retention goes by the local log,
	// and what is in the store already stays readable. [Open] sets it.
	Tiered bool

	// Paused has no upload begin; one that is under way goes on. Unlike without Tiered,
	// what is to be uploaded counts as backlog. While it lasts, nothing is dropped
	// locally but by total retention. See also [Manager.Pause].
	Paused bool

	// LocalRetentionBytes and LocalRetentionAge say which records that are in the
	// store are kept on disk as well: those within the newest LocalRetentionBytes,
	// and those whose segment was sealed less than LocalRetentionAge ago. A zero
	// has no opinion; with two zeros a segment goes as soon as it is in the store,
	// with two others it goes when either says so. A negative value keeps all.
	LocalRetentionBytes int64
	LocalRetentionAge   time.Duration

	// RetentionBytes and RetentionAge bound the partition as a whole, cold and hot:
	// ranges and sealed segments beyond either are deleted, also when they never
	// reached the store. The age is that of the sealing. 0 or less means no bound.
	RetentionBytes int64
	RetentionAge   time.Duration

	// Note goes into the cause of each move of the log start by retention, e.g. the
	// version of the policy. At most MaxCauseNoteBytes.
	Note string
}

// Hooks are called without locks held, from the manager's goroutines, and must
// not block. Each may be nil.
type Hooks struct {
	// Applied follows each event that this node applied to an open partition.
	Applied func(AppliedInfo)

	// Uploaded follows each object that was stored and committed.
	Uploaded func(UploadedInfo)

	// Missing is the alarm of a lost object.
	Missing func(*MissingError)
}

// AppliedInfo tells of one event.
type AppliedInfo struct {
	Partition log.PartitionID
	Offset    log.Offset // in the tier log
	Event     Event
	Verdict   Verdict
	View      View // after it
}

// UploadedInfo tells of one finished upload.
type UploadedInfo struct {
	Partition log.PartitionID
	Key       string
	Base, End log.Offset
	Bytes     int64 // of the object
	Took      time.Duration
}

func (o Options) withDefaults() (Options, error) {
	var errs []error
	check := func(ok bool, format string, a ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("tier: "+format, a...))
		}
	}
	check(o.Store != nil, "Options.Store is nil")
	check(o.Events != nil, "Options.Events is nil")
	check(o.Cluster != ID{}, "Options.Cluster is zero")
	if o.Prefix != "" {
		check(CheckKey(o.Prefix) == nil && len(o.Prefix) <= MaxPrefixBytes, "Options.Prefix %q is no key, or longer than %d bytes", o.Prefix, MaxPrefixBytes)
	}
	def(&o.ChunkBytes, DefaultChunkBytes)
	check(o.ChunkBytes >= 4<<10 && o.ChunkBytes <= 64<<20, "Options.ChunkBytes is %d, want 4 KiB to 64 MiB", o.ChunkBytes)
	def(&o.CacheBytes, DefaultCacheBytes)
	check(o.CacheBytes > 0, "Options.CacheBytes is %d", o.CacheBytes)
	def(&o.CacheChunks, DefaultCacheChunks)
	check(o.CacheChunks > 0, "Options.CacheChunks is %d", o.CacheChunks)
	check((o.DiskCacheFS == nil) == (o.DiskCacheDir == ""), "Options.DiskCacheFS and DiskCacheDir are not set together")
	def(&o.DiskCacheBytes, DefaultDiskCacheBytes)
	check(o.DiskCacheBytes > 0, "Options.DiskCacheBytes is %d", o.DiskCacheBytes)
	def(&o.DiskCacheFiles, DefaultDiskCacheFiles)
	check(o.DiskCacheFiles > 0, "Options.DiskCacheFiles is %d", o.DiskCacheFiles)
	def(&o.DiskCacheReserveBytes, DefaultDiskCacheReserveBytes)
	def(&o.ReadBytes, DefaultReadBytes)
	check(o.ReadBytes > 0, "Options.ReadBytes is %d", o.ReadBytes)
	def(&o.Reads, DefaultReads)
	check(o.Reads > 0, "Options.Reads is %d", o.Reads)
	def(&o.Uploads, DefaultUploads)
	check(o.Uploads > 0, "Options.Uploads is %d", o.Uploads)
	check(o.UploadBytesPerSecond == 0 || o.UploadBytesPerSecond >= 1<<10, "Options.UploadBytesPerSecond is %d, want 0 or at least 1 KiB", o.UploadBytesPerSecond)
	def(&o.UploadDeadline, DefaultUploadDeadline)
	check(o.UploadDeadline > 0, "Options.UploadDeadline is %v", o.UploadDeadline)
	def(&o.BackupWindow, DefaultBackupWindow)
	def(&o.ReaderGrace, DefaultReaderGrace)
	check(o.BackupWindow <= maxKeep && o.ReaderGrace <= maxKeep, "Options.BackupWindow is %v and ReaderGrace %v, want at most %v", o.BackupWindow, o.ReaderGrace, maxKeep)
	def(&o.Interval, DefaultInterval)
	check(o.Interval > 0, "Options.Interval is %v", o.Interval)
	def(&o.StoreTimeout, DefaultStoreTimeout)
	check(o.StoreTimeout > 0, "Options.StoreTimeout is %v", o.StoreTimeout)
	def(&o.EventTimeout, DefaultEventTimeout)
	check(o.EventTimeout > 0, "Options.EventTimeout is %v", o.EventTimeout)
	def(&o.inlineBytes, MaxInlineState)
	def(&o.CheckpointEvents, DefaultCheckpointEvents)
	check(o.CheckpointEvents > 0, "Options.CheckpointEvents is %d", o.CheckpointEvents)
	def(&o.CheckpointInterval, DefaultCheckpointInterval)
	check(o.CheckpointInterval > 0, "Options.CheckpointInterval is %v", o.CheckpointInterval)
	check((o.StateFS == nil) == (o.StateDir == ""), "Options.StateFS and StateDir are not set together")
	def(&o.MinBackoff, DefaultMinBackoff)
	def(&o.MaxBackoff, max(DefaultMaxBackoff, o.MinBackoff))
	check(o.MinBackoff > 0 && o.MinBackoff <= o.MaxBackoff, "Options.MinBackoff is %v and MaxBackoff %v", o.MinBackoff, o.MaxBackoff)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o, errors.Join(errs...)
}

// maxKeep keeps times within what events can carry.
const maxKeep = 100 * 365 * 24 * time.Hour

// keepUntil returns how long objects are kept that are deleted now, for events; zero
// if they are not.
func (o *Options) keepUntil(now time.Time) time.Time {
	keep := max(o.BackupWindow, o.ReaderGrace)
	if keep <= 0 {
		return time.Time{}
	}
	return time.UnixMilli(now.Add(keep).UnixMilli())
}

// manifestLands is how long after it has read the tier log up to its end a node may still
// have the store take a manifest.
func (o *Options) manifestLands() time.Duration { return o.EventTimeout + o.StoreTimeout + lateGrace }

// MaxPrefixBytes bounds [Options].Prefix.
const MaxPrefixBytes = 512

func def[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

func (o PartitionOptions) check() error {
	var errs []error
	if o.HighWatermark == nil {
		errs = append(errs, errors.New("tier: PartitionOptions.HighWatermark is nil"))
	}
	if len(o.Note) > MaxCauseNoteBytes {
		errs = append(errs, fmt.Errorf("tier: PartitionOptions.Note has %d bytes", len(o.Note)))
	}
	return errors.Join(errs...)
}
