//go:build !unix

package tier_test

import "time"

// realNow is not known here.
func realNow() time.Duration { return 0 }
