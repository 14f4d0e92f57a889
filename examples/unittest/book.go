// Package unittest is a host in small: an order book kept in a topic. Its test
// shows how a program that embeds Cordwood is tested: against a real cluster in
// memory, with a fault, and through a week of virtual time.
package unittest

import (
	"context"
	"encoding/json"
	"iter"

	"github.com/cordwood-io/cordwood"
	"github.com/cordwood-io/cordwood/log"
)

// An Order is what a customer wants.
type Order struct {
	ID   int    `json:"id"`
	Item string `json:"item"`
}

// A Book keeps orders in a topic of one partition. Safe for concurrent use.
type Book struct{ topic *cordwood.Topic }

// NewBook returns the book in a topic that exists.
func NewBook(t *cordwood.Topic) *Book { return &Book{t} }

// Place adds an order; when it returns nil the order is durable.
func (b *Book) Place(ctx context.Context, o Order) error {
	value, err := json.Marshal(o)
	if err != nil {
		return err
	}
	_, err = b.topic.AppendRecords(ctx, 0, cordwood.Record{Value: value})
	return err
}

// Orders iterates over all orders from an offset on that are still kept.
func (b *Book) Orders(ctx context.Context, from log.Offset) iter.Seq2[Order, error] {
	return func(yield func(Order, error) bool) {
		for r, err := range b.topic.Records(ctx, 0, from) {
			var o Order
			if err == nil {
				err = json.Unmarshal(r.Value, &o)
			}
			if !yield(o, err) || err != nil {
				return
			}
		}
	}
}
