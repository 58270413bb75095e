package scenario

// checkNative refuses what only a guest can have. Bus, format, cache mode and the
// like of a disk say how a guest is given it: outside of one they mean nothing.
func (u *Setup) checkNative() error {
	if len(u.Events) > 0 {
		e := u.Events[0]
		return wrong(e.line, "%s is done to guests, and an arm is native: outside of a guest nothing is", e.Do)
	}
	for _, l := range u.Loads {
		if l.From != hostRole && l.From != l.To {
			return wrong(l.line, "load %s is from %s to %s, and an arm is native: outside of a guest roles are joined with the host alone", l.Name, l.From, l.To)
		}
	}
	for _, g := range u.Guests {
		if g.Node != "" {
			return wrong(g.line, "%s is bound to a node, and an arm is native: outside of a guest only processors are bound", g.Role)
		}
		for _, d := range g.Disks {
			if err := d.checkNative(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (d *Disk) checkNative() error {
	switch {
	case d.Use == "swap":
		return wrong(d.line, "disk %s is swap, and an arm is native: outside of a guest it would be the host's", d.Name)
	case d.Use == "":
		return wrong(d.line, "disk %s has no file system, and an arm is native: outside of a guest it is not found", d.Name)
	case d.Partition != "whole" || d.Scheduler != "as-found":
		return wrong(d.line, "disk %s has a partition or a scheduler of a guest's, and an arm is native", d.Name)
	}
	return nil
}
