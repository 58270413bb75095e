package kernel

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

const inotifyInstances = "fs.inotify.max_user_instances"

// RoomForInotify returns an error if this user can have no further inotify instance, which every dnsmasq
// needs. The kernel does not report the number in use, so this makes one instance and closes it.
func (r Root) RoomForInotify() error {
	return r.roomForInotify(func() error {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
		if err == nil {
			err = unix.Close(fd)
		}
		return err
	})
}

func (r Root) roomForInotify(try func() error) error {
	err := try()
	if !errors.Is(err, unix.EMFILE) {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot check for a free inotify instance")
	}
	limit, unread := r.sysctl(sysctlFile(inotifyInstances))
	if unread != nil { // it is the daemon that can open no more files
		return fault.Wrap(err, fault.NoCapacity, fault.Host, "cannot check for a free inotify instance")
	}
	return fault.New(fault.NoCapacity, fault.Host, "all inotify instances are in use (%s is %d); raise the limit with: sysctl -w %s=%d",
		inotifyInstances, limit, inotifyInstances, max(2*limit, 1024))
}
