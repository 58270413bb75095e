package authz

import (
	"slices"

	"github.com/lodge-kvm/lodge/internal/control/fleet"
	"github.com/lodge-kvm/lodge/internal/host/secret"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// opens and opensFor mark secrets among what a definition names, by UUID and by the volume
// that they are for: the daemon gives their values to the guest's QEMU, or to qemu-img,
// and so opens with them whatever the client has a copy of.
const (
	opens    = "secret"
	opensFor = "secret for"
)

// opened are the secrets that an element names.
func opened(e *xmltree.Element) (found []use) {
	id, usage := "", ""
	switch e.Name {
	case "secret":
		id, usage = e.Attr("uuid"), e.Attr("usage")
	case "encryption":
		id = e.Attr("secret") // of a TPM's state
	}
	if id != "" {
		found = append(found, use{opens, plain(id)})
	}
	if usage != "" {
		found = append(found, use{opensFor, usage})
	}
	return found
}

// mayOpen says whether a secret is among those that some rule gives to be used: by UUID, or
// by what it is for. Of one that is not there nobody knows what it will be.
func (g *Gate) mayOpen(globs []string, u use) bool {
	if len(globs) == 0 || g.Secrets == nil {
		return false
	}
	d, err := g.Secrets.ByUUID(u.path)
	if u.as == opensFor {
		d, err = g.Secrets.ByUsage(secret.Usage{Type: "volume", ID: u.path})
	}
	return err == nil && slices.ContainsFunc(globs, func(glob string) bool {
		return fleet.Matches(glob, d.UUID) || fleet.Matches(glob, d.Usage.ID)
	})
}

// opening checks that a client may have a volume of a pool opened: what a copy under another
// key would tell is what the first one keeps.
func (g *Gate) opening(w Who, pool, id string) error {
	rules := g.rules.Load()
	if rules == nil {
		return nil
	}
	places := rules.placesFor(g, w, Volumes, Object{Kind: Pool, Name: pool})
	if u := (use{opens, id}); !places.Anywhere && !places.opens(u) {
		return places.refuse(u.as + " '" + id + "'")
	}
	return nil
}
