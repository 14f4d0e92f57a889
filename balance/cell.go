package balance

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// Cell is a set of brokers that some tenants live in: their replicas, their replication and their
// connections stay inside.
type Cell struct {
	ID CellID
	// Brokers are in order, equally many of each zone.
	Brokers []BrokerID
}

// ErrCells says that brokers cannot be cut into cells as asked.
var ErrCells = errors.New("balance: brokers cannot be cut into such cells")

// BuildCells cuts brokers into cells of size brokers with equally many of each zone, numbered from 1. It
// takes brokers by their id and those that already have a cell first, so that adding
// brokers adds cells and changes none. Brokers that do not fill another cell are returned as rest.
//
// It returns [ErrCells] when size is not a positive multiple of the number of zones, or a cell that exists does
// not have that shape.
func BuildCells(brokers []Broker, size int) (cells []Cell, rest []BrokerID, err error) {
	zones := map[string][]BrokerID{}
	existing := map[CellID]map[string][]BrokerID{}
	for _, b := range brokers {
		if b.Cell == 0 {
			zones[b.Zone] = append(zones[b.Zone], b.ID)
			continue
		}
		if existing[b.Cell] == nil {
			existing[b.Cell] = map[string][]BrokerID{}
		}
		existing[b.Cell][b.Zone] = append(existing[b.Cell][b.Zone], b.ID)
		if zones[b.Zone] == nil {
			zones[b.Zone] = []BrokerID{}
		}
	}
	if len(zones) == 0 || size <= 0 || size%len(zones) != 0 {
		return nil, nil, fmt.Errorf("%w: %d brokers a cell over %d zones", ErrCells, size, len(zones))
	}
	each := size / len(zones)
	last := CellID(0)
	for id, byZone := range existing {
		c := Cell{ID: id}
		for z := range zones {
			if len(byZone[z]) != each {
				return nil, nil, fmt.Errorf("%w: cell %d has %d brokers in zone %q, not %d", ErrCells, id, len(byZone[z]), z, each)
			}
			c.Brokers = append(c.Brokers, byZone[z]...)
		}
		cells = append(cells, c)
		last = max(last, id)
	}
	full := int(^uint(0) >> 1)
	for z := range zones {
		slices.Sort(zones[z])
		full = min(full, len(zones[z])/each)
	}
	for i := range full {
		last++
		c := Cell{ID: last}
		for z := range zones {
			c.Brokers = append(c.Brokers, zones[z][i*each:(i+1)*each]...)
		}
		cells = append(cells, c)
	}
	for z := range zones {
		rest = append(rest, zones[z][full*each:]...)
	}
	for i := range cells {
		slices.Sort(cells[i].Brokers)
	}
	slices.SortFunc(cells, func(a, b Cell) int { return cmp.Compare(a.ID, b.ID) })
	slices.Sort(rest)
	return cells, rest, nil
}

// TenantID names a tenant.
type TenantID string

// CellState is what placement knows of a cell.
type CellState struct {
	ID CellID
	// Load is that of [CellLoad].
	Load float64
	// Reported is when Load was measured.
	Reported time.Time
	// Closed cells take no tenant: too few healthy brokers, being drained, or full by other rules.
	Closed bool
	// Quarantine cells take only tenants that are sent there.
	Quarantine bool
}

// DefaultCellFull is the load, tenants without a report included, at which a cell takes no more tenants.
const DefaultCellFull = 0.8

// Placement chooses cells for tenants and remembers the load that fresh ones are expected to bring,
// until the cell's own report contains it. The zero value is ready. It is not safe for concurrent use.
type Placement struct {
	// Full is the load from which a cell takes no more tenants; 0 means [DefaultCellFull].
	Full float64

	where map[TenantID]CellID
	fresh map[CellID]map[TenantID]freshTenant
}

type freshTenant struct {
	load float64
	at   time.Time
}

// ErrNoCell says that no cell has room: the cluster needs another one.
var ErrNoCell = errors.New("balance: no cell has room")

// Place chooses a cell for a tenant: it draws two different cells that have room and takes the less
// loaded one, by a coin if they are equal. Always taking the least loaded one would send all tenants of one
// report to the same cell. expected is the load that the tenant is going to bring, as a share of
// the cell, 0 if unknown; it counts until a report of the cell that is newer than now. It returns
// [ErrNoCell] if no cell has room.
//
// Source: Kora, section 5.3; Azar, Broder, Karlin, Upfal 1999; the provisional load is our own.
func (p *Placement) Place(r *rand.Rand, cells []CellState, tenant TenantID, expected float64, now time.Time) (CellID, error) {
	full := p.Full
	if full <= 0 {
		full = DefaultCellFull
	}
	var open []CellState
	for _, c := range cells {
		c.Load = p.Expected(c)
		if !c.Closed && !c.Quarantine && c.Load+max(expected, 0) <= full {
			open = append(open, c)
		}
	}
	if len(open) == 0 {
		return 0, ErrNoCell
	}
	slices.SortFunc(open, func(a, b CellState) int { return cmp.Compare(a.ID, b.ID) })
	i := r.IntN(len(open))
	chosen := open[i]
	if len(open) > 1 {
		j := r.IntN(len(open) - 1)
		if j >= i {
			j++
		}
		if other := open[j]; other.Load < chosen.Load || other.Load == chosen.Load && r.IntN(2) == 0 {
			chosen = other
		}
	}
	p.Reserve(tenant, chosen.ID, expected, now)
	return chosen.ID, nil
}

