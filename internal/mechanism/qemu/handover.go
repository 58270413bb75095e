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

// pathSet returns the number of the set of another file, above the numbers of disks. It must
// be the same whenever the guest's command is made, and below 2^31.
func pathSet(path string) uint { return 1<<30 | uint(crc32.ChecksumIEEE([]byte(path)))&(1<<30-1) }

// handOver passes a file to QEMU and returns the path to open. The original path is passed as a comment
// for readers of the command line; QEMU ignores it.
func (b *builder) handOver(f *os.File, set uint) string {
	p := part{option: "add-fd", file: f, props: properties{{"fdset-id", set}}}
	if !b.live {
		l := list{fmt.Sprintf("fd=%s,set=%d", b.pass(f, ""), set)}
		l.add("opaque", f.Name())
		p.text = l.String()
	}
	b.parts = append(b.parts, p)
	b.sets = append(b.sets, set)
	return fmt.Sprintf("/dev/fdset/%d", set)
}

// open returns the path that QEMU opens: of a file that was passed, or the path itself.
func (b *builder) open(path string) string {
	if f := b.Files[path]; f != nil {
		return b.handOver(f, pathSet(path))
	}
	return path
}

// removeSets returns the commands that remove sets of files from QEMU, except for the descriptors that it
// has opened. Otherwise it would hold images that it no longer uses, and their locks.
func removeSets(sets []uint) []Step {
	steps := make([]Step, len(sets))
	for i, set := range sets {
		steps[i] = removal("add-fd", set)
	}
	return steps
}

// ForgetImages returns the commands that remove the files of images with these numbers that QEMU got at
// its start, once nothing in it uses them. A start does not do that: it would cost a command for each
// image.
func ForgetImages(held []FileSet, numbers []uint) []Step {
	var sets []uint
	for _, set := range held {
		if slices.Contains(numbers, set.ID) {
			sets = append(sets, set.ID)
		}
	}
	return removeSets(sets)
}

// forgetBackend returns the commands that remove the files of an unplugged character device.
// Plugging has already removed the files of a device that was plugged in: nothing is left
// to remove then.
func forgetBackend(back *device.Backend) []Step {
	var sets []uint
	if back.Type == "file" {
		sets = append(sets, pathSet(back.Path))
	}
	if back.LogFile != "" {
		sets = append(sets, pathSet(back.LogFile))
	}
	return removeSets(sets)
}
