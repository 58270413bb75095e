// Package testguest makes the small Linux guest that tests, the lab and `make up` boot. It consists of Debian's
// cloud kernel and an initramfs with busybox, virtio drivers and Lodge's own agent as the only resident process.
// The guest answers two seconds after QEMU starts, without KVM.
//
// The image is made from Debian packages without root's rights and without unpacking them. Equal packages and an
// equal agent give equal bytes. This package only makes images; testguest/line and testguest/agent hold the
// protocol between guest and host.
package testguest

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// recipe changes whenever the same packages would make a different image.
const recipe = "1"

//go:embed udhcpc.script
var dhcpScript []byte

// Image is a guest that can be booted.
type Image struct {
	Kernel string // a bzImage
	Initrd string // the first file system
}

// In is the image that lies in a directory.
func In(dir string) Image {
	return Image{Kernel: filepath.Join(dir, "vmlinuz"), Initrd: filepath.Join(dir, "initrd")}
}

// Build makes the image in cache, or finds it there. The agent is a static program for Linux on x86-64. say is
// called before each download.
func Build(ctx context.Context, cache, agent string, say func(string)) (Image, error) {
	cache, err := filepath.Abs(cache) // tools run elsewhere
	if err != nil {
		return Image{}, err
	}
	init, err := os.ReadFile(agent)
	if err != nil {
		return Image{}, fmt.Errorf("cannot make the guest image: %w", err)
	}
	kernel, busybox, err := packages(ctx, filepath.Join(cache, "packages"), say)
	if err != nil {
		return Image{}, err
	}
	dir := filepath.Join(cache, key(init, kernel, busybox))
	image := In(dir)
	if _, err := os.Stat(image.Initrd); err == nil {
		return image, nil
	}
	say("making the guest image in " + dir)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return Image{}, err
	}
	return image, image.make(ctx, init, kernel, busybox)
}

// key derives an image's name from all its inputs.
func key(init []byte, debs ...string) string {
	sum := sha256.New()
	fmt.Fprintf(sum, "%s %s %x", recipe, strings.Join(drivers, ","), sha256.Sum256(dhcpScript))
	for _, deb := range debs {
		fmt.Fprintf(sum, " %s", filepath.Base(deb))
	}
	fmt.Fprintf(sum, " %x", sha256.Sum256(init))
	return hex.EncodeToString(sum.Sum(nil))[:16]
}

func (i Image) make(ctx context.Context, init []byte, kernelDeb, busyboxDeb string) error {
	shell, err := take(ctx, busyboxDeb, func(p string) bool { return strings.HasSuffix(p, "bin/busybox") })
	if err != nil {
		return err
	}
	files, err := take(ctx, kernelDeb, func(p string) bool { return strings.HasPrefix(p, "boot/vmlinuz-") || isModule(p) })
	if err != nil {
		return err
	}
	modules, err := Arrange(ctx, files, drivers)
	if err != nil {
		return err
	}
	var busybox, kernel []byte
	for _, content := range shell {
		busybox = content
	}
	for path, content := range files {
		if strings.HasPrefix(path, "boot/") {
			kernel = content
		}
	}
	if kernel == nil || busybox == nil {
		return fmt.Errorf("cannot make the guest image: no kernel in %s or no busybox in %s", kernelDeb, busyboxDeb)
	}
	var initrd bytes.Buffer
	if err := fill(NewArchive(&initrd), init, busybox, modules); err != nil {
		return fmt.Errorf("cannot make the guest image: %w", err)
	}
	if err := writeWhole(i.Kernel, kernel); err != nil {
		return err
	}
	return writeWhole(i.Initrd, initrd.Bytes()) // last: its presence says that all is there
}

// applets are the commands that get a name of their own; the others are
// reached as "busybox NAME".
var applets = strings.Fields(`
	sh ash cat cp mv rm ls ln mkdir rmdir mknod chmod chown touch echo printf test true false env sleep date dd df du sync
	grep sed awk cut head tail sort uniq wc tr tee xargs find od hexdump strings md5sum sha256sum base64 seq stat
	ps kill killall top free uptime uname hostname id who dmesg mount umount mountpoint losetup mke2fs blockdev fdisk
	ip ifconfig route arp arping ping ping6 nc wget telnet nslookup traceroute udhcpc httpd netstat brctl
	insmod rmmod lsmod modprobe poweroff reboot halt stty tty setsid timeout time watch vi less more tar gzip gunzip
	fsfreeze fstrim hwclock taskset nproc lsscsi swapon swapoff mkswap sysctl`)

// fill writes the initramfs.
func fill(a *Archive, init, busybox []byte, modules []Module) error {
	for _, dir := range []string{"bin", "dev", "etc", "lib", "lib/modules", "mnt", "proc", "run", "sbin", "sys", "tmp", "usr", "usr/bin", "usr/sbin", "var"} {
		a.Dir(dir)
	}
	a.Char("dev/console", 0o600, 5, 1) // the kernel opens it before anything is mounted
	a.Char("dev/null", 0o666, 1, 3)
	a.File("init", 0o755, init)
	a.File("bin/busybox", 0o755, busybox)
	for _, name := range applets {
		a.Link("bin/"+name, "busybox")
	}
	a.File("etc/passwd", 0o644, []byte("root::0:0:root:/:/bin/sh\n"))
	a.File("etc/group", 0o644, []byte("root:x:0:\n"))
	a.File("etc/udhcpc.script", 0o755, dhcpScript)
	var order strings.Builder
	for _, m := range modules {
		path := "lib/modules/" + m.Name + ".ko"
		a.File(path, 0o644, m.Content)
		order.WriteString("/" + path + "\n")
	}
	a.File("etc/modules", 0o644, []byte(order.String()))
	return a.Close()
}

// writeWhole writes the whole file, or none after an error.
func writeWhole(path string, content []byte) error {
	part, err := os.CreateTemp(filepath.Dir(path), ".part-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(part.Name()) }() // gone when all went well
	if _, err := part.Write(content); err != nil {
		return err
	}
	if err := part.Chmod(0o644); err != nil {
		return err
	}
	if err := part.Close(); err != nil {
		return err
	}
	return os.Rename(part.Name(), path)
}
