package metadata

import (
	"context"
	"maps"
)

// A watcher is one call of Watch. Its fields are guarded by the server's mutex.
type watcher struct {
	ready   chan struct{} // gets a token when there is something new
	touched changes       // since it last looked
	full    bool
}

// Image returns the newest image of this server. It never blocks.
func (s *Server) Image() *Image { return s.image.Load() }

// publish makes an image the newest one.
func (s *Server) publish(im *Image, touched changes, full bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.image.Store(im)
	close(s.published)
	s.published = make(chan struct{})
	// Watchers also see an image in which only the index is new: brokers tell how far
	// they have followed, and the controller may wait for just that entry.
	for w := range s.watchers {
		maps.Copy(w.touched, touched)
		w.full = w.full || full
		select {
		case w.ready <- struct{}{}:
		default:
		}
	}
}

// Watch calls fn with the present image and a full delta, and then with every
// later image, in order, in the goroutine of the caller; the delta is empty where
// only the index has moved. If fn is slow, images are left out and their deltas joined: the last one
// always comes. After a snapshot, the delta is full again.
//
// It returns fn's error if that is not nil, ctx's when ctx ends, and [ErrClosed]
// or the cause when the server ends.
func (s *Server) Watch(ctx context.Context, fn func(*Image, Delta) error) error {
	w := &watcher{ready: make(chan struct{}, 1), touched: changes{}, full: true}
	w.ready <- struct{}{}
	s.mu.Lock()
	s.watchers[w] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.watchers, w)
		s.mu.Unlock()
	}()
	for {
		select {
		case <-w.ready:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.ctx.Done():
			return s.ended()
		}
		s.mu.Lock()
		im, touched, full := s.image.Load(), w.touched, w.full
		w.touched, w.full = changes{}, false
		s.mu.Unlock()
		d := touched.delta()
		if full {
			d = fullDelta(im)
		}
		if err := fn(im, d); err != nil {
			return err
		}
	}
}

// WaitFor returns the first image it sees for which ok holds, the present one
// included. Images that come quickly after each other may be left out. It returns
// ctx's error when ctx ends, and [ErrClosed] or the cause when the server does.
func (s *Server) WaitFor(ctx context.Context, ok func(*Image) bool) (*Image, error) {
	for {
		im, published := s.imageNow()
		if ok(im) {
			return im, nil
		}
		select {
		case <-published:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-s.ctx.Done():
			return nil, s.ended()
		}
	}
}
