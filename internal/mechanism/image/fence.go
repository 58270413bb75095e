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

// within checks that a layer that was opened lies where it may. A link to a block
// device counts as where the link is, because only root makes links in /dev.
func (l *Layer) within(folders []string) error {
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
	return fault.New(fault.Denied, fault.Volume, "%s lies in none of the places that images may come from here (%s)", real, strings.Join(folders, ", "))
}

// At calls do with a path by which it may reach what a client's path leads to. Where that lies in
// one of the folders that the client is held to, nothing on the way may be a link, which somebody
// who may write there could put in another's place at any time. Elsewhere links lead as room safepath
// has it. do must open it with nofollow, and be done with at when it returns.
func At(path string, folders []string, do func(at string, nofollow int) error) error {
	if !strings.HasPrefix(path, "/") {
		return relative(path)
	}
	if !LiesIn(path, folders) {
		return safepath.At(path, do)
	}
	return withoutLinks(path, folders, func(at string) error { return do(at, unix.O_NOFOLLOW) })
}

// Beside is At of the name itself, which may be made, replaced or removed: a link is not followed.
func Beside(path string, folders []string, do func(at string) error) error {
	if !strings.HasPrefix(path, "/") {
		return relative(path)
	}
	if !LiesIn(path, folders) {
		return safepath.Beside(path, do)
	}
	return withoutLinks(path, folders, do)
}

// relative refuses a path that would lead past the folders: they hold absolute ones.
func relative(path string) error {
	return fault.New(fault.Invalid, fault.Volume, "%q is a relative path; begin it with /", path)
}

// LiesIn says whether a path lies below one of the folders.
func LiesIn(path string, folders []string) bool {
	return slices.ContainsFunc(folders, func(folder string) bool { return strings.HasPrefix(path, strings.TrimSuffix(folder, "/")+"/") })
}

func withoutLinks(path string, folders []string, do func(at string) error) error {
	err := safepath.Straight(path, do)
	if errors.Is(err, unix.ELOOP) {
		return fault.New(fault.Denied, fault.Volume, "%s is a link, or lies behind one, and who named it is held to %s: no link is followed there", path, strings.Join(folders, ", "))
	}
	return err
}

// InDev says whether a clean path lies among the host's devices, which are root's to make.
func InDev(path string) bool {
	return strings.HasPrefix(path, "/dev/") && !strings.HasPrefix(path, "/dev/shm/")
}
