package quota

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// Name is one component of an [Entity]: a named party, the default for all that have no quota of their own, or (the zero value) absent.
type Name struct {
	form nameForm
	name string
}

type nameForm uint8

const (
	absent nameForm = iota
	byDefault
	named
)

// Named returns the component for the party of that name.
func Named(name string) Name { return Name{named, name} }

// ByDefault returns the component that stands for every party without a quota of its own.
func ByDefault() Name { return Name{form: byDefault} }

// IsAbsent reports whether the component is absent.
func (n Name) IsAbsent() bool { return n.form == absent }

// IsDefault reports whether the component stands for every party without a quota of its own.
func (n Name) IsDefault() bool { return n.form == byDefault }

// Name returns the name of a named component, or "".
func (n Name) Name() string { return n.name }

// String returns the quoted name, "<default>" or "<absent>".
func (n Name) String() string {
	switch n.form {
	case named:
		return fmt.Sprintf("%q", n.name)
	case byDefault:
		return "<default>"
	}
	return "<absent>"
}

func (n Name) compare(o Name) int {
	return cmp.Or(cmp.Compare(o.form, n.form), strings.Compare(n.name, o.name))
}

// Entity says whose quota a [Setting] is. Tenant must be present. The shapes and the party that each limits:
//
//	tenant                     the tenant, cluster-wide where nodes share quotas
//	tenant, principal          each principal of the tenant, on this node
//	tenant, principal, client  each client id of each principal, on this node
//	tenant, client             each client id of the tenant whatever its principal, on this node
//
// A default component makes one setting serve many parties; each still has a bucket of its own.
type Entity struct {
	Tenant    Name
	Principal Name
	Client    Name
}

// String returns the components that are present.
func (e Entity) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "tenant=%v", e.Tenant)
	if !e.Principal.IsAbsent() {
		fmt.Fprintf(&b, " principal=%v", e.Principal)
	}
	if !e.Client.IsAbsent() {
		fmt.Fprintf(&b, " client=%v", e.Client)
	}
	return b.String()
}

func (e Entity) validate() error {
	if e.Tenant.IsAbsent() {
		return errors.New("no tenant")
	}
	for _, n := range []Name{e.Tenant, e.Principal, e.Client} {
		if n.form == named && n.name == "" {
			return errors.New("empty name")
		}
	}
	return nil
}

// Setting is the quota of one kind that an entity has.
type Setting struct {
	Entity Entity
	Kind   Kind
	Quota  Quota
}

// Alteration sets an entity's quota of one kind, or removes it where Quota is nil. Removing what is not there is no error.
type Alteration struct {
	Entity Entity
	Kind   Kind
	Quota  *Quota
}

// Match selects components in a [Filter]. The zero value lets everything pass.
type Match struct {
	form matchForm
	name Name
}

type matchForm uint8

const (
	matchAll matchForm = iota
	matchOne
	matchPresent
)

// Exactly matches one component: a name, the default, or (with the zero Name) absence.
func Exactly(n Name) Match { return Match{matchOne, n} }

// Any matches every component that is present, named or default.
func Any() Match { return Match{form: matchPresent} }

func (m Match) matches(n Name) bool {
	switch m.form {
	case matchOne:
		return m.name == n
	case matchPresent:
		return !n.IsAbsent()
	}
	return true
}

// Filter selects settings by their entity's components, all of which must match.
type Filter struct {
	Tenant    Match
	Principal Match
	Client    Match
}

func (f Filter) matches(e Entity) bool {
	return f.Tenant.matches(e.Tenant) && f.Principal.matches(e.Principal) && f.Client.matches(e.Client)
}

// table holds the settings. Safe for concurrent use.
type table struct {
	mu       sync.RWMutex
	settings map[Entity]*quotaSet
	// shapes counts the entities of each shape, so that a shape that nobody uses costs no look-up, and a level whose last setting was removed is
	// off again (KAFKA-19282).
	shapes [shapes]int
}

// quotaSet is an entity's quotas by kind; nil where it has none.
type quotaSet [kinds + 1]*Quota

