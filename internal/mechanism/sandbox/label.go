package sandbox

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Label is the mandatory access control label of a program and of the files in its sandbox. With the zero
// value the kernel chooses the labels.
type Label struct {
	// Program is written to Exec, an attribute file of the calling thread below /proc. It becomes the
	// label of the program at exec.
	Program, Exec string
	// Files is the SELinux context of the files that are made in the sandbox's root; "": none is set.
	Files string
}

// setExecLabel tells the kernel the label of the program that the thread will start. It must be the first
// step: the sandbox has no host /proc, and the kernel accepts the write only while the thread has the
// credentials with which it opened the file.
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
		return fmt.Errorf("cannot set the label %s: %w", l.Program, err)
	}
	return nil
}

// labelTree sets the SELinux context of all files in the file system at root, but not in other file
// systems mounted below it. Only the daemon writes to that file system.
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
			return fmt.Errorf("cannot set the label of %s: %w", path, err)
		}
		return nil
	})
}
