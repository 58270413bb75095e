package qemu

import (
	"encoding/base64"
	"slices"

	"github.com/lodge-kvm/lodge/internal/word/device"
)

// A passphrase is given through the monitor, and there is none yet when QEMU reads
// its arguments. An encrypted disk's device therefore begins with a stand-in of
// the same size that holds nothing, and gets its image before the processors run.

// addPlaceholder makes the node that a disk's device begins with.
func (b *builder) addPlaceholder(d *device.Disk, a device.DiskAttachment) (string, error) {
	if err := b.checkEncryption(d); err != nil {
		return "", err
	}
	b.part("blockdev", properties{{"driver", "null-co"}, {"node-name", placeholderName(d)}, {"size", a.Size}, {"read-only", d.ReadOnly}, {"read-zeroes", true}})
	return placeholderName(d), nil
}

func placeholderName(d *device.Disk) string { return nodeBase(d.Source.Index) + "-void" }

// keyName is what QEMU calls the passphrase of a disk.
func keyName(d *device.Disk) string { return nodeBase(d.Source.Index) + "-key" }

// checkEncryption refuses encryption where it is not built.
func (b *builder) checkEncryption(d *device.Disk) error {
	switch {
	case d.Device != "disk":
		return unsupported("disk %s: encryption of a %s is not built", d.Target, d.Device)
	case d.Bus == "usb": // whose device takes no other image once it is made
		return unsupported("disk %s: encryption of disks on bus usb is not built", d.Target)
	case d.Format != "" && d.Format != "raw" && d.Format != "qcow2":
		return unsupported("disk %s: images of format %s are not opened encrypted, raw and qcow2 ones are", d.Target, d.Format)
	case !b.Capabilities.HasObject("secret"):
		return unsupported("this QEMU has no object secret, which encrypted disks need")
	}
	return nil
}

// addKey hands a running QEMU what opens an encrypted disk.
func (b *builder) addKey(d *device.Disk) error {
	if d.Encryption == nil {
		return nil
	}
	if err := b.checkEncryption(d); err != nil {
		return err
	}
	return b.object("secret", keyName(d), property{"data", base64.StdEncoding.EncodeToString(b.Keys[d.Alias])}, property{"format", "base64"})
}

// keyProperties is what an encrypted image is told of its passphrase.
func keyProperties(d *device.Disk, format string) properties {
	switch {
	case d.Encryption == nil:
		return nil
	case format == "qcow2":
		return properties{{"encrypt", properties{{"format", "luks"}, {"key-secret", keyName(d)}}}}
	}
	return properties{{"key-secret", keyName(d)}}
}

// removeKey gives the steps by which QEMU forgets the passphrase of a disk that it has opened, if
// it can do without: that of qcow2 it needs for as long as it has the image, whose header it reads
// anew after each save, dump or restore. Without it the disk would have no image from then on.
func removeKey(p *Plan, d *device.Disk) []Step {
	if layers := p.Disks[d.Alias].Layers; d.Encryption == nil || len(layers) > 0 && layers[0].Format == "qcow2" {
		return nil
	}
	return []Step{removal("object", keyName(d))}
}

// Unlock gives the steps that open the image of an encrypted disk and put it
// behind the device in the place of the stand-in. The plan has the disk's
// passphrase, which QEMU is made to forget where it can be.
func Unlock(p *Plan, d *device.Disk) ([]Step, error) {
	b := newBuilder(p)
	b.live = true
	top, err := b.nodes(d, p.Disks[d.Alias])
	if err != nil {
		return nil, err
	}
	var steps []Step
	for _, part := range b.parts {
		steps = append(steps, part.step())
	}
	steps = append(steps,
		Step{Command: "qom-set", Args: properties{{"path", "/machine/peripheral/" + d.Alias}, {"property", "drive"}, {"value", top}}},
		removal("blockdev", placeholderName(d)))
	return slices.Concat(steps, removeKey(p, d), removeSets(b.sets)), nil
}