func (q *quotaSet) empty() bool { return *q == quotaSet{} }

const shapes = 27

func (e Entity) shape() int {
	return int(e.Tenant.form)*9 + int(e.Principal.form)*3 + int(e.Client.form)
}

// check returns every mistake in the alterations, joined.
func check(alterations []Alteration) error {
	var all []error
	seen := make(map[Setting]bool, len(alterations))
	for i, a := range alterations {
		fail := func(err error) {
			all = append(all, fmt.Errorf("%w: alteration %d (%v, %v): %w", ErrInvalid, i, a.Entity, a.Kind, err))
		}
		if err := a.Entity.validate(); err != nil {
			fail(err)
		}
		if !a.Kind.valid() {
			fail(errors.New("no such kind"))
		}
		if a.Quota != nil {
			if err := a.Quota.validate(); err != nil {
				fail(err)
			}
		}
		id := Setting{Entity: a.Entity, Kind: a.Kind}
		if seen[id] {
			fail(errors.New("altered twice in one set"))
		}
		seen[id] = true
	}
	return errors.Join(all...)
}

// apply makes the alterations in one step. Requires: checked.
func (t *table) apply(alterations []Alteration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, a := range alterations {
		set := t.settings[a.Entity]
		if set == nil {
			if a.Quota == nil {
				continue
			}
			set = new(quotaSet)
			t.settings[a.Entity] = set
			t.shapes[a.Entity.shape()]++
		}
		set[a.Kind] = nil
		if a.Quota != nil {
			q := *a.Quota // the caller's may change
			set[a.Kind] = &q
		}
		if set.empty() {
			delete(t.settings, a.Entity)
			t.shapes[a.Entity.shape()]--
		}
	}
}

// depth returns how many levels of a key any setting can apply to: 1 for the tenant alone, 2 with principals, 3 with clients.
func (t *table) depth() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	depth := 1
	for shape, n := range t.shapes {
		if n == 0 {
			continue
		}
		if shape%3 != 0 {
			return 3
		}
		if shape/3%3 != 0 {
			depth = 2
		}
	}
	return depth
}

func (t *table) describe(f Filter) []Setting {
	t.mu.RLock()
	var all []Setting
	for e, set := range t.settings {
		if !f.matches(e) {
			continue
		}
		for kind, q := range set {
			if q != nil {
				all = append(all, Setting{e, Kind(kind), *q})
			}
		}
	}
	t.mu.RUnlock()
	slices.SortFunc(all, func(a, b Setting) int {
		return cmp.Or(a.Entity.Tenant.compare(b.Entity.Tenant), a.Entity.Principal.compare(b.Entity.Principal),
			a.Entity.Client.compare(b.Entity.Client), cmp.Compare(a.Kind, b.Kind))
	})
	return all
}

// resolve returns the quotas that apply at one level of key, and those that do so through an entity without principal, whose buckets are
// shared by all principals (client level only). For each kind the first entity in this order that has a quota wins, and there is no other
// order: the named tenant's entities before the default tenant's; for one tenant the named principal's before the default principal's
// before those without; for one principal the named client's before the default client's.
func (t *table) resolve(key Key, level int) (own, shared quotaSet) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	clients := []Name{{}}
	if level == 2 {
		clients = []Name{Named(key.Client), ByDefault()}
	}
	var principals []Name
	if level >= 1 && key.Principal != "" {
		principals = []Name{Named(key.Principal), ByDefault()}
	}
	if level != 1 {
		principals = append(principals, Name{})
	}
	for _, tenant := range []Name{Named(key.Tenant), ByDefault()} {
		for _, principal := range principals {
			for _, client := range clients {
				e := Entity{tenant, principal, client}
				if t.shapes[e.shape()] == 0 {
					continue
				}
				set := t.settings[e]
				if set == nil {
					continue
				}
				for kind, q := range set {
					if q == nil || own[kind] != nil || shared[kind] != nil {
						continue
					}
					if level == 2 && principal.IsAbsent() {
						shared[kind] = q
					} else {
						own[kind] = q
					}
				}
			}
		}
	}
	return own, shared
}
