package volume

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/host/volume/blockdev"
	"github.com/lodge-kvm/lodge/internal/mechanism/fsguard"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/mechanism/safepath"
)

// Time limits of the tools that mount and make file systems.
const (
	mountTime = answerTime
	mkfsTime  = 10 * time.Minute
)

// attach makes a pool's storage appear at its target: nothing for a directory, a mount for file systems. An
// existing mount of the same source is used as it is. fresh says that the storage was not there before.
func (p *Pool) attach(ctx context.Context, d *definition) (fresh bool, err error) {
	steady := context.WithoutCancel(ctx) // a tool that is killed half way leaves a half-done change
	if c := d.blockBackend(); c != nil {
		return c.attach(steady)
	}
	if d.kind == Dir {
		return false, nil
	}
	there, err := mountedAt(d.target)
	switch {
	case err != nil:
		return false, err
	case there.Source != "" && d.isSource(ctx, there.Source):
		return false, nil
	case there.Source != "":
		return false, fault.New(fault.WrongState, fault.Pool, "%s is mounted at %s, and not %s; unmount it first", there.Source, d.target, d.source())
	}
	at, err := runWithin(ctx, p.worker, answerTime, func() (string, error) { return realDir(d.target) }, nil)
	if err == nil && d.kind == FS {
		err = fsguard.Run(ctx, d.device, func() error { return checkGuestsAt(d.device) })
	}
	if err == nil {
		err = mountOn(steady, d, at)
	}
	return err == nil, err
}

// checkGuestsAt is blockdev.CheckGuests for a path. mount reports a path that cannot be opened.
func checkGuestsAt(path string) error {
	f, err := image.Open(path)
	if err != nil {
		return nil //nolint:nilerr // mount reports it
	}
	defer f.Close()
	return blockdev.CheckGuests(f)
}

// detach unmounts whatever is mounted on a pool's target, even if another process mounted it.
func (p *Pool) detach(ctx context.Context, d *definition) error {
	if c := d.blockBackend(); c != nil {
		return c.detach(context.WithoutCancel(ctx))
	}
	if d.kind == Dir {
		return nil
	}
	there, err := mountedAt(d.target)
	if err != nil || there.Source == "" {
		return err
	}
	_, err = blockdev.Run(context.WithoutCancel(ctx), mountTime, "umount", there.Point)
	return fault.Wrap(err, fault.Of(err), fault.Pool, "cannot unmount pool %q", p.name)
}

// detachBestEffort undoes a fresh attach after another failure, which is the one to report.
func (p *Pool) detachBestEffort(d *definition) {
	ctx, cancel := context.WithTimeout(p.pools.life, mountTime)
	defer cancel()
	if err := p.detach(ctx, d); err != nil {
		p.pools.log.Warn("cannot detach", "pool", p.name, "error", err)
	}
}

// isSource says whether a mount's source, as the kernel reports it, is the pool's.
func (d *definition) isSource(ctx context.Context, mounted string) bool {
	if mounted == d.source() {
		return true
	}
	if d.kind != FS {
		return strings.TrimSuffix(mounted, "/") == strings.TrimSuffix(d.source(), "/")
	}
	ours, err := blockdev.RealPath(ctx, d.device)
	if err != nil {
		return false
	}
	theirs, err := blockdev.RealPath(ctx, mounted)
	return err == nil && ours == theirs
}

// mountOn mounts a pool's file system on its target. at is the target's real path, because mount follows any
// link.
func mountOn(ctx context.Context, d *definition, at string) error {
	// Images are data: a pool contains no programs and no devices.
	options := "nodev,nosuid,noexec"
	if d.protocol != "" {
		options += ",nfsvers=" + d.protocol
	}
	args := []string{"-o", options}
	format := d.format
	if d.kind == NetFS && format == "auto" {
		format = "nfs"
	}
	if format != "auto" {
		args = append(args, "-t", format)
	}
	if d.kind == NetFS {
		if err := blockdev.NeedTool("mount."+format, helperPackages[format]); err != nil {
			return fault.Wrap(err, fault.Unsupported, fault.Config, "cannot mount %s", d.source())
		}
	}
	_, err := blockdev.Run(ctx, mountTime, "mount", append(args, d.source(), at)...)
	return fault.Wrap(err, fault.Of(err), fault.Pool, "cannot mount %s at %s", d.source(), d.target)
}

// helperPackages are the packages of mount's helpers for network file systems.
var helperPackages = map[string]string{"nfs": "nfs-common", "cifs": "cifs-utils", "glusterfs": "glusterfs-client"}

// mountedAt returns the topmost mount on a directory; one without a source means none. It reads the kernel's
// list, where paths have no links, and not the mounted file system, which may not answer.
func mountedAt(target string) (fsguard.Mount, error) {
	for range safepath.MaxLinks {
		m, there, err := fsguard.At(target)
		if err != nil || there {
			return m, err
		}
		next, err := fsguard.Do(context.Background(), filepath.Dir(target), func() (string, error) { return resolveOneLink(target), nil }, nil)
		if err != nil || next == target {
			return fsguard.Mount{}, err
		}
		target = next
	}
	return fsguard.Mount{}, nil
}

// resolveOneLink resolves one step of links: in the path's folder, or the path itself. It returns the path unchanged
// if there are none.
func resolveOneLink(path string) string {
	folder, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return path // it does not exist
	}
	if real := filepath.Join(folder, filepath.Base(path)); real != path {
		return real
	}
	to, err := os.Readlink(path)
	switch {
	case err != nil:
		return path
	case filepath.IsAbs(to):
		return filepath.Clean(to)
	}
	return filepath.Join(folder, to)
}

// mounted refuses a file system pool that was unmounted: its target is then part of another file system.
func (d *definition) mounted() error {
	if d.kind != FS && d.kind != NetFS {
		return nil
	}
	there, err := mountedAt(d.target)
	if err == nil && there.Source == "" {
		return fault.New(fault.WrongState, fault.Pool, "%s is no longer mounted at %s; stop the pool and start it", d.source(), d.target)
	}
	return err
}
