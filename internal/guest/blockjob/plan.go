package blockjob

import (
	"path/filepath"
	"strconv"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/device"
)

// CommitOptions say which images a block commit merges, and how fast.
type CommitOptions struct {
	// Top is the uppermost image to commit, and Base is the image that its data is written to. Each is a
	// path or TARGET[NUMBER]. Without Top it is the active image, without Base the lowest one.
	Top, Base string
	// Shallow makes Base the image directly below Top. Active says that Top is the active image, which the
	// guest writes.
	Shallow, Active bool
	// Relative keeps backing file names in headers relative.
	Relative bool
	// Speed limits the job, in bytes a second. 0: no limit.
	Speed uint64
}

// commitRange is the part of a disk's chain that a commit works on. top and base are positions in the chain.
// Position 0 is the active image.
type commitRange struct{ top, base int }

// isActive reports whether the uppermost committed image is the active one.
func (s commitRange) isActive() bool { return s.top == 0 }

// findCommit resolves the images that a client names, and refuses what libvirt refuses.
func findCommit(d *device.Disk, o CommitOptions) (s commitRange, err error) {
	if s.top, err = findTop(d, o.Top); err != nil {
		return s, err
	}
	images := d.Images()
	if s.top < len(images)-1 && o.Base == "" && o.Shallow {
		s.base = s.top + 1
	} else if s.base, err = findBelow(d, s.top, o.Base); err != nil {
		return s, err
	}
	switch {
	case s.isActive() && !o.Active:
		return s, invalidCall("commit of '%s' active layer requires active flag", d.Target)
	case !s.isActive() && o.Active:
		return s, invalidCall("active commit requested but '%s' is not active", images[s.top].Path())
	case o.Shallow && s.base != s.top+1:
		return s, invalidCall("base '%s' is not immediately below '%s' in chain for '%s'", images[s.base].Path(), images[s.top].Path(), d.Source.Path())
	}
	return s, checkCommit(d, s)
}

// invalidCall returns an error for an invalid call, with libvirt's text.
func invalidCall(format string, args ...any) error {
	return fault.New(fault.Invalid, fault.Call, format, args...)
}

// findTop returns the position of an image in a disk's chain. An empty name, or the disk's own, means the
// active image.
func findTop(d *device.Disk, name string) (int, error) {
	if d.Source == nil {
		return 0, invalidCall("could not find base image in chain for '%s'", d.Target)
	}
	if name == "" || name == d.Target {
		return 0, nil
	}
	return findImage(d, 0, name, func() error { return invalidCall("could not find image '%s' in chain for '%s'", name, d.Target) })
}

// findBelow returns the position of an image below another one. An empty name means the lowest.
func findBelow(d *device.Disk, top int, name string) (int, error) {
	images := d.Images()
	switch {
	case top == len(images)-1 && name == "":
		return 0, invalidCall("could not find base image in chain for '%s'", d.Target)
	case name == "":
		return len(images) - 1, nil
	}
	return findImage(d, top+1, name, func() error {
		return invalidCall("could not find image '%s' beneath '%s' in chain for '%s'", name, images[top].Path(), d.Target)
	})
}

// findImage finds an image by number, by path, or by its name relative to the image above.
func findImage(d *device.Disk, from int, name string, missing func() error) (int, error) {
	target, number, numbered := parseIndexed(name)
	if numbered && target != d.Target {
		return 0, invalidCall("requested target '%s' does not match target '%s'", target, d.Target)
	}
	images := d.Images()
	for i := from; i < len(images); i++ {
		path := images[i].Path()
		switch {
		case numbered:
			if images[i].Index == number {
				return i, nil
			}
		case path == name, i > 0 && filepath.Join(filepath.Dir(images[i-1].Path()), name) == path:
			return i, nil
		}
	}
	if numbered {
		return 0, invalidCall("could not find backing store index '%d' in chain for '%s'", number, d.Target)
	}
	return 0, missing()
}

// parseIndexed splits a name like vda[3].
func parseIndexed(name string) (target string, number uint, is bool) {
	target, rest, is := strings.Cut(name, "[")
	rest, closed := strings.CutSuffix(rest, "]")
	n, err := strconv.ParseUint(rest, 10, 32)
	return target, uint(n), is && closed && err == nil && n > 0
}

// checkCommit refuses disks and formats for which no commit is possible.
func checkCommit(d *device.Disk, s commitRange) error {
	format := formatAt(d, s.base)
	switch {
	case d.Transient:
		return fault.New(fault.Unsupported, fault.Call, "block jobs are not supported on transient disk '%s'", d.Target)
	case d.ReadOnly:
		return fault.New(fault.Unsupported, fault.Call, "disk %s is read-only, so nothing is committed to its backing files; shut the guest off and use qemu-img commit", d.Target)
	case d.Encryption != nil:
		return fault.New(fault.Unsupported, fault.Call, "disk %s is encrypted and its backing file is not: a commit would write the data unencrypted", d.Target)
	case format != "raw" && format != "qcow2":
		return fault.New(fault.Unsupported, fault.Call, "a commit into an image of format %s is not supported; only raw and qcow2 are", format)
	}
	return nil
}

// formatAt returns the format of an image in a running guest's chain.
func formatAt(d *device.Disk, place int) string {
	if place > 0 {
		return d.Backing[place-1].Format
	}
	if d.Format == "" {
		return "raw"
	}
	return d.Format
}

// dropCommitted changes the definition's disk to its state after the commit: without the committed images.
func dropCommitted(d *device.Disk, s commitRange) {
	if !s.isActive() {
		d.Backing = append(d.Backing[:s.top-1:s.top-1], d.Backing[s.base-1:]...)
		return
	}
	base := d.Backing[s.base-1]
	d.Source, d.Format, d.Backing = base.Source, base.Format, d.Backing[s.base:]
}
