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

// checkOwnerMayRead refuses a layer that a user's image names but that this user may not read: like a
// symbolic link of that user it would make the daemon read for them. On an untrusted file system it
// refuses layers elsewhere, because such a file system can claim that root owns the image.
func (l *Layer) checkOwnerMayRead(ctx context.Context, below *Layer) error {
	if l.untrustedFS && l.id[0] != below.id[0] {
		return fault.New(fault.Denied, fault.Volume, "%s lies on a FUSE or user-mounted file system and names the backing file %s on another one; keep both on one file system",
			l.Path, below.Path)
	}
	if safepath.TrustedOwner(l.owner.UID) || below.owner.UID == l.owner.UID {
		return nil
	}
	err := fsguard.Run(ctx, below.Path, func() error {
		return l.reader().Impersonate(groupsOf(l.owner.UID), func() error {
			// Open the path as that user, and check only that it leads to the same file.
			fd, err := unix.Open(below.Path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd) //nolint:errcheck // opened only for this check
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
	return fault.Wrap(err, fault.Denied, fault.Volume, "%s belongs to user %d and names the backing file %s, which that user may not read; permit it, or make root the owner of the image",
		l.Path, l.owner.UID, below.Path)
}

// reader is the owner of the image, with a group that this user is in: a file gets its folder's group if
// the folder says so, for any user. For users that the host does not know, nothing else tells their
// groups.
func (l *Layer) reader() sandbox.User {
	if who, err := user.LookupId(strconv.FormatUint(uint64(l.owner.UID), 10)); err == nil {
		if gid, err := strconv.ParseUint(who.Gid, 10, 32); err == nil {
			return sandbox.User{UID: l.owner.UID, GID: uint32(gid)}
		}
	}
	return l.owner
}

// groupsOf returns the groups of a user that the host knows.
func groupsOf(uid uint32) (all []uint32) {
	who, err := user.LookupId(strconv.FormatUint(uint64(uid), 10))
	if err != nil {
		return nil
	}
	found, _ := who.GroupIds() // without groups the user may read less
	for _, text := range found {
		if id, err := strconv.ParseUint(text, 10, 32); err == nil {
			all = append(all, uint32(id))
		}
	}
	return all
}
