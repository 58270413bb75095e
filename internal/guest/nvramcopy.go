package guest

import (
	"context"
	"log/slog"
	"path/filepath"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/fsguard"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// nvramPath is the default path of a guest's UEFI variables.
func (r *Registry) nvramPath(uuid string) string { return filepath.Join(r.nvramDir(), uuid+"_VARS.fd") }

// CopyNVRAM copies another guest's UEFI variables for a guest that is about to be defined, and returns the
// path. If there are none yet, the guest makes its own.
func (r *Registry) CopyNVRAM(ctx context.Context, sc scope.Scope, from, uuid string) (path string, err error) {
	if err := sc.Check(); err != nil {
		return "", err
	}
	path = r.nvramPath(uuid)
	there, err := fileExists(ctx, sc, from)
	if err != nil || !there {
		return path, err
	}
	err = copyFile(ctx, sc, from, path)
	return path, fault.Wrap(err, failure(err), fault.Host, "cannot copy the UEFI variables")
}

// dropMadeNVRAM removes the UEFI variables that a run made at the default path.
func (r *Registry) dropMadeNVRAM(rec *runRecord, def *domain.Definition, log *slog.Logger) {
	if rec.MadeNVRAM && def.OS.NVRAM.Path == r.nvramPath(rec.UUID) {
		removeFile(log, def.OS.NVRAM.Path)
		r.forgetLeft(rec.UUID)
	}
}

// DropNVRAM removes what CopyNVRAM made, also if that is incomplete.
func (r *Registry) DropNVRAM(ctx context.Context, sc scope.Scope, uuid string) error {
	if err := sc.Check(); err != nil {
		return err
	}
	path := r.nvramPath(uuid)
	return fsguard.Run(ctx, path, func() error {
		removeFile(r.log, path)
		removeFile(r.log, partial(path))
		return nil
	})
}
