package machine

import (
	"sync"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
	"github.com/lodge-kvm/lodge/internal/mechanism/store"
)

// PendingStartKind is the record of one guest that this boot has still to start, by UUID.
var PendingStartKind = store.Kind{Name: "autostart", Version: 1}

// PendingStart names the boot for a guest's start, and the reason.
type PendingStart struct {
	Boot string
	Once bool // by AutostartOnce, which is then cleared
	// Crashed says that the guest ran and is started again because its QEMU ended unexpectedly.
	Crashed bool `json:",omitempty"`
}

// PendingStarts are the guests that this boot has still to start. Mu guards Left.
type PendingStarts struct {
	Mu   sync.Mutex
	Left map[string]PendingStart
}

// ForgetPendingStart deletes a guest's record from the store, and keeps trying if the store takes no changes.
// Otherwise another daemon of this boot would start the guest again.
func (r *Registry) ForgetPendingStart(uuid string) {
	err := r.Store.Delete(PendingStartKind, uuid)
	if err == nil {
		return
	}
	r.Log.Error("cannot delete an autostart record; trying again", "uuid", uuid, "error", err)
	r.Loops.Go(func() {
		_ = RetryUntilDone(r.Life, MaxReleasePause, func() error { // fails when the daemon stops
			if _, again := r.IsStartPending(uuid); again { // it has crashed since
				return nil
			}
			return r.Store.Delete(PendingStartKind, uuid)
		})
	})
}

// IsStartPending reports whether, and why, this boot has still to start a guest.
func (r *Registry) IsStartPending(uuid string) (PendingStart, bool) {
	r.PendingStarts.Mu.Lock()
	defer r.PendingStarts.Mu.Unlock()
	d, is := r.PendingStarts.Left[uuid]
	return d, is
}

// HasStarted removes a guest from the list: it runs or ran in this boot, for whatever reason, or its start is
// given up.
func (r *Registry) HasStarted(uuid string) {
	r.PendingStarts.Mu.Lock()
	_, is := r.PendingStarts.Left[uuid]
	delete(r.PendingStarts.Left, uuid)
	r.PendingStarts.Mu.Unlock()
	if is {
		r.ForgetPendingStart(uuid)
		failpoint.Reach("autostart.struck")
	}
}
