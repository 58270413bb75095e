package provision

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/filelabel"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/mechanism/fsguard"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// IsOver reports whether QEMU has ended, or was never found.
func IsOver(r *machine.Instance) bool { return r.Process == nil || r.Gone() }

// ForgetNote removes the note that protects an image while QEMU could write to it.
func ForgetNote(ctx context.Context, w machine.LentImage) error {
	_, err := fsguard.Do(ctx, w.Path, func() (bool, error) { return image.RemoveRecord(w.Path, image.Format(w.Format)) }, nil)
	if fault.Is(err, fault.NotFound) {
		return nil
	}
	return err
}

// checkEncrypted compares an image's header with what the definition says about encryption.
func checkEncrypted(d *device.Disk, is bool) error {
	switch {
	case is && d.Encryption == nil:
		return fault.New(fault.Invalid, fault.Config, "the source of disk %s is encrypted; name its secret in <encryption>", d.Target)
	case !is && d.Encryption != nil:
		return fault.New(fault.Invalid, fault.Config, "the source of disk %s is not encrypted, but the definition says that it is", d.Target)
	}
	return nil
}

// FindDisk finds the images behind a disk, with their real paths and declared formats. present is false for
// an empty drive. The caller must close the attachment.
func FindDisk(ctx context.Context, r *machine.Registry, sc scope.Scope, run *machine.Instance, d *device.Disk) (a device.DiskAttachment, present bool, err error) {
	if d.Source == nil {
		return a, false, nil
	}
	if err := checkSourceLabel(r, d); err != nil { // also for a device that is attached
		return a, false, err
	}
	path, format, err := Source(r, d)
	if err != nil {
		return a, false, asAbsence(err)
	}
	chain, err := image.OpenChain(ctx, sc, path, format)
	if err != nil {
		return a, false, asAbsence(fmt.Errorf("cannot use the source of disk %s: %w", d.Target, err))
	}
	defer chain.Close()
	if err := checkEncrypted(d, chain[0].Encrypted); err != nil {
		return a, false, err
	}
	if err := checkAlone(ctx, r, run, d, chain[0]); err != nil {
		return a, false, fmt.Errorf("cannot use the source of disk %s: %w", d.Target, err)
	}
	if run.User != nil {
		if a, err = openLayers(ctx, chain, d.ReadOnly); err != nil {
			return a, false, fmt.Errorf("cannot use the source of disk %s: %w", d.Target, err)
		}
	}
	a.Size = chain[0].Virtual
	if !d.ReadOnly { // after it is open for writing, so that a process that removes the note sees this
		if err := fsguard.Run(ctx, path, chain[0].RecordBacking); err != nil {
			a.Close()
			return device.DiskAttachment{}, false, fmt.Errorf("cannot use the source of disk %s: %w", d.Target, err)
		}
	}
	if run.User != nil {
		return a, true, nil
	}
	for _, l := range chain {
		a.Layers = append(a.Layers, device.Layer{Path: l.Path, Format: string(l.Format), Block: l.Device})
	}
	return a, true, nil
}

// forkDelay is how long a new child of the daemon may hold the daemon's open files: until it executes its
// program.
const forkDelay = 128 * time.Millisecond

// checkAlone refuses a disk that another process has open for writing: the guest's data would be lost or
// read. The guest's own QEMU may have it open: a paused QEMU closes a detached disk only when the guest
// runs.
func checkAlone(ctx context.Context, r *machine.Registry, run *machine.Instance, d *device.Disk, top image.Layer) error {
	if d.ReadOnly || d.Shareable {
		return nil
	}
	look := func() error { return image.CheckNoWriter(top.File) }
	err := fsguard.Run(ctx, top.Path, look)
	for pause := time.Millisecond; fault.Is(err, fault.Busy) && pause < forkDelay; pause *= 2 {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause):
		}
		err = fsguard.Run(ctx, top.Path, look)
	}
	if run.PID == 0 || !fault.Is(err, fault.Busy) {
		return err
	}
	if at, _, e := filelabel.PathAndID(top.File); e == nil && r.Kernel.HasOpen(run.PID, at) {
		return nil
	}
	return err
}

// CheckWrittenDisks checks the headers of a guest's writable images after its QEMU has ended. A backing file
// name that QEMU was not given is not followed.
func CheckWrittenDisks(ctx context.Context, r *machine.Registry, run *machine.Instance) error {
	ctx, stop := context.WithTimeout(ctx, machine.CloseTimeout)
	defer stop()
	for _, d := range run.LastDefinition().Devices.Disks {
		if d.Source == nil || d.ReadOnly {
			continue
		}
		path, format, err := Source(r, d)
		if err != nil { // if its pool is gone, the note stays
			continue
		}
		changed, err := fsguard.Do(ctx, path, func() (bool, error) { return image.RemoveRecord(path, format) }, nil)
		if changed && run.PID != 0 {
			run.Log.Error("backing file name in an image was changed while QEMU ran; the new name is not followed", "path", path)
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			run.Log.Warn("cannot check an image after its guest has ended", "path", path, "error", err)
		}
	}
	return nil
}

// Source returns the path behind a disk and its declared format. A format is never guessed: what a guest
// writes to a raw disk must not decide how the disk is read.
func Source(r *machine.Registry, d *device.Disk) (path string, format image.Format, err error) {
	path, format = d.Source.Path(), image.Format(d.Format)
	if v := d.Source.Volume; v != nil {
		if path, format, err = r.Pools.Resolve(v.Pool, v.Volume, format); err != nil {
			return "", "", fmt.Errorf("cannot find the source of disk %s: %w", d.Target, err)
		}
	}
	format = cmp.Or(format, image.Raw)
	if format == image.Raw && d.Encryption != nil {
		format = image.LUKS
	}
	return path, format, nil
}

// ReholdHostResources pushes the releases of an adopted guest's display ports, relays, control group and TPM.
func ReholdHostResources(r *machine.Registry, run *machine.Instance) {
	for _, g := range run.Definition.Devices.Graphics {
		if g.Port > 0 {
			reservePort(&r.Ports, g.Port)
			run.PushRelease("display port", func(context.Context) error { GivePortBack(&r.Ports, g.Port); return nil })
		}
	}
	restartRelays(r, run)
	group := r.Cgroups.Guest(run.UUID)
	run.PushRelease("disks", func(ctx context.Context) error { return CheckWrittenDisks(ctx, r, run) })
	run.PushRelease("sockets", func(ctx context.Context) error { return RemoveSockets(ctx, run) })
	run.PushRelease("control group", group.Clear)
	HoldTPMs(r, run)
}

// tailSize bounds, in bytes, how much of a log is read for an error.
const tailSize = 64 << 10
