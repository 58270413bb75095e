package image

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/lodge-kvm/lodge/internal/testguest"
)

// drivers are what a guest needs before it has its /usr, and for what may be
// plugged in; the others it can load from there with modprobe.
var drivers = []string{
	"crc32c_generic", "virtio_pci", "virtio_console", "virtio_blk", "virtio_net", "ext4", "erofs", "evdev", "button",
	"virtio_balloon", "virtio-rng", "virtio_scsi", "sd_mod", "sr_mod", "ata_piix", "virtio_mem", "virtio_mmio", "e1000", "e1000e",
}

// genericDrivers are those of guests with the generic kernel: also what their /usr,
// which has the other kernel's modules, cannot give them.
var genericDrivers = append([]string{"ahci", "bfq", "kyber-iosched", "mq-deadline"}, drivers...)

// initrd writes the first file system: the agent and its drivers, out of a folder of
// modules.
func initrd(ctx context.Context, path, modules string, drivers []string, agent []byte) error {
	files := map[string][]byte{}
	err := filepath.WalkDir(modules, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		inside, err := filepath.Rel(modules, path)
		if err != nil {
			return err
		}
		files["lib/modules/"+inside], err = os.ReadFile(path)
		return err
	})
	if err != nil {
		return fmt.Errorf("cannot read the kernel's modules: %w", err)
	}
	order, err := testguest.Arrange(ctx, files, drivers)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	a := testguest.NewArchive(&out)
	for _, dir := range []string{"dev", "etc", "lib", "lib/modules", "new", "proc", "run", "sys", "tmp"} {
		a.Dir(dir)
	}
	a.Char("dev/console", 0o600, 5, 1) // the kernel opens it before anything is mounted
	a.Char("dev/null", 0o666, 1, 3)
	a.File("init", 0o755, agent)
	var list strings.Builder
	for _, m := range order {
		path := "lib/modules/" + m.Name + ".ko"
		a.File(path, 0o644, m.Content)
		list.WriteString("/" + path + "\n")
	}
	a.File("etc/modules", 0o644, []byte(list.String()))
	if err := a.Close(); err != nil {
		return err
	}
	return os.WriteFile(path, out.Bytes(), 0o644)
}
