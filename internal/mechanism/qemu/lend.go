package qemu

import (
	"os"
	"slices"

	"github.com/lodge-kvm/lodge/internal/word/device"
)

// An image below the top one is open to read only. A job that writes to it has QEMU open it again, from the
// set of descriptors that has the image's number: QEMU takes one there that is open in the way it needs. So
// QEMU is lent one to write with, and one to read with for when the job has ended: those with which it
// started may have been taken from it.

// FileSet is a set of files that QEMU holds, as it tells on query-fdsets.
type FileSet struct {
	ID    uint         `json:"fdset-id"`
	Files []HandedFile `json:"fds"`
}

// HandedFile is one descriptor of a set.
type HandedFile struct {
	FD   int    `json:"fd"` // its number in QEMU
	Mark string `json:"opaque"`
}

// Marks of the descriptors that are lent, which tell them from others of the set.
const (
	grantedWrite = "lent to write"
	grantedRead  = "lent to read"
)

// HasWrite reports whether QEMU has been lent the image of a number to write.
func HasWrite(held []FileSet, number uint) bool { return len(marked(held, number, grantedWrite)) > 0 }

// GrantWrite gives the steps that lend QEMU the image of a number, open to write and once more to read. What it
// has been lent already is not in them. The one with which it started is taken from it: that has locks
// which nobody would give back.
func GrantWrite(held []FileSet, number uint, write, read *os.File) []Step {
	var steps []Step
	for _, one := range []struct {
		file *os.File
		mark string
	}{{write, grantedWrite}, {read, grantedRead}} {
		if len(marked(held, number, one.mark)) == 0 {
			steps = append(steps, Step{Command: "add-fd", Args: properties{{"fdset-id", number}, {"opaque", one.mark}}, File: one.file})
		}
	}
	for _, set := range held {
		for _, f := range set.Files {
			if set.ID == number && f.Mark != grantedWrite && f.Mark != grantedRead {
				steps = append(steps, removeFile(number, f.FD))
			}
		}
	}
	return steps
}

// ReopenReadOnly gives the step that has QEMU open an image below the top one to read only, as it was before. A job
// that has ended without its effect leaves it open to write.
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

// RevokeWrite gives the steps that take from QEMU what it was lent of the image of a number; none: it has
// nothing of that any more.
func RevokeWrite(held []FileSet, number uint) []Step {
	var steps []Step
	for _, fd := range marked(held, number, grantedWrite, grantedRead) {
		steps = append(steps, removeFile(number, fd))
	}
	return steps
}

func removeFile(number uint, fd int) Step {
	return Step{Command: "remove-fd", Args: properties{{"fdset-id", number}, {"fd", fd}}}
}

// marked finds the descriptors of a set that have one of the marks.
func marked(held []FileSet, number uint, marks ...string) []int {
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
