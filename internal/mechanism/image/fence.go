package image

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/safepath"
)

// checkFolders checks that an open layer lies in one of the folders. A link to a block device counts by
// the place of the link, because only root makes links in /dev.
func (l *Layer) checkFolders(folders []string) error {
	if folders == nil {
		return nil
	}
	real, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", l.File.Fd()))
	if err != nil {
		return fault.Wrap(err, fault.Failed, fault.Volume, "cannot tell where %s lies", l.Path)
	}
	if LiesIn(real, folders) || l.Device && InDev(l.Path) && !strings.Contains(l.Path, "/../") && LiesIn(l.Path, folders) {
		return nil
	}
	return fault.New(fault.Denied, fault.Volume, "%s lies outside of the folders that this client may use for images (%s)", real, strings.Join(folders, ", "))
}

// WithFile calls do with a path through which it can reach the target of a client's path. In a folder that
// the client is restricted to, no component may be a link: another user who can write there could swap it
// at any time. Elsewhere links are followed by the rules of package safepath. do must open the path with
// nofollow, and must not use it after it returns.
func WithFile(path string, folders []string, do func(at string, nofollow int) error) error {
	if !strings.HasPrefix(path, "/") {
		return refuseRelative(path)
	}
	if !LiesIn(path, folders) {
		return safepath.OpenParent(path, do)
	}
	return withoutLinks(path, folders, func(at string) error { return do(at, unix.O_NOFOLLOW) })
}

// WithParent is WithFile for the name itself, which may be made, replaced or removed: a link at the end is
// not followed.
func WithParent(path string, folders []string, do func(at string) error) error {
	if !strings.HasPrefix(path, "/") {
		return refuseRelative(path)
	}
	if !LiesIn(path, folders) {
		return safepath.OpenLink(path, do)
	}
	return withoutLinks(path, folders, do)
}

// refuseRelative refuses a relative path, because the folders are absolute.
func refuseRelative(path string) error {
	return fault.New(fault.Invalid, fault.Volume, "%q is a relative path; begin it with /", path)
}

// LiesIn reports whether a path lies below one of the folders.
func LiesIn(path string, folders []string) bool {
	return slices.ContainsFunc(folders, func(folder string) bool { return strings.HasPrefix(path, strings.TrimSuffix(folder, "/")+"/") })
}

func withoutLinks(path string, folders []string, do func(at string) error) error {
	err := safepath.OpenNoSymlinks(path, do)
	if errors.Is(err, unix.ELOOP) {
		return fault.New(fault.Denied, fault.Volume, "%s is a symbolic link or lies behind one; this client is restricted to %s, and links are not followed there", path, strings.Join(folders, ", "))
	}
	return err
}

// InDev reports whether a clean path lies below /dev, where only root makes files.
func InDev(path string) bool {
	return strings.HasPrefix(path, "/dev/") && !strings.HasPrefix(path, "/dev/shm/")
}
