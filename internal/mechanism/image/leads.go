package image

import (
	"context"
	"os/user"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/fsguard"
	"github.com/lodge-kvm/lodge/internal/mechanism/safepath"
	"github.com/lodge-kvm/lodge/internal/mechanism/sandbox"
)

// leads refuses a layer that the header of a user's image names and that this user may not read:
// as a link of his it would lead the daemon where he may not go. So it would where a file system
// of users' says that the image is root's.
func (l *Layer) leads(ctx context.Context, below *Layer) error {
	if l.claims && l.id[0] != below.id[0] {
		return fault.New(fault.Denied, fault.Volume, "the header of %s, which lies on a file system of FUSE, or on one that a user has brought, names %s, which does not; have both on one file system",
			l.Path, below.Path)
	}
	if safepath.Ours(l.of.UID) || below.of.UID == l.of.UID {
		return nil
	}
	err := fsguard.Run(ctx, below.Path, func() error {
		return l.reader().Impersonate(groupsOf(l.of.UID), func() error {
			// Its path as the kernel leads that user, and of what is there no more than that it is the same.
			fd, err := unix.Open(below.Path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd) //nolint:errcheck // it was opened to be looked at
			var st unix.Stat_t
			if err := unix.Fstat(fd, &st); err == nil && [2]uint64{st.Dev, st.Ino} != below.id {
				return unix.EXDEV
			}
			return nil
		})
	})
	if err == nil {
		return nil
	}
	return fault.Wrap(err, fault.Denied, fault.Volume, "the header of %s, which is of user %d, names %s, and that user may not read it; let him, or have root own the image",
		l.Path, l.of.UID, below.Path)
}

// reader is whose image it is, with a group that this user has: a file gets that of its folder
// where the folder says so, whoever makes it. Of users whom the host does not know nothing else tells.
func (l *Layer) reader() sandbox.User {
	if who, err := user.LookupId(strconv.FormatUint(uint64(l.of.UID), 10)); err == nil {
		if gid, err := strconv.ParseUint(who.Gid, 10, 32); err == nil {
			return sandbox.User{UID: l.of.UID, GID: uint32(gid)}
		}
	}
	return l.of
}

// groupsOf are the groups of a user that the host knows.
func groupsOf(uid uint32) (all []uint32) {
	who, err := user.LookupId(strconv.FormatUint(uint64(uid), 10))
	if err != nil {
		return nil
	}
	found, _ := who.GroupIds() // without them he may do less
	for _, text := range found {
		if id, err := strconv.ParseUint(text, 10, 32); err == nil {
			all = append(all, uint32(id))
		}
	}
	return all
}
