package sandbox

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Label is what a program and what lies in its chamber are called in mandatory access
// control. The zero value leaves that to the kernel.
type Label struct {
	// Program is written to Exec, a file of the thread's own in /proc, and is the label
	// of what the thread starts from its exec on.
	Program, Exec string
	// Files is the SELinux context of what is made in the chamber's root; empty: none.
	Files string
}

// setExecLabel has the kernel give what the thread starts its label. It comes before
// everything else: the thread does not see the host's /proc from within, and may write
// there only as long as its privileges are those that it was opened with.
func (l Label) setExecLabel() error {
	if l.Program == "" {
		return nil
	}
	f, err := os.OpenFile(l.Exec, os.O_WRONLY|unix.O_TRUNC, 0)
	if err == nil {
		_, err = f.WriteString(l.Program)
		if e := f.Close(); err == nil {
			err = e
		}
	}
	if err != nil {
		return fmt.Errorf("cannot label it %s: %w", l.Program, err)
	}
	return nil
}

// labelTree gives what lies in the file system at root, and not what is mounted in it, an
// SELinux context. Only the daemon writes there.
func labelTree(root, context string) error {
	if context == "" {
		return nil
	}
	var at unix.Stat_t
	if err := unix.Lstat(root, &at); err != nil {
		return err
	}
	device := at.Dev
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if err := unix.Lstat(path, &at); err != nil {
			return err
		}
		if at.Dev != device {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if err := unix.Lsetxattr(path, "security.selinux", append([]byte(context), 0), 0); err != nil {
			return fmt.Errorf("cannot label %s in it: %w", path, err)
		}
		return nil
	})
}
