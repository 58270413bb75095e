package qemu

import (
	"encoding/base64"
	"slices"

	"github.com/lodge-kvm/lodge/internal/word/device"
)

// A passphrase is passed through the monitor, which is not connected yet when QEMU reads its arguments. So
// an encrypted disk's device starts with an empty placeholder of the same size, and gets its image before
// the vCPUs run.

// addPlaceholder makes the empty node that an encrypted disk's device starts with.
func (b *builder) addPlaceholder(d *device.Disk, a device.DiskAttachment) (string, error) {
	if err := b.checkEncryption(d); err != nil {
		return "", err
	}
	b.add("blockdev", properties{{"driver", "null-co"}, {"node-name", placeholderName(d)}, {"size", a.Size}, {"read-only", d.ReadOnly}, {"read-zeroes", true}})
	return placeholderName(d), nil
}

func placeholderName(d *device.Disk) string { return nodeBase(d.Source.Index) + "-void" }

// keyName is QEMU's name of the passphrase of a disk.
func keyName(d *device.Disk) string { return nodeBase(d.Source.Index) + "-key" }

// checkEncryption refuses encryption that is not supported.
func (b *builder) checkEncryption(d *device.Disk) error {
	switch {
	case d.Device != "disk":
		return unsupported("disk %s: encryption of a %s is not built", d.Target, d.Device)
	case d.Bus == "usb": // its device takes no other image once it is made
		return unsupported("disk %s: encryption of disks on bus usb is not built", d.Target)
	case d.Format != "" && d.Format != "raw" && d.Format != "qcow2":
		return unsupported("disk %s: images of format %s are not opened encrypted, raw and qcow2 ones are", d.Target, d.Format)
	case !b.Capabilities.HasObject("secret"):
		return unsupported("this QEMU has no object secret, which encrypted disks need")
	}
	return nil
}

// addKey passes the passphrase of an encrypted disk to a running QEMU.
func (b *builder) addKey(d *device.Disk) error {
	if d.Encryption == nil {
		return nil
	}
	if err := b.checkEncryption(d); err != nil {
		return err
	}
	return b.addObject("secret", keyName(d), property{"data", base64.StdEncoding.EncodeToString(b.Keys[d.Alias])}, property{"format", "base64"})
}

// keyProperties are the properties of an encrypted image that name its passphrase.
func keyProperties(d *device.Disk, format string) properties {
	switch {
	case d.Encryption == nil:
		return nil
	case format == "qcow2":
		return properties{{"encrypt", properties{{"format", "luks"}, {"key-secret", keyName(d)}}}}
	}
	return properties{{"key-secret", keyName(d)}}
}

// removeKey returns the commands that remove the passphrase of an open disk from QEMU, if it can do
// without. For qcow2 it needs the passphrase as long as it has the image, because it reads the header
// again after each save, dump or restore; without it the disk would lose its image.
func removeKey(p *Plan, d *device.Disk) []Step {
	if layers := p.Disks[d.Alias].Layers; d.Encryption == nil || len(layers) > 0 && layers[0].Format == "qcow2" {
		return nil
	}
	return []Step{removeStep("object", keyName(d))}
}

// Unlock returns the commands that open the image of an encrypted disk and replace the placeholder. The
// plan holds the passphrase, which is removed from QEMU if possible.
func Unlock(p *Plan, d *device.Disk) ([]Step, error) {
	b := newBuilder(p)
	b.running = true
	top, err := b.nodes(d, p.Disks[d.Alias])
	if err != nil {
		return nil, err
	}
	var steps []Step
	for _, part := range b.pending {
		steps = append(steps, part.monitorStep())
	}
	steps = append(steps,
		Step{Command: "qom-set", Args: properties{{"path", "/machine/peripheral/" + d.Alias}, {"property", "drive"}, {"value", top}}},
		removeStep("blockdev", placeholderName(d)))
	return slices.Concat(steps, removeKey(p, d), removeFDSets(b.fdSets)), nil
}
