package launch

import (
	"context"
	"errors"
	"maps"
	"os"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/guest/console"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/word/device"
)

// takeUser gives the guest a user and a directory that this user owns.
func (l *Launch) takeUser(context.Context) error {
	r := l.Guest.Reg
	if r.Isolation == nil {
		return nil
	}
	if l.Instance.User == nil { // a prepared QEMU has a user already
		user, err := provision.UserOf(r, l.Instance.Definition)
		if err != nil {
			return err
		}
		l.Instance.User = &user
		if err := provision.MakeOwnDir(l.Instance.Dir, user); err != nil {
			return err
		}
	}
	provision.Label(l.Instance)
	l.Instance.Isolation = provision.Barriers(r, l.Instance.Definition)
	return nil
}

// ReadBack reads what QEMU chose on its own: the ptys of character devices.
func (l *Launch) ReadBack(ctx context.Context) error {
	ptys, err := console.FindPTYs(ctx, l.Instance.Session.Load())
	if err != nil {
		return err
	}
	console.SetPTYs(l.Instance.Definition, ptys)
	return l.updateRecordedXML()
}

// unlock opens the image of an encrypted disk in QEMU.
func (l *Launch) unlock(ctx context.Context, s *qmp.Session, d *device.Disk) error {
	if _, present := l.plan.Disks[d.Alias]; !present || d.Encryption == nil || d.Tray == "open" {
		return nil
	}
	forget, err := hotplug.GiveKey(l.Guest.Reg, &l.plan, d)
	if err != nil {
		return err
	}
	defer forget()
	steps, err := qemu.Unlock(&l.plan, d)
	if err != nil {
		return err
	}
	for _, step := range steps {
		if err := machine.Execute(ctx, s, step); err != nil { // the start fails
			return hotplug.ExplainKey(d, err)
		}
	}
	return nil
}

// openFiles opens the files for QEMU other than disks: its firmware, and the files and sockets of character
// devices. It also checks that QEMU can read the files that it opens itself.
func (l *Launch) openFiles(ctx context.Context) error {
	if err := provision.CheckHostFiles(ctx, l.Sc, l.Instance.Definition); err != nil {
		return err
	}
	read, err := provision.OpenRead(ctx, l.Sc, l.Instance.Definition) // fail before the start waits for admission
	if err != nil {
		return err
	}
	defer provision.CloseAll(maps.Values(read)) // opened for the check only
	o := l.Instance.Definition.OS
	if o.Loader.Type != "pflash" { // QEMU then reads it without a format
		o.Loader.Format, o.NVRAM.Format = "", ""
	}
	if l.Instance.User == nil {
		for _, file := range [][2]string{{o.Loader.Path, o.Loader.Format}, {o.NVRAM.Path, o.NVRAM.Format}} {
			if err := provision.OpenInto(ctx, l.Sc, read, file[0], file[1], unix.O_RDONLY); err != nil && !errors.Is(err, os.ErrNotExist) { // QEMU reports a missing file
				return err
			}
		}
		return nil
	}
	provision.HoldRelays(l.Instance)
	l.plan.Files = map[string]*os.File{}
	if o.Loader.Type == "pflash" {
		code := unix.O_RDONLY
		if o.Loader.ReadOnly == device.Off {
			code = unix.O_RDWR
		}
		if err := provision.OpenInto(ctx, l.Sc, l.plan.Files, o.Loader.Path, o.Loader.Format, code); err != nil {
			return err
		}
		if o.NVRAM.Path != "" && o.Loader.Stateless != device.On {
			if err := provision.OpenInto(ctx, l.Sc, l.plan.Files, o.NVRAM.Path, o.NVRAM.Format, unix.O_RDWR); err != nil {
				return err
			}
		}
	}
	return provision.OpenBackends(ctx, l.Guest.Reg, l.Sc, l.Instance, &l.plan, l.Instance.Definition.Devices.All())
}
