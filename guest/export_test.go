package guest

// LoseMonitor cuts the connection to a running guest's monitor, as a QEMU that
// breaks the protocol does.
func (g *Guest) LoseMonitor() { g.live.Load().session.Load().Close() }

// RunDir is a running guest's private directory.
func (g *Guest) RunDir() string { return g.reg.guestDir(g.uuid) }

// ManagedSavePath is where the guest's managed save image is, if it has one.
func (g *Guest) ManagedSavePath() string { return g.managedSavePath() }
