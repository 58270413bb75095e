package hotplug

import (
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/host/secret"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/word/device"
)

// passphrase returns the passphrase of a disk. The caller must clear it.
func passphrase(r *machine.Registry, d *device.Disk) ([]byte, error) {
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

// CheckKey reports early that a disk's passphrase is missing.
func CheckKey(r *machine.Registry, d *device.Disk) error {
	if d.Encryption == nil || d.Source == nil {
		return nil
	}
	value, err := passphrase(r, d)
	clear(value)
	return err
}

// GiveKey puts a disk's passphrase into a plan until forget is called.
func GiveKey(r *machine.Registry, p *qemu.Plan, d *device.Disk) (forget func(), err error) {
	if d.Encryption == nil || d.Source == nil {
		return func() {}, nil
	}
	value, err := passphrase(r, d)
	p.Keys = map[string][]byte{d.Alias: value}
	return func() { clear(value); p.Keys = nil }, err
}

// ExplainKey replaces QEMU's error for a wrong passphrase by a clear one.
func ExplainKey(dev device.Device, err error) error {
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
