package quota

import (
	"fmt"
	"math"
	"time"
)

// Instant is a reading of a monotonic clock: nanoseconds since a start that the owner of the clock chose. [Limiter.Now] gives the
// readings that belong to a Limiter. It is a type of its own so that wall-clock times, which may jump, can't be passed by mistake.
type Instant time.Duration

// Forever is the delay of a request that no passing of time will admit, because a rate is [Blocked]. Only a change of the quota ends it.
const Forever time.Duration = math.MaxInt64

// Kind names what a quota counts. The zero value is no kind.
type Kind uint8

// The kinds of quota.
const (
	Ingress            Kind = iota + 1 // bytes that the tenant sends, as on the wire
	Egress                             // bytes that the tenant receives, as on the wire
	RequestTime                        // nanoseconds of wall clock spent on the tenant's requests; 1e9 per second is one thread, always busy
	ConnectionRate                     // connections accepted
	PartitionMutations                 // partitions created or deleted; strict: refused, not delayed, while in debt
	Connections                        // connections open at once: a gauge, whose Rate is the largest number; Burst means nothing
)

const kinds = int(Connections)

var kindNames = [kinds + 1]string{"none", "ingress", "egress", "request-time", "connection-rate", "partition-mutations", "connections"}

// String returns the kind's name in lower case, such as "request-time".
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// ParseKind returns the kind that String prints as s, or an error if there is none.
func ParseKind(s string) (Kind, error) {
	for k := Ingress; int(k) <= kinds; k++ {
		if kindNames[k] == s {
			return k, nil
		}
	}
	return 0, fmt.Errorf("quota: unknown kind %q", s)
}

func (k Kind) valid() bool { return k >= Ingress && int(k) <= kinds }

// Key says whom a request is charged to. Tenant is required; Principal and Client may be empty, and then that level is not charged.
// Equal strings are the same party; how a host checks that a party is who it says is its own affair.
type Key struct {
	Tenant    string
	Principal string // the authenticated user
	Client    string // the client id, which clients choose as they like
}

// String returns "tenant/principal/client", less the empty levels at the end.
func (k Key) String() string {
	switch {
	case k.Client != "":
		return k.Tenant + "/" + k.Principal + "/" + k.Client
	case k.Principal != "":
		return k.Tenant + "/" + k.Principal
	}
	return k.Tenant
}

// Rate is an amount per second in the unit of a [Kind] (for [Connections] it is an amount). Negative values other than [Unlimited], NaN and
// infinities are refused.
type Rate float64

const (
	// Blocked lets nothing through. It is the zero value: a quota that somebody forgot to fill in is not a hole.
	Blocked Rate = 0
	// Unlimited delays nothing but counts what is used. It is a value distinct from every rate; a named party can have it where the default
	// is a limit. (Where no quota applies at all, nothing is counted either.)
	Unlimited Rate = -1
)

// DefaultBurst is the Burst of a [Quota] that states none. Three seconds let the usual swings of a partition's traffic pass: with the
// coordinator's period of 250 ms it is what kept unfair throttling at 0.016 % of the time in the simulation of the reference.
const DefaultBurst = 3 * time.Second

// MaxBurst is the longest Burst of a [Quota].
const MaxBurst = 24 * time.Hour

// Quota is a limit: Rate on average, and what Rate gives in Burst at once. In any window of length T at most Rate*(T+Burst) is admitted, and
// one request more (its cost is known only afterwards).
type Quota struct {
	Rate  Rate
	Burst time.Duration // (0, MaxBurst]; 0 means DefaultBurst
}

func (q Quota) burst() time.Duration {
	if q.Burst == 0 {
		return DefaultBurst
	}
	return q.Burst
}

func (q Quota) validate() error {
	if r := float64(q.Rate); math.IsNaN(r) || math.IsInf(r, 0) || r < 0 && q.Rate != Unlimited || r > 1e18 {
		return fmt.Errorf("rate %v is not in [0, 1e18] and not Unlimited", r)
	}
	if q.Burst < 0 || q.Burst > MaxBurst {
		return fmt.Errorf("burst %v is not in [0, %v]", q.Burst, MaxBurst)
	}
	return nil
}
