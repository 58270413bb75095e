//go:build race

package conformance

// buildFlags make a daemon that looks for data races when the tests do.
var buildFlags = []string{"-race"}
