// Package nested boots a whole host in a guest, for tests of features that a test host rarely has: systemd with
// version 2 control groups, several NUMA nodes, AppArmor that enforces, an IOMMU. The guest is emulated, and KVM
// still works in it: QEMU emulates the virtualization of AMD's processors.
//
// A test boots a Host once, saves its state, and rewinds to that state in a second. It runs scripts in it as root,
// each with a time limit.
//
// The tests in this package need such a host; `make nested-host` runs them. Tests that any host can run belong
// elsewhere.
package nested

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/testguest"
)

// suite is the Debian release of the host, independent of the machine's own release.
const suite = "bookworm"

// packages are the host's packages beyond Debian's minimum.
var packages = strings.Fields(`
	linux-image-cloud-amd64 systemd systemd-sysv dbus udev kmod busybox-static
	iproute2 iputils-arping iputils-ping e2fsprogs procps pciutils nftables apparmor dnsmasq-base
	qemu-system-x86 qemu-utils libvirt-clients`)

// drivers are the modules that the kernel needs for its root. ext4 is built in.
var drivers = []string{"virtio_pci", "virtio_blk", "virtio_console"}

// maxRoot is the size of the root file system; the file is sparse.
const maxRoot = "4G"

//go:embed image
var recipe embed.FS

// Image is a bootable Debian. Its files must not be written to.
type Image struct{ Kernel, Initrd, Root string }

// whole is the file that marks a complete image; Build creates it last.
const whole = "whole"

// Build makes the image, or finds it in the cache under a name derived from its inputs. It takes about two
// minutes, downloads 200 MB and needs root. It waits for another Build in the same cache.
func Build(ctx context.Context, cache string) (Image, error) {
	dir := filepath.Join(cache, "debian-"+digest())
	image := Image{Kernel: filepath.Join(dir, "vmlinuz"), Initrd: filepath.Join(dir, "initrd"), Root: filepath.Join(dir, "root.ext4")}
	unlock, err := lock(cache)
	if err != nil {
		return Image{}, fmt.Errorf("cannot make the nested host's image: %w", err)
	}
	defer unlock()
	if _, err := os.Stat(filepath.Join(dir, whole)); err == nil {
		return image, nil
	}
	if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o755)); err != nil {
		return Image{}, fmt.Errorf("cannot make the nested host's image: %w", err)
	}
	tree := filepath.Join(dir, "tree")
	defer func() { _ = os.RemoveAll(tree) }()
	for _, step := range []func() error{
		func() error { return bootstrap(ctx, dir, tree) },
		func() error { return takeKernel(ctx, tree, image) },
		func() error {
			return run(ctx, "mke2fs", "-q", "-F", "-t", "ext4", "-m", "0", "-O", "^has_journal", "-d", tree, image.Root, maxRoot)
		},
		func() error { return os.WriteFile(filepath.Join(dir, whole), nil, 0o644) },
	} {
		if err := step(); err != nil {
			return Image{}, fmt.Errorf("cannot make the nested host's image: %w", err)
		}
	}
	return image, nil
}

// lock waits until no other Build works in the cache.
func lock(cache string) (unlock func(), err error) {
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(filepath.Join(cache, "lock"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil {
		file.Close()
		return nil, err
	}
	return func() { file.Close() }, nil
}

// digest identifies all inputs of an image, apart from the versions of its packages.
func digest() string {
	sum := sha256.New()
	fmt.Fprintln(sum, suite, packages, drivers, maxRoot, mmdebstrap("", ""))
	_ = fs.WalkDir(recipe, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := recipe.ReadFile(path)
		fmt.Fprintf(sum, "%s %x\n", path, sha256.Sum256(content))
		return err
	})
	return hex.EncodeToString(sum.Sum(nil)[:8])
}

func mmdebstrap(hook, tree string) []string {
	argv := []string{"mmdebstrap", "--quiet", "--variant=minbase", "--mode=root", "--format=directory", `--aptopt=APT::Install-Recommends "false"`}
	for _, unwanted := range []string{"doc", "man", "locale", "info"} {
		argv = append(argv, "--dpkgopt=path-exclude=/usr/share/"+unwanted+"/*")
	}
	return append(argv, "--customize-hook="+hook, "--include="+strings.Join(packages, ","), suite, tree)
}

// bootstrap installs the packages and then our own files.
func bootstrap(ctx context.Context, dir, tree string) error {
	if err := os.CopyFS(dir, recipe); err != nil {
		return err
	}
	hook := filepath.Join(dir, "image/customize")
	if err := os.Chmod(hook, 0o755); err != nil { // embedded files have no modes
		return err
	}
	return run(ctx, mmdebstrap(hook, tree)...)
}

// takeKernel moves the kernel out of the tree, and makes the initramfs.
func takeKernel(ctx context.Context, tree string, image Image) error {
	kernels, err := filepath.Glob(filepath.Join(tree, "boot/vmlinuz-*"))
	if err != nil || len(kernels) != 1 {
		return fmt.Errorf("there are %d kernels in the tree and not one", len(kernels))
	}
	if err := os.Rename(kernels[0], image.Kernel); err != nil {
		return err
	}
	modules, err := readModules(filepath.Join(tree, "usr/lib/modules"))
	if err != nil {
		return err
	}
	order, err := testguest.Arrange(ctx, modules, drivers)
	if err != nil {
		return err
	}
	busybox, err := os.ReadFile(filepath.Join(tree, "bin/busybox"))
	if err != nil {
		return err
	}
	initProgram, err := recipe.ReadFile("image/init")
	if err != nil {
		return err
	}
	return os.WriteFile(image.Initrd, initrd(busybox, initProgram, order), 0o644)
}

// initrd returns the initramfs as an archive.
func initrd(busybox, initProgram []byte, modules []testguest.Module) []byte {
	var out bytes.Buffer
	a := testguest.NewArchive(&out)
	for _, dir := range []string{"bin", "dev", "etc", "modules", "new", "proc", "sys"} {
		a.Dir(dir)
	}
	a.Char("dev/console", 0o600, 5, 1)
	a.File("init", 0o755, initProgram)
	a.File("bin/busybox", 0o755, busybox)
	var list strings.Builder
	for _, m := range modules {
		a.File("modules/"+m.Name+".ko", 0o644, m.Content)
		list.WriteString("/modules/" + m.Name + ".ko\n")
	}
	a.File("etc/modules", 0o644, []byte(list.String()))
	_ = a.Close() // a buffer takes all
	return out.Bytes()
}

func readModules(dir string) (map[string][]byte, error) {
	files := map[string][]byte{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".ko") {
			return err
		}
		files[path], err = os.ReadFile(path)
		return err
	})
	return files, err
}

// run runs a tool. After a cancellation the tool gets time to clean up, because mmdebstrap has mounts.
func run(ctx context.Context, argv ...string) error {
	command := exec.CommandContext(ctx, argv[0], argv[1:]...)
	command.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C.UTF-8",
		"INITRD=No") // read by the kernel package's scripts
	command.Cancel = func() error { return command.Process.Signal(unix.SIGTERM) }
	command.WaitDelay = 30 * time.Second
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot run %s: %w: %s", argv[0], err, out[max(0, len(out)-2000):])
	}
	return nil
}
