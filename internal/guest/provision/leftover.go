package provision

import (
	"os"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
)

// Leftover reports whether there are secrets of a guest of that UUID.
func Leftover(r *machine.Registry, uuid string) bool {
	for _, path := range []string{TPMState(r, uuid), r.NvramPath(uuid)} {
		if _, err := os.Lstat(path); err == nil {
			return true
		}
	}
	return false
}

// ForgetLeftover deletes the record if the secrets are gone. Usually there is no record, and nothing is
// written.
func ForgetLeftover(r *machine.Registry, uuid string) {
	var of string
	if Leftover(r, uuid) || fault.Is(r.Store.Get(machine.LeftoverKind, uuid, &of), fault.NotFound) {
		return
	}
	if err := r.Store.Delete(machine.LeftoverKind, uuid); err != nil {
		r.Log.Error("cannot delete the record of kept TPM state or UEFI variables", "uuid", uuid, "error", err)
	}
}
