package quota

import (
	"errors"
	"fmt"
	"time"
)

var (
	// ErrClosed is returned by what was closed: a [Listener], a [Ticket] after Done.
	ErrClosed = errors.New("quota: closed")
	// ErrInvalid is wrapped by errors about values that can't be used: a rate that is not a number, an entity of no allowed shape.
	ErrInvalid = errors.New("quota: invalid")
	// ErrThrottled is wrapped by every [*ThrottledError].
	ErrThrottled = errors.New("quota: throttled")
)

// ThrottledError says that a quota's delay did not pass in time, or that a strict quota refused. Nothing remains charged.
type ThrottledError struct {
	Key        Key
	Kind       Kind
	RetryAfter time.Duration // when it is worth to come back; [Forever] under a blocked rate
	Err        error         // what ended the wait, such as context.DeadlineExceeded; nil if nobody waited
}

// Error describes the refusal in one line.
func (e *ThrottledError) Error() string {
	after := "never"
	if e.RetryAfter < Forever {
		after = "after " + e.RetryAfter.String()
	}
	if e.Err != nil {
		return fmt.Sprintf("quota: %s of %s throttled, retry %s: %v", e.Kind, e.Key, after, e.Err)
	}
	return fmt.Sprintf("quota: %s of %s throttled, retry %s", e.Kind, e.Key, after)
}

// Unwrap makes errors.Is find both [ErrThrottled] and the reason.
func (e *ThrottledError) Unwrap() []error {
	if e.Err == nil {
		return []error{ErrThrottled}
	}
	return []error{ErrThrottled, e.Err}
}
