// Package tiertest helps to test object stores and what uses them.
//
// [TestStore] is the suite that every [tier.ObjectStore] must pass:
//
//	func TestMyStore(t *testing.T) {
//		tiertest.TestStore(t, func(t *testing.T) tier.ObjectStore { return newStore(t) })
//	}
//
// [Faulty] wraps a store with faults on demand (down, slow, throttled, replies
// lost after success) and counts operations.
package tiertest
