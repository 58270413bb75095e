package testguest

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// The disk's layout: GRUB's first sector with the partition table, the rest of
// GRUB behind it, and one partition from 1 MiB on.
const (
	sector         = 512
	partitionStart = 2048 // sectors
	diskSize       = 64 << 20
	grubDir        = "/usr/lib/grub/i386-pc"
)

// Arguments are what the guest's kernel is started with: a serial console, and
// no clock calibration, which goes wrong when many emulated guests start at
// once.
const Arguments = "console=ttyS0 quiet mitigations=off panic=1 tsc=reliable no_timer_check"

// DiskPackages are the Debian packages that Disk needs.
var DiskPackages = []string{"grub-common", "grub-pc-bin", "e2fsprogs"}

// Disk makes, beside the image, a raw disk that boots it from a BIOS, for
// guests that are installed rather than given a kernel; or finds it there.
func (i Image) Disk(ctx context.Context) (string, error) {
	path := filepath.Join(filepath.Dir(i.Kernel), "disk.raw")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	work, err := os.MkdirTemp(filepath.Dir(path), ".disk-*")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(work) }()
	if err := i.makeDisk(ctx, work, filepath.Join(work, "disk")); err != nil {
		return "", fmt.Errorf("cannot make the guest's disk: %w; it needs the packages %s", err, strings.Join(DiskPackages, ", "))
	}
	return path, os.Rename(filepath.Join(work, "disk"), path)
}

func (i Image) makeDisk(ctx context.Context, work, disk string) error {
	head, err := loader(ctx, work)
	if err != nil {
		return err
	}
	files := filepath.Join(work, "files")
	if err := os.Mkdir(files, 0o755); err != nil {
		return err
	}
	for name, from := range map[string]string{"vmlinuz": i.Kernel, "initrd": i.Initrd} {
		if err := os.Link(from, filepath.Join(files, name)); err != nil {
			return err
		}
	}
	if err := os.WriteFile(disk, head, 0o644); err != nil {
		return err
	}
	if err := os.Truncate(disk, diskSize); err != nil {
		return err
	}
	_, err = output(ctx, work, "/sbin/mke2fs", "-q", "-F", "-t", "ext2", "-m", "0", "-U", "4c6f6467-6520-6775-6573-740000000000",
		"-E", fmt.Sprintf("offset=%d,root_owner=0:0", partitionStart*sector), "-d", files, disk,
		fmt.Sprintf("%dk", (diskSize-partitionStart*sector)>>10))
	return err
}

// loader gives the first sectors of the disk: GRUB, told to start the kernel
// at once.
func loader(ctx context.Context, work string) ([]byte, error) {
	start := filepath.Join(work, "grub.cfg")
	text := "linux (hd0,msdos1)/vmlinuz " + Arguments + "\ninitrd (hd0,msdos1)/initrd\nboot\n"
	if err := os.WriteFile(start, []byte(text), 0o644); err != nil {
		return nil, err
	}
	core := filepath.Join(work, "core.img")
	if _, err := output(ctx, work, "grub-mkimage", "-O", "i386-pc", "-d", grubDir, "-p", "(hd0,msdos1)/", "-c", start, "-o", core,
		"biosdisk", "part_msdos", "ext2", "linux", "boot"); err != nil {
		return nil, err
	}
	first, err := os.ReadFile(grubDir + "/boot.img")
	if err != nil {
		return nil, err
	}
	rest, err := os.ReadFile(core)
	if err != nil {
		return nil, err
	}
	if len(first) != sector || len(rest) > (partitionStart-1)*sector {
		return nil, fmt.Errorf("GRUB does not fit before the partition: %d and %d bytes", len(first), len(rest))
	}
	setPartition(first)
	return append(first, rest...), nil
}

// setPartition writes the table into the first sector: one active Linux
// partition over the whole disk.
func setPartition(sector0 []byte) {
	entry := sector0[446:462]
	clear(sector0[446:510])
	entry[0] = 0x80 // active
	entry[4] = 0x83 // Linux
	copy(entry[1:4], "\xfe\xff\xff")
	copy(entry[5:8], "\xfe\xff\xff") // cylinders and heads are out of range: see the sectors
	binary.LittleEndian.PutUint32(entry[8:], partitionStart)
	binary.LittleEndian.PutUint32(entry[12:], diskSize/sector-partitionStart)
	sector0[510], sector0[511] = 0x55, 0xAA
}
