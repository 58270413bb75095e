package fleet

import "github.com/lodge-kvm/lodge/guest"

// Of gives one guest as part of sets, as it is now.
func (f *Fleet) Of(g *guest.Guest) Member { return f.memberOf(g, g.View()) }
