package guest

import (
	"log/slog"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
)

// recordLeftover records the name of a forgotten guest if its secrets are kept.
func recordLeftover(r *machine.Registry, uuid, name string, log *slog.Logger) {
	if !provision.Leftover(r, uuid) {
		return
	}
	if err := r.Store.Put(machine.LeftoverKind, uuid, name); err != nil {
		log.Error("cannot record the owner of kept TPM state or UEFI variables", "error", err)
	}
}

// checkReusedUUID refuses a new guest if its UUID belongs to the kept secrets of a guest with another name. A
// client that may choose a UUID need not be allowed to read those secrets: permissions go by name.
func checkReusedUUID(r *machine.Registry, name, uuid string) error {
	var of string
	if !provision.Leftover(r, uuid) {
		return nil
	}
	if err := r.Store.Get(machine.LeftoverKind, uuid, &of); fault.Is(err, fault.NotFound) || err == nil && of == name {
		return nil
	} else if err != nil {
		return err
	}
	return fault.New(fault.Exists, fault.Domain, "cannot give domain %q the UUID %s: the TPM's state or the UEFI variables of an earlier guest of that UUID and another name are kept; "+
		"use that name, or another UUID", name, uuid)
}
