package launch

import (
	"context"
	"log/slog"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/guest/savestate"
	"github.com/lodge-kvm/lodge/internal/mechanism/fsguard"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// CopyNVRAM copies another guest's UEFI variables for a guest that is about to be defined, and returns the
// path. If there are none yet, the guest makes its own.
func CopyNVRAM(ctx context.Context, r *machine.Registry, sc scope.Scope, from, uuid string) (path string, err error) {
	if err := sc.Check(); err != nil {
		return "", err
	}
	path = r.NvramPath(uuid)
	there, err := machine.FileExists(ctx, sc, from)
	if err != nil || !there {
		return path, err
	}
	err = copyFile(ctx, sc, from, path)
	return path, fault.Wrap(err, machine.FailureKind(err), fault.Host, "cannot copy the UEFI variables")
}

// dropMadeNVRAM removes the UEFI variables that a run made at the default path.
func dropMadeNVRAM(r *machine.Registry, rec *machine.RunRecord, def *domain.Definition, log *slog.Logger) {
	if rec.MadeNVRAM && def.OS.NVRAM.Path == r.NvramPath(rec.UUID) {
		machine.RemoveFile(log, def.OS.NVRAM.Path)
		provision.ForgetLeftover(r, rec.UUID)
	}
}

// DropNVRAM removes what CopyNVRAM made, also if that is incomplete.
func DropNVRAM(ctx context.Context, r *machine.Registry, sc scope.Scope, uuid string) error {
	if err := sc.Check(); err != nil {
		return err
	}
	path := r.NvramPath(uuid)
	return fsguard.Run(ctx, path, func() error {
		machine.RemoveFile(r.Log, path)
		machine.RemoveFile(r.Log, savestate.PartialPath(path))
		return nil
	})
}
