// Package cordwoodtest runs a whole cluster inside a test: n nodes in one process
// on a network, disks and an object store in memory, each of which breaks on
// demand.
//
//	func TestOrders(t *testing.T) {
//		c := cordwoodtest.Start(t, cordwoodtest.Options{})
//		orders := c.Host().Tenant("").Topic("orders")
//		c.CreateTopic("orders", cordwood.TopicConfig{})
//		if _, err := orders.AppendRecords(t.Context(), 0, cordwood.Record{Value: []byte("one")}); err != nil {
//			t.Fatal(err)
//		}
//		c.PowerOff(c.Leader("orders", 0), logtest.CrashLoseAll) // unsynced data is lost
//		…
//	}
//
// The cluster is ready when Start returns, a few hundredths of a second later.
// Everything is closed at the end of the test. It also runs inside a
// testing/synctest bubble, where days of ageing and retention pass in seconds: give
// Options.Tick and Options.Session values of seconds and minutes there, so that the
// nodes do not spend the virtual time on heartbeats.
//
// Nodes are numbered from 1. All methods are safe for concurrent use, except that
// one node's Kill, PowerOff, Close and Restart must not overlap. They fail the test
// where they return no error.
package cordwoodtest
