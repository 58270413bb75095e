package provision

import (
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/filelabel"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/mechanism/fsguard"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemuprocess"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// openLayers opens the images of a disk for QEMU: the top one for writing unless readOnly, the others for
// reading. The attachment owns the files.
func openLayers(ctx context.Context, chain image.Chain, readOnly bool) (a device.DiskAttachment, err error) {
	defer func() {
		if err != nil {
			a.Close()
		}
	}()
	for i, l := range chain {
		mode := unix.O_RDONLY
		if i == 0 && !readOnly {
			mode = unix.O_RDWR
		}
		f, err := fsguard.Do(ctx, l.Path, func() (*os.File, error) { return l.OpenForQEMU(mode) },
			func(f *os.File) { _ = f.Close() })
		if err != nil {
			return a, err
		}
		a.Layers = append(a.Layers, device.Layer{Path: l.Path, Format: string(l.Format), Block: l.Device, File: f})
	}
	return a, nil
}

// CheckHostFiles refuses a guest that boots from a missing file of the host's programs. These files are not
// opened for QEMU.
func CheckHostFiles(ctx context.Context, sc scope.Scope, def *domain.Definition) error {
	for _, path := range bootFiles(def) {
		if !filelabel.OfTheHost(path) {
			continue
		}
		f, err := machine.OpenNamed(ctx, sc, path, unix.O_RDONLY)
		if errors.Is(err, os.ErrNotExist) {
			return fault.Wrap(err, fault.NotFound, fault.Host, "cannot read a boot file of the guest")
		}
		if err == nil {
			_ = f.Close()
		}
	}
	return nil
}

// OpenRead opens, by path, the files that QEMU reads while it makes the machine. It refuses pipes: QEMU
// would wait for the other end and hold its place in the admission queue. It also bounds the total size,
// because QEMU keeps the contents in memory that the ledger does not count.
func OpenRead(ctx context.Context, sc scope.Scope, def *domain.Definition) (files map[string]*os.File, err error) {
	files = map[string]*os.File{}
	defer func() {
		if err != nil {
			CloseAll(maps.Values(files))
		}
	}()
	most := max(def.Memory, leastRead)
	var all uint64
	for _, path := range ReadFiles(def) {
		f, err := machine.OpenNamed(ctx, sc, path, unix.O_RDONLY)
		if err != nil {
			return nil, fault.Wrap(err, fault.Of(err), fault.Host, "cannot read a boot file of the guest")
		}
		if files[path] == nil {
			files[path] = f
		} else { // count it once for each time that it is read
			defer f.Close()
		}
		size, err := f.Seek(0, io.SeekEnd)
		if err != nil {
			return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot find the size of %s", path)
		}
		if all += uint64(size); all > most || all < uint64(size) {
			return nil, fault.New(fault.Invalid, fault.Config, "cannot let QEMU read %s: the boot files of a guest may have %d MiB together, the size of its memory; "+
				"make the files smaller, or give the guest more memory", path, most>>20)
		}
	}
	return files, nil
}

// leastRead is how many bytes QEMU may read for a guest with little memory.
const leastRead = 64 << 20

// OpenInto opens a file of the firmware.
func OpenInto(ctx context.Context, sc scope.Scope, files map[string]*os.File, path, format string, mode int) error {
	if path == "" {
		return nil
	}
	if files[path] == nil {
		f, err := machine.OpenNamed(ctx, sc, path, mode)
		if err != nil {
			return err
		}
		files[path] = f
	}
	return fsguard.Run(ctx, path, func() error {
		if mode == unix.O_RDWR {
			if err := image.RecordBeforeWrite(files[path]); err != nil {
				return err
			}
		}
		return standsAlone(files[path], format)
	})
}

// standsAlone refuses an image with firmware or its variables if the image's header names another file. QEMU
// would open that file, or connect to any address that the header names.
func standsAlone(f *os.File, format string) error {
	if format != string(image.Qcow2) {
		return nil
	}
	err := image.LockForQEMU(f)
	var info image.Info
	if err == nil {
		info, err = image.Inspect(f, image.Qcow2)
	}
	if err == nil && (info.Backing != nil || info.ExternalData) {
		err = fault.New(fault.Unsupported, fault.Config, "its header names another file, which is not followed for firmware; make one image of both (qemu-img convert)")
	}
	return fault.Wrap(err, fault.Of(err), fault.Config, "cannot use the firmware %s", f.Name())
}

// OpenBackends opens the files and listening sockets of character devices. Sockets without a path are
// placed in the run directory, beside the directory that QEMU may write to.
func OpenBackends(ctx context.Context, r *machine.Registry, sc scope.Scope, run *machine.Instance, p *qemu.Plan, all []device.Device) error {
	for _, dev := range all {
		b := BackendOf(dev)
		if b == nil {
			continue
		}
		if b.Type == "file" {
			if err := openOutput(ctx, sc, p, b.Path, b.Append.Or(false)); err != nil {
				return err
			}
		}
		if b.LogFile != "" {
			if err := openOutput(ctx, sc, p, b.LogFile, b.LogAppend.Or(false)); err != nil {
				return err
			}
		}
		alias := dev.Common().Alias
		if _, is := dev.(*device.RNG); !is { // it has one address only
			if err := qemu.PlaceSocket(run.Dir, alias, b); err != nil {
				return err
			}
		}
		if b.Listens() && filepath.Dir(b.Path) != OwnPath(run) {
			if err := listenFor(ctx, sc, run.Labels, p, alias, b.Path); err != nil {
				return err
			}
		}
		if b.Connects() {
			if err := connectFor(ctx, run, sc, p, alias, b); err != nil {
				return err
			}
		}
	}
	return nil
}

// openOutput opens a file that a character device writes to.
func openOutput(ctx context.Context, sc scope.Scope, p *qemu.Plan, path string, extend bool) error {
	if p.Files[path] != nil {
		return nil
	}
	how := os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	if extend {
		how = os.O_WRONLY | os.O_CREATE | os.O_APPEND
	}
	held := sc.FoldersFor(path)
	f, err := fsguard.Do(ctx, path, func() (f *os.File, err error) {
		err = image.WithFile(path, held, func(at string, nofollow int) error {
			f, err = os.OpenFile(at, how|nofollow|unix.O_NONBLOCK, 0o600)
			return err
		})
		if err == nil {
			err = image.RecordBeforeWrite(f) // it may be another guest's disk, which must not read it as an image
		}
		return f, err
	}, func(f *os.File) { _ = f.Close() })
	if err != nil {
		return fault.Wrap(err, machine.Failure(err), fault.Host, "cannot open %s for a character device", path)
	}
	if p.Files == nil {
		p.Files = map[string]*os.File{}
	}
	p.Files[path] = f
	return nil
}

// listenFor makes the listening socket of a character device. It is removed when the instance ends.
func listenFor(ctx context.Context, sc scope.Scope, labels *filelabel.Labels, p *qemu.Plan, alias, path string) error {
	if p.Sockets[alias] != nil {
		return nil // the first console is the first serial port
	}
	held := sc.FoldersFor(path)
	listen := func() (f *os.File, err error) {
		err = image.WithParent(path, held, func(at string) error {
			return labels.Sockets(func() (err error) { f, err = qemuprocess.ListenMonitor(at); return err })
		})
		return f, err
	}
	f, err := fsguard.Do(ctx, path, listen, func(f *os.File) { _ = f.Close() })
	if err != nil {
		return fault.Wrap(err, machine.Failure(err), fault.Host, "cannot make the socket %s", path)
	}
	if p.Sockets == nil {
		p.Sockets = map[string]*os.File{}
	}
	p.Sockets[alias] = f
	return nil
}

// ClosePlan closes the daemon's copies of the files that QEMU is passed.
func ClosePlan(p *qemu.Plan) {
	for _, a := range p.NICs {
		a.Close()
	}
	for _, a := range p.Disks {
		a.Close()
	}
	CloseAll(maps.Values(p.Files))
	CloseAll(maps.Values(p.Sockets))
	for _, files := range p.Listeners {
		CloseAll(slices.Values(files))
	}
	p.Files, p.Sockets, p.Listeners = nil, nil, nil
	if p.VSock != nil {
		_ = p.VSock.Close() // nothing was written
		p.VSock = nil
	}
}
