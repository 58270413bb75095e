package guest

import (
	"context"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/host/secret"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/word/device"
)

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

// passphrase returns the passphrase of a disk. The caller must clear it.
func (r *Registry) passphrase(d *device.Disk) ([]byte, error) {
	e := d.Encryption
	if r.Secrets == nil {
		return nil, fault.New(fault.NotFound, fault.Secret, "disk %s is encrypted, and this daemon has no secrets", d.Target)
	}
	id := e.SecretUUID
	if id == "" {
		found, err := r.Secrets.ByUsage(secret.Usage{Type: "volume", ID: e.SecretUsage})
		if err != nil {
			return nil, err
		}
		id = found.UUID
	}
	value, err := r.Secrets.Value(id)
	return value, fault.Wrap(err, fault.Of(err), fault.Secret, "cannot open disk %s", d.Target)
}

// checkKey reports early that a disk's passphrase is missing.
func (r *Registry) checkKey(d *device.Disk) error {
	if d.Encryption == nil || d.Source == nil {
		return nil
	}
	value, err := r.passphrase(d)
	clear(value)
	return err
}

// giveKey puts a disk's passphrase into a plan until forget is called.
func (r *Registry) giveKey(p *qemu.Plan, d *device.Disk) (forget func(), err error) {
	if d.Encryption == nil || d.Source == nil {
		return func() {}, nil
	}
	value, err := r.passphrase(d)
	p.Keys = map[string][]byte{d.Alias: value}
	return func() { clear(value); p.Keys = nil }, err
}

// unlock opens the image of an encrypted disk in QEMU.
func (l *launching) unlock(ctx context.Context, s *qmp.Session, d *device.Disk) error {
	if _, present := l.plan.Disks[d.Alias]; !present || d.Encryption == nil || d.Tray == "open" {
		return nil
	}
	forget, err := l.g.reg.giveKey(&l.plan, d)
	if err != nil {
		return err
	}
	defer forget()
	steps, err := qemu.Unlock(&l.plan, d)
	if err != nil {
		return err
	}
	for _, step := range steps {
		if err := execute(ctx, s, step); err != nil { // the start fails
			return explainKey(d, err)
		}
	}
	return nil
}

// explainKey replaces QEMU's error for a wrong passphrase by a clear one.
func explainKey(dev device.Device, err error) error {
	d, ok := dev.(*device.Disk)
	if err == nil || !ok || d.Encryption == nil || !strings.Contains(err.Error(), "cannot unlock any keyslot") {
		return err
	}
	name := d.Encryption.SecretUUID
	if name == "" {
		name = "for volume " + d.Encryption.SecretUsage
	}
	return fault.New(fault.Failed, fault.Secret, "the value of secret %s does not open disk %s (%s): it is encrypted with another passphrase", name, d.Target, d.Source.Path())
}
