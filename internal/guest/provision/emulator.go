package provision

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
)

// EmulatorIn finds the QEMU that was launched in a guest's run directory. It returns 0 if there is none.
// Other processes, such as an administrator's shell, may work in that directory too. An error means that
// the answer is unknown, for example because no more files can be opened. The caller must not take it for
// 0: it would end a running guest or start it twice.
func EmulatorIn(r *machine.Registry, dir string) (int, error) {
	if pid, err := emulatorOf(r, dir); pid != 0 || err != nil {
		return pid, err
	}
	inGroup, err := r.Cgroups.Guest(filepath.Base(dir)).Processes()
	if err != nil {
		return 0, err
	}
	there, err := r.Kernel.WorkingIn(dir)
	if err != nil {
		return 0, err
	}
	return findQEMU(r, append(inGroup, there...), dir)
}

// findQEMU finds the QEMU of a run directory among processes. It returns 0 if none of them is it.
func findQEMU(r *machine.Registry, pids []int, dir string) (int, error) {
	for _, pid := range pids {
		command, err := r.Kernel.Command(pid)
		if err != nil {
			return 0, err
		}
		if machine.IsGuest(command, dir) {
			return pid, nil
		}
	}
	return 0, nil
}

// ClearRunDir removes the run directory of a guest that has ended, and releases the resources that need no record.
// It refuses while a QEMU still works there.
func ClearRunDir(ctx context.Context, r *machine.Registry, dir string) error {
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	pid, err := EmulatorIn(r, dir)
	if err != nil {
		return fault.Wrap(err, fault.Failed, fault.Domain, "cannot tell whether QEMU of an earlier run still works in %s", dir)
	}
	if pid != 0 {
		return fault.New(fault.Busy, fault.Domain, "QEMU (process %d) of an earlier run still works in %s; end that process first", pid, dir)
	}
	// The TPM emulator runs in the control group. Ended with the group, it would have no time to save its
	// state, so it is stopped first.
	return errors.Join(stopTPMs(ctx, &machine.Instance{Dir: dir}), r.Cgroups.Guest(filepath.Base(dir)).Clear(ctx), machine.RemoveTree(dir))
}
