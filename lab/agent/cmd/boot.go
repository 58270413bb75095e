package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/testguest/early"
)

// appears bounds the wait for a device that the host promised.
const appears = 20 * time.Second

// boot brings the guest from the first file system to its own: the private root
// with the shared /usr in it.
func boot() error {
	if err := early.Mount(""); err != nil {
		return err
	}
	args := early.Arguments()
	for _, err := range early.LoadModules("/etc/modules") {
		say("%v", err)
	}
	if err := mountDisks("/new"); err != nil {
		return err
	}
	if err := early.Mount("/new"); err != nil {
		return err
	}
	if err := changeRoot("/new"); err != nil {
		return err
	}
	if err := mountScratch(); err != nil {
		return err
	}
	if err := name(args["lab.name"]); err != nil {
		return err
	}
	if err := early.LoopbackUp(); err != nil {
		return err
	}
	for one := range strings.SplitSeq(args["lab.net"], ",") {
		if one == "" {
			continue
		}
		if err := address(one); err != nil {
			return err
		}
	}
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_CAD_OFF) // Ctrl-Alt-Del becomes SIGINT
	return nil
}

// mountDisks finds the root and /usr by the serial numbers of their disks,
// whatever bus they are on and in whatever order.
func mountDisks(at string) error {
	for _, d := range []struct {
		serial, at, kind string
		flags            uintptr
	}{
		{"root", at, "ext4", unix.MS_NOATIME},
		{"usr", at + "/usr", "erofs", unix.MS_RDONLY},
	} {
		device, err := disk(d.serial)
		if err != nil {
			return err
		}
		if err := os.MkdirAll(d.at, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(device, d.at, d.kind, d.flags, ""); err != nil {
			return fmt.Errorf("cannot mount %s on %s: %w", device, d.at, err)
		}
	}
	return nil
}

func disk(serial string) (string, error) {
	for deadline := time.Now().Add(appears); time.Now().Before(deadline); <-time.After(10 * time.Millisecond) {
		// virtio-blk tells it here, SCSI and IDE in the page of the unit's own.
		found, _ := filepath.Glob("/sys/block/*/serial")
		for _, path := range found {
			if early.Trimmed(path) == serial {
				return "/dev/" + filepath.Base(filepath.Dir(path)), nil
			}
		}
	}
	return "", fmt.Errorf("there is no virtio disk with serial number %q", serial)
}

// changeRoot leaves the first file system for good. This program goes on: its
// file stays there.
func changeRoot(to string) error {
	if err := unix.Chdir(to); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("cannot move the root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("cannot change the root: %w", err)
	}
	return unix.Chdir("/")
}

func mountScratch() error {
	if err := os.MkdirAll("/dev/shm", 0o755); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", "/dev/shm", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777"); err != nil {
		return fmt.Errorf("cannot mount /dev/shm: %w", err)
	}
	return os.MkdirAll("/run/lock", 0o755)
}

func name(host string) error {
	if host == "" {
		host = "lab"
	}
	if err := unix.Sethostname([]byte(host)); err != nil {
		return fmt.Errorf("cannot set the host name: %w", err)
	}
	return os.WriteFile("/etc/hosts", []byte("127.0.0.1 localhost "+host+"\n"), 0o644)
}

// address gives the interface with a hardware address its own: "MAC@ADDRESS/BITS".
func address(text string) error {
	mac, cidr, _ := strings.Cut(text, "@")
	addr, err := netlink.ParseAddr(cidr)
	if err != nil {
		return fmt.Errorf("lab.net: %w", err)
	}
	link, err := nic(mac)
	if err != nil {
		return err
	}
	if err := netlink.AddrAdd(link, addr); err != nil {
		return fmt.Errorf("cannot give %s the address %s: %w", link.Attrs().Name, cidr, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("cannot bring up %s: %w", link.Attrs().Name, err)
	}
	return nil
}

func nic(mac string) (netlink.Link, error) {
	want, err := net.ParseMAC(mac)
	if err != nil {
		return nil, fmt.Errorf("lab.net: %w", err)
	}
	for deadline := time.Now().Add(appears); time.Now().Before(deadline); <-time.After(10 * time.Millisecond) {
		links, err := netlink.LinkList()
		if err != nil {
			return nil, fmt.Errorf("cannot list interfaces: %w", err)
		}
		for _, l := range links {
			if l.Attrs().HardwareAddr.String() == want.String() {
				return l, nil
			}
		}
	}
	return nil, fmt.Errorf("there is no interface with the hardware address %s", mac)
}
