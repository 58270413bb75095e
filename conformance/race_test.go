//go:build race

package conformance

// buildFlags build a daemon that detects data races if the tests do.
var buildFlags = []string{"-race"}
