package qemu

import (
	"fmt"
	"hash/crc32"
	"os"
	"slices"

	"github.com/lodge-kvm/lodge/internal/word/device"
)

// A QEMU that may open nothing of the host's is handed its files. What it can only
// be told as a path is then a set of descriptors, which it opens as /dev/fdset/N.
// The set of an image has the number of the image's node, which is used once in the life of a guest.

// pathSet numbers the set of another file, above those of disks; the number must
// be the same whenever the guest is made, and below 2^31.
func pathSet(path string) uint { return 1<<30 | uint(crc32.ChecksumIEEE([]byte(path)))&(1<<30-1) }

// handOver gives QEMU a file and says what it is to open. The path goes with it for
// those who read the command line: QEMU makes nothing of it.
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

// open is what QEMU opens for a path: a file that it is handed, or the path.
func (b *builder) open(path string) string {
	if f := b.Files[path]; f != nil {
		return b.handOver(f, pathSet(path))
	}
	return path
}

// removeSets gives the steps after which nothing is left of sets of files but what
// QEMU has opened. It would otherwise hold images, and the locks on them, that it
// no longer uses.
func removeSets(sets []uint) []Step {
	steps := make([]Step, len(sets))
	for i, set := range sets {
		steps[i] = removal("add-fd", set)
	}
	return steps
}

// ForgetImages gives the steps by which QEMU lets go of the images with these
// numbers that it was handed when it started, once nothing in it uses them. A start
// does not do that by itself: it would cost a command for each image.
func ForgetImages(held []FileSet, numbers []uint) []Step {
	var sets []uint
	for _, set := range held {
		if slices.Contains(numbers, set.ID) {
			sets = append(sets, set.ID)
		}
	}
	return removeSets(sets)
}

// forgetBackend gives those for the files of a character device that goes. One
// that was plugged has been handed them and made to forget them: nothing is left
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
