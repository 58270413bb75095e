package qemu

import (
	"os"
	"slices"

	"github.com/lodge-kvm/lodge/internal/word/device"
)

// An image below the top one is open read-only. For a job that writes to it QEMU opens it again, from the
// set of descriptors with the image's number, and takes a descriptor with the mode that it needs. So QEMU
// gets one to write, and one to read for the time after the job: the one from its start may have been
// removed.

// FDSet is a set of files that QEMU holds, as in query-fdsets.
type FDSet struct {
	ID    uint        `json:"fdset-id"`
	Files []FDSetFile `json:"fds"`
}

// FDSetFile is one descriptor of a set.
type FDSetFile struct {
	FD   int    `json:"fd"` // its number in QEMU
	Mark string `json:"opaque"`
}

// The marks of descriptors of GrantWrite, which distinguish them from others of the set.
const (
	writeMark = "lent to write"
	readMark  = "lent to read"
)

// HasWrite reports whether QEMU has a writable file of the image.
func HasWrite(held []FDSet, number uint) bool { return len(fdsWithMark(held, number, writeMark)) > 0 }

// GrantWrite returns the commands that pass QEMU an image to write, and once more to read. Files that it
// has already are skipped. The file from its start is removed, because its locks would never be released.
func GrantWrite(held []FDSet, number uint, write, read *os.File) []Step {
	var steps []Step
	for _, one := range []struct {
		file *os.File
		mark string
	}{{write, writeMark}, {read, readMark}} {
		if len(fdsWithMark(held, number, one.mark)) == 0 {
			steps = append(steps, Step{Command: "add-fd", Args: properties{{"fdset-id", number}, {"opaque", one.mark}}, File: one.file})
		}
	}
	for _, set := range held {
		for _, f := range set.Files {
			if set.ID == number && f.Mark != writeMark && f.Mark != readMark {
				steps = append(steps, removeFile(number, f.FD))
			}
		}
	}
	return steps
}

// ReopenReadOnly returns the command that makes QEMU open an image below the top one read-only again. A
// job that ended without effect leaves it writable.
func ReopenReadOnly(d *device.Disk, number uint) (Step, bool) {
	numbers := d.Nodes()
	place := slices.Index(numbers, number)
	if place < 1 {
		return Step{}, false
	}
	format := d.Backing[place-1].Format
	props := formatProperties(d, format, number, true)
	props.add("file", storageNode(number))
	switch {
	case place+1 < len(numbers):
		props.add("backing", FormatNode(numbers[place+1]))
	case slices.Contains(backed, format):
		props.add("backing", nil)
	}
	return Step{Command: "blockdev-reopen", Args: properties{{"options", []properties{props}}}}, true
}

// RevokeWrite returns the commands that take back the files of GrantWrite; none if QEMU has none of them.
func RevokeWrite(held []FDSet, number uint) []Step {
	var steps []Step
	for _, fd := range fdsWithMark(held, number, writeMark, readMark) {
		steps = append(steps, removeFile(number, fd))
	}
	return steps
}

func removeFile(number uint, fd int) Step {
	return Step{Command: "remove-fd", Args: properties{{"fdset-id", number}, {"fd", fd}}}
}

// fdsWithMark finds the descriptors of a set that have one of the marks.
func fdsWithMark(held []FDSet, number uint, marks ...string) []int {
	var fds []int
	for _, set := range held {
		for _, f := range set.Files {
			if set.ID == number && slices.Contains(marks, f.Mark) {
				fds = append(fds, f.FD)
			}
		}
	}
	return fds
}
