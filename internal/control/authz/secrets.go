package authz

import (
	"slices"

	"github.com/lodge-kvm/lodge/internal/control/fleet"
	"github.com/lodge-kvm/lodge/internal/host/secret"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// opens and opensFor mark secrets in a definition, by UUID and by the volume of their usage. The daemon gives
// the secret's value to the guest's QEMU, or to qemu-img, which then decrypts any image that the client has a
// copy of.
const (
	opens    = "secret"
	opensFor = "secret for"
)

// secretUses are the secrets that an element names.
func secretUses(e *xmltree.Element) (found []use) {
	id, usage := "", ""
	switch e.Name {
	case "secret":
		id, usage = e.Attr("uuid"), e.Attr("usage")
	case "encryption":
		id = e.Attr("secret") // for a TPM's state
	}
	if id != "" {
		found = append(found, use{opens, normalUUID(id)})
	}
	if usage != "" {
		found = append(found, use{opensFor, usage})
	}
	return found
}

// mayUseSecret says whether some rule lets the client use a secret, by UUID or by usage. The usage of a missing
// secret is unknown.
func (g *Authorizer) mayUseSecret(globs []string, u use) bool {
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

// checkDecrypt checks that a client may have a volume decrypted: a copy of it under another key would reveal its
// data.
func (g *Authorizer) checkDecrypt(w Principal, pool, id string) error {
	rules := g.rules.Load()
	if rules == nil {
		return nil
	}
	places := rules.placesFor(g, w, Volumes, Resource{Kind: Pool, Name: pool})
	if u := (use{opens, id}); !places.Anywhere && !places.opens(u) {
		return places.refuse(u.as + " '" + id + "'")
	}
	return nil
}
