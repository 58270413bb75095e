package guest

import (
	"context"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/device"
	"github.com/lodge-kvm/lodge/domain"
	"github.com/lodge-kvm/lodge/fault"
	"github.com/lodge-kvm/lodge/host"
	"github.com/lodge-kvm/lodge/image"
	"github.com/lodge-kvm/lodge/mount"
)

// chooseFirmware settles which image a definition boots from, where it asks for
// UEFI in general, and where the guest keeps its variables. It is called when
// a guest is defined: the choice is part of the definition from then on, so that
// a firmware package installed later does not change a guest.
func (r *Registry) chooseFirmware(def *domain.Definition) error {
	o := &def.OS
	if o.Firmware == "efi" && o.Loader.Path == "" {
		f, err := pickFirmware(o)
		if err != nil {
			return err
		}
		o.Loader.Path, o.Loader.Type, o.Loader.ReadOnly = f.Code, "pflash", device.On
		o.Loader.Secure = device.Bool(f.Has("secure-boot") && f.Has("requires-smm"))
		if f.Has("requires-smm") {
			def.Features.SMM = device.On
		}
		if o.NVRAM.Template == "" {
			o.NVRAM.Template = f.Template
		}
	}
	stateful := o.Loader.Type == "pflash" && o.Loader.Stateless != device.On
	if stateful && o.NVRAM.Path == "" && o.NVRAM.Template != "" {
		o.NVRAM.Path = r.nvramPath(def.UUID)
	}
	return nil
}

// pickFirmware gives the first of the host's images that suits the machine and
// has, or has not, the features that the definition speaks of. Secure boot is
// not chosen unless it is asked for: it needs SMM, and keys.
func pickFirmware(o *domain.OS) (*host.Firmware, error) {
	all, err := host.Firmwares()
	for _, f := range all {
		if f.Flash && f.Format == "raw" && f.Suits(o.Arch, o.Machine) && wanted(o, &f) {
			return &f, nil
		}
	}
	return nil, errors.Join(fault.New(fault.Unsupported, fault.Config,
		"this host has no UEFI firmware for machine %s with the features asked for; install the package ovmf", o.Machine), err)
}

func wanted(o *domain.OS, f *host.Firmware) bool {
	want := map[string]device.Switch{"secure-boot": o.Loader.Secure, "enrolled-keys": device.Unset}
	for _, feature := range o.FirmwareFeatures {
		want[feature.Name] = feature.Enabled
	}
	for name, on := range want {
		if f.Has(name) != on.Or(false) {
			return false
		}
	}
	return true
}

// makeNVRAM gives a guest its variable store, from the template, at its first
// start, or anew where that is asked for. It stays when the guest ends, unless it was transient.
func (l *launching) makeNVRAM(ctx context.Context) error {
	o := l.run.def.OS
	if o.NVRAM.Path == "" || o.NVRAM.Template == "" {
		return nil
	}
	there, err := fileExists(ctx, o.NVRAM.Path)
	if err != nil || there && !l.opts.ResetNVRAM {
		return err
	}
	err = copyFile(ctx, o.NVRAM.Template, o.NVRAM.Path)
	l.run.MadeNVRAM = err == nil && !there
	return fault.Wrap(err, failure(err), fault.Host, "cannot make the guest's UEFI variables")
}

// dropHalfNVRAM removes what a start that was cut off had written of a variable
// store.
func dropHalfNVRAM(ctx context.Context, r *run) {
	path := r.def.OS.NVRAM.Path
	if path == "" || r.def.OS.NVRAM.Template == "" {
		return
	}
	held := heldTo(ctx, path)
	if err := mount.Run(ctx, path, func() error { return removeNamed(partial(path), held) }); err != nil {
		r.log.Warn("a half-made file of UEFI variables may stay", "path", partial(path), "error", err)
	}
}

// failure is the kind of an error where Lodge knows it, and else of what the host
// refused.
func failure(err error) fault.Kind {
	if k := fault.Of(err); k != fault.Internal {
		return k
	}
	return fault.Failed
}

// maxTemplate bounds a template of UEFI variables, in bytes.
const maxTemplate = 64 << 20

// copyFile copies a small file into its place in one step. A disk that is busy
// may take long to write it out.
func copyFile(ctx context.Context, from, to string) error {
	held := heldTo(ctx, from)
	text, err := mount.Do(ctx, from, func() ([]byte, error) {
		in, err := image.OpenHeld(from, unix.O_RDONLY, held)
		if err != nil {
			return nil, err
		}
		defer in.Close()
		return io.ReadAll(io.LimitReader(in, maxTemplate))
	}, nil)
	if err != nil {
		return err
	}
	fill := func(f *os.File) error {
		return mount.Outlast(ctx, to, func() error {
			if err := image.Distrust(f); err != nil { // to may be the disk of another, to whom it is an image
				return err
			}
			_, err := f.Write(text)
			return err
		})
	}
	return writeImage(ctx, to, fill, (*os.File).Sync)
}
