package authz

import (
	"slices"

	"github.com/lodge-kvm/lodge/internal/control/fleet"
	"github.com/lodge-kvm/lodge/internal/host/secret"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// Roles of secrets, by UUID and by the volume of their usage. Both need a check: the daemon gives the secret's value
// to the guest's QEMU, or to qemu-img, which then decrypts any image that the client has a copy of.
const (
	useSecret    = "secret"
	useSecretFor = "secret for"
)

// secretUses returns the secrets that an element names.
func secretUses(e *xmltree.Element) (found []use) {
	id, usage := "", ""
	switch e.Name {
	case "secret":
		id, usage = e.Attr("uuid"), e.Attr("usage")
	case "encryption":
		id = e.Attr("secret") // for a TPM's state
	}
	if id != "" {
		found = append(found, use{useSecret, normalUUID(id)})
	}
	if usage != "" {
		found = append(found, use{useSecretFor, usage})
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
	if u.role == useSecretFor {
		d, err = g.Secrets.ByUsage(secret.Usage{Type: "volume", ID: u.path})
	}
	return err == nil && slices.ContainsFunc(globs, func(glob string) bool {
		return fleet.Matches(glob, d.UUID) || fleet.Matches(glob, d.Usage.ID)
	})
}

// checkDecrypt checks that a client may have a volume of a pool decrypted with the secret id: a copy of the volume
// under another key would reveal its data.
func (g *Authorizer) checkDecrypt(w Principal, pool, id string) error {
	rules := g.rules.Load()
	if rules == nil {
		return nil
	}
	places := rules.allowedUsesFor(g, w, Volumes, Resource{Kind: Pool, Name: pool})
	if u := (use{useSecret, id}); !places.Anywhere && !places.mayOpen(u) {
		return places.refuse(u.role + " '" + id + "'")
	}
	return nil
}
