package tier

// Exports for tests in package tier_test.
var NewID = newID
