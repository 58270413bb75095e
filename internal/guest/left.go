package guest

import (
	"log/slog"
	"os"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/store"
)

// leftKind is the kind of record that holds, by UUID, the name of a forgotten guest if its secrets were
// kept: its TPM state or its UEFI variables.
var leftKind = store.Kind{Name: "left", Version: 1}

// left reports whether there are secrets of a guest of that UUID.
func (r *Registry) left(uuid string) bool {
	for _, path := range []string{r.tpmState(uuid), r.nvramPath(uuid)} {
		if _, err := os.Lstat(path); err == nil {
			return true
		}
	}
	return false
}

// noteLeft records the name of a forgotten guest if its secrets are kept.
func (r *Registry) noteLeft(uuid, name string, log *slog.Logger) {
	if !r.left(uuid) {
		return
	}
	if err := r.store.Put(leftKind, uuid, name); err != nil {
		log.Error("cannot record the owner of kept TPM state or UEFI variables", "error", err)
	}
}

// forgetLeft deletes the record if the secrets are gone. Usually there is no record, and nothing is
// written.
func (r *Registry) forgetLeft(uuid string) {
	var of string
	if r.left(uuid) || fault.Is(r.store.Get(leftKind, uuid, &of), fault.NotFound) {
		return
	}
	if err := r.store.Delete(leftKind, uuid); err != nil {
		r.log.Error("cannot delete the record of kept TPM state or UEFI variables", "uuid", uuid, "error", err)
	}
}

// checkHeir refuses a new guest whose UUID belongs to the secrets of a guest of another name. A client that
// may choose a UUID need not be allowed to read those secrets: permissions go by name.
func (r *Registry) checkHeir(name, uuid string) error {
	var of string
	if !r.left(uuid) {
		return nil
	}
	if err := r.store.Get(leftKind, uuid, &of); fault.Is(err, fault.NotFound) || err == nil && of == name {
		return nil
	} else if err != nil {
		return err
	}
	return fault.New(fault.Exists, fault.Domain, "cannot give domain %q the UUID %s: the TPM's state or the UEFI variables of an earlier guest of that UUID and another name are kept; "+
		"use that name, or another UUID", name, uuid)
}
