package qemu

import (
	"fmt"
	"hash/crc32"
	"os"
	"slices"

	"github.com/lodge-kvm/lodge/internal/word/device"
)

// A sandboxed QEMU gets its files as descriptors. Where QEMU only takes a path, it gets a set of
// descriptors, which it opens as /dev/fdset/N. The set of an image has the number of the image's node,
// which is used once in the life of a guest.

// fdSetOfPath returns the number of the set of another file, above the numbers of disks. It must
// be the same whenever the guest's command is made, and below 2^31.
func fdSetOfPath(path string) uint { return 1<<30 | uint(crc32.ChecksumIEEE([]byte(path)))&(1<<30-1) }

// addFDSet passes a file to QEMU and returns the path to open. The original path is passed as a comment
// for readers of the command line; QEMU ignores it.
func (b *builder) addFDSet(f *os.File, set uint) string {
	p := argument{option: "add-fd", file: f, props: properties{{"fdset-id", set}}}
	if !b.running {
		l := optionList{fmt.Sprintf("fd=%s,set=%d", b.passFile(f, ""), set)}
		l.add("opaque", f.Name())
		p.raw = l.String()
	}
	b.pending = append(b.pending, p)
	b.fdSets = append(b.fdSets, set)
	return fmt.Sprintf("/dev/fdset/%d", set)
}

// qemuPath returns the path that QEMU opens: of a file that was passed, or the path itself.
func (b *builder) qemuPath(path string) string {
	if f := b.Files[path]; f != nil {
		return b.addFDSet(f, fdSetOfPath(path))
	}
	return path
}

// removeFDSets returns the commands that remove sets of files from QEMU, except for the descriptors that it
// has opened. Otherwise it would hold images that it no longer uses, and their locks.
func removeFDSets(sets []uint) []Step {
	steps := make([]Step, len(sets))
	for i, set := range sets {
		steps[i] = removeStep("add-fd", set)
	}
	return steps
}

// ForgetImages returns the commands that remove the files of images with these numbers that QEMU got at
// its start, once nothing in it uses them. A start does not do that: it would cost a command for each
// image.
func ForgetImages(held []FDSet, numbers []uint) []Step {
	var sets []uint
	for _, set := range held {
		if slices.Contains(numbers, set.ID) {
			sets = append(sets, set.ID)
		}
	}
	return removeFDSets(sets)
}

// forgetBackend returns the commands that remove the files of an unplugged character device.
// Plugging has already removed the files of a device that was plugged in: nothing is left
// to remove then.
func forgetBackend(back *device.Backend) []Step {
	var sets []uint
	if back.Type == "file" {
		sets = append(sets, fdSetOfPath(back.Path))
	}
	if back.LogFile != "" {
		sets = append(sets, fdSetOfPath(back.LogFile))
	}
	return removeFDSets(sets)
}
