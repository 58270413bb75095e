package filelabel

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/seclabel"
	"github.com/lodge-kvm/lodge/internal/word/device"
)

// DiskLabels returns the labels that the images of a disk need. A writable image gets the guest's own label.
// A shareable one gets the lowest level, which all guests may write. A read-only one is labelled as
// content.
func (l *Labels) DiskLabels(d *device.Disk, a device.DiskAttachment) []FileLabel {
	if l == nil || l.Model != seclabel.SELinux {
		return nil
	}
	var all []FileLabel
	numbers := d.Nodes()
	for i, layer := range a.Layers {
		need := l.Content
		switch {
		case i > 0 || d.ReadOnly:
		case d.Shareable:
			need = l.Shared
		default:
			need = l.Image
		}
		if i == 0 {
			for _, said := range d.Source.SecLabels {
				if said.Model == l.Model && said.Relabel == device.Off {
					need = ""
				} else if said.Model == l.Model && said.Label != "" {
					need = said.Label
				}
			}
		}
		all = append(all, FileLabel{layer.File, need, ImageOwner(numbers[i])})
	}
	return all
}

// ImageOwner names images of disks by their numbers. A device alias would not do: images may outlive a
// change of medium, and a block job may remove one image of a disk.
func ImageOwner(numbers ...uint) string {
	names := make([]string, len(numbers))
	for i, n := range numbers {
		names[i] = fmt.Sprintf("image %d", n)
	}
	return strings.Join(names, ",")
}

// OwnerOf names a device as the user of labels and rules, for as long as the guest has it.
func OwnerOf(dev device.Device) string {
	if d, is := dev.(*device.Disk); is {
		return ImageOwner(d.Nodes()...)
	}
	return dev.Common().Alias
}

// owners splits a name into those that it stands for.
func owners(by string) []string { return strings.Split(by, ",") }

// IsHostFile reports whether a file belongs to the host's programs. Every guest may read these by policy,
// and they are not relabelled.
func IsHostFile(path string) bool { return strings.HasPrefix(filepath.Clean(path), "/usr/") }

// giveBackLimit bounds the wait for a file's own label.
const giveBackLimit = 30 * time.Second

// LendImage labels a file that QEMU writes or reads while it moves the guest's memory. The returned
// function restores the label.
func (l *Labels) LendImage(ctx context.Context, f *os.File) (func(), error) {
	if l == nil || l.Host == nil {
		return func() {}, nil
	}
	const by = "memory"
	back := func() {
		ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), giveBackLimit)
		defer stop()
		if err := l.GiveBack(ctx, by); err != nil {
			l.Log.Error("cannot restore the label of a file", "path", f.Name(), "error", err)
		}
	}
	if _, err := l.Lend(ctx, []FileLabel{{f, l.Image, by}}); err != nil {
		back()
		return nil, err
	}
	if l.Profile == nil {
		return back, nil
	}
	err := l.inTurn(ctx, func() error {
		l.addRules(by, nil, []*os.File{f})
		return l.loadProfile(ctx)
	})
	if err != nil {
		back()
		return nil, err
	}
	return back, nil
}

// LendDir labels one of the daemon's own directories, and the files in it.
func (l *Labels) LendDir(ctx context.Context, dir, by string) error {
	if l == nil || l.Model != seclabel.SELinux {
		return nil
	}
	f, err := os.Open(dir)
	if err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot label a directory of the guest")
	}
	defer f.Close()
	_, err = l.Lend(ctx, []FileLabel{{f, l.Own, by}})
	return err
}
