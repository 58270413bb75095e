package conformance

import "testing"

// TestHostDescribesItself has one daemon read by clients that ask what the host is
// and what it does.
func TestHostDescribesItself(t *testing.T) {
	needs(t)
	d := start(t)
	t.Run("exporters", func(t *testing.T) { readByExporters(t, d) })
}