// Reserve notes that a tenant is going to bring load to a cell: one placed by hand, or one that moves.
func (p *Placement) Reserve(tenant TenantID, cell CellID, expected float64, now time.Time) {
	p.Cancel(tenant)
	if p.fresh == nil {
		p.where, p.fresh = map[TenantID]CellID{}, map[CellID]map[TenantID]freshTenant{}
	}
	if p.fresh[cell] == nil {
		p.fresh[cell] = map[TenantID]freshTenant{}
	}
	p.where[tenant] = cell
	p.fresh[cell][tenant] = freshTenant{max(expected, 0), now}
}

// Cancel forgets what was noted about a tenant.
func (p *Placement) Cancel(tenant TenantID) {
	if cell, ok := p.where[tenant]; ok {
		delete(p.fresh[cell], tenant)
		delete(p.where, tenant)
	}
}

// Expected returns the load of a cell with that of the tenants that its report does not contain yet.
func (p *Placement) Expected(c CellState) float64 {
	var fresh []float64
	for id, t := range p.fresh[c.ID] {
		if c.Reported.After(t.at) {
			p.Cancel(id)
		} else if t.load > 0 {
			fresh = append(fresh, t.load)
		}
	}
	slices.Sort(fresh) // the sum must not depend on the order of a map
	load := c.Load
	for _, x := range fresh {
		load += x
	}
	return load
}

// TenantLoad is one tenant in a cell.
type TenantLoad struct {
	Tenant TenantID
	Cell   CellID
	// Load is the share of its cell that it uses, Bytes what a move copies.
	Load  float64
	Bytes int64
	// Noisy says that it disturbs the others: its load changes a lot, or it is often throttled.
	Noisy bool
}

// GrowthKind says what a cell above its limit calls for.
type GrowthKind uint8

// What growth may call for.
const (
	// GrowMove moves a tenant to a less loaded cell.
	GrowMove GrowthKind = iota + 1
	// GrowQuarantine moves a noisy tenant to a quarantine cell.
	GrowQuarantine
	// GrowExpand needs a new cell: no other one has room.
	GrowExpand
)

// Growth is one step that keeps cells below their limit.
type Growth struct {
	Kind     GrowthKind
	Tenant   TenantID
	From, To CellID
	Reason   string
}

// PlanGrowth returns what cells above the limit call for, the fullest cell first: noisy tenants to a
// quarantine cell if there is one with room, else the tenants that bring the cell below the limit with the
// fewest bytes, each to the least loaded cell that stays below it; if no cell has room for any, another cell. limit 0
// means [DefaultCellFull]. The order of the arguments does not matter.
func PlanGrowth(cells []CellState, tenants []TenantLoad, limit float64) []Growth {
	if limit <= 0 {
		limit = DefaultCellFull
	}
	cells = slices.Clone(cells)
	slices.SortFunc(cells, func(a, b CellState) int {
		if c := cmp.Compare(b.Load, a.Load); c != 0 {
			return c
		}
		return cmp.Compare(a.ID, b.ID)
	})
	load := map[CellID]float64{}
	for _, c := range cells {
		load[c.ID] = c.Load
	}
	// room returns the least loaded cell of a kind that can take x more.
	room := func(from CellID, x float64, quarantine bool) (CellID, bool) {
		best, ok := CellID(0), false
		for _, c := range cells {
			if c.ID == from || c.Closed || c.Quarantine != quarantine || load[c.ID]+x > limit {
				continue
			}
			if !ok || load[c.ID] < load[best] || load[c.ID] == load[best] && c.ID < best {
				best, ok = c.ID, true
			}
		}
		return best, ok
	}
	var out []Growth
	for _, c := range cells {
		if c.Load <= limit || c.Quarantine {
			continue
		}
		var own []TenantLoad
		for _, t := range tenants {
			if t.Cell == c.ID && t.Load > 0 {
				own = append(own, t)
			}
		}
		for load[c.ID] > limit && len(own) > 0 {
			excess := load[c.ID] - limit
			slices.SortFunc(own, func(a, b TenantLoad) int {
				if a.Noisy != b.Noisy {
					if a.Noisy {
						return -1
					}
					return 1
				}
				// Those that are enough alone before those that are not; then load per byte.
				if ea, eb := a.Load >= excess, b.Load >= excess; ea != eb {
					if ea {
						return -1
					}
					return 1
				} else if ea && a.Bytes != b.Bytes {
					return cmp.Compare(a.Bytes, b.Bytes)
				}
				if d := cmp.Compare(b.Load/float64(b.Bytes+1), a.Load/float64(a.Bytes+1)); d != 0 {
					return d
				}
				return cmp.Compare(a.Tenant, b.Tenant)
			})
			t := own[0]
			own = own[1:]
			g := Growth{Tenant: t.Tenant, From: c.ID}
			to, ok := CellID(0), false
			if t.Noisy {
				to, ok = room(c.ID, t.Load, true)
				g.Kind, g.Reason = GrowQuarantine, "noisy tenant in a full cell"
			}
			if !ok {
				to, ok = room(c.ID, t.Load, false)
				g.Kind, g.Reason = GrowMove, fmt.Sprintf("cell at %.3g of its capacity", load[c.ID])
			}
			if !ok {
				continue
			}
			g.To = to
			load[c.ID] -= t.Load
			load[to] += t.Load
			out = append(out, g)
		}
		if load[c.ID] > limit {
			out = append(out, Growth{Kind: GrowExpand, From: c.ID,
				Reason: fmt.Sprintf("cell stays at %.3g: no other cell has room for any of its tenants", load[c.ID])})
		}
	}
	return out
}
