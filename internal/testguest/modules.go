package testguest

import (
	"bytes"
	"context"
	"debug/elf"
	"fmt"
	"os/exec"
	"path"
	"strings"
)

// drivers are those that a guest on any of Lodge's machines may need, the most
// important first: the agent's ports and the console come before the rest.
var drivers = []string{
	"virtio_pci", "virtio_console", "virtio_net", "virtio_blk", "evdev", "button",
	"virtio_scsi", "sd_mod", "sr_mod", "ata_piix", "virtio_balloon", "virtio-rng", "virtio_mem", "virtio_mmio",
	"isofs", "virtiofs", "pvpanic-mmio", "pvpanic-pci", "vmw_vsock_virtio_transport", "i6300esb", "e1000", "e1000e",
}

// Module is one driver of a kernel package.
type Module struct {
	Name    string // as the kernel spells it, with underscores
	Content []byte // uncompressed
	needs   []string
}

// isModule tells driver files by their path in a package; moduleName gives
// the name that the kernel knows the driver by.
func isModule(file string) bool {
	return strings.Contains(file, "lib/modules/") && (strings.HasSuffix(file, ".ko") || strings.HasSuffix(file, ".ko.xz"))
}

func moduleName(file string) string {
	base := path.Base(file)
	base, _, _ = strings.Cut(base, ".")
	return strings.ReplaceAll(base, "-", "_")
}

// Arrange picks the wanted drivers and their dependencies out of a kernel's files, dependencies first. It leaves
// out drivers that this kernel lacks or has built in.
func Arrange(ctx context.Context, files map[string][]byte, wanted []string) ([]Module, error) {
	byName := map[string]string{}
	for file := range files {
		if isModule(file) {
			byName[moduleName(file)] = file
		}
	}
	var order []Module
	placed := map[string]bool{}
	var place func(name string) error
	place = func(name string) error {
		name = strings.ReplaceAll(name, "-", "_")
		file, exists := byName[name]
		if placed[name] || !exists {
			return nil
		}
		placed[name] = true
		m, err := readModule(ctx, name, file, files[file])
		if err != nil {
			return err
		}
		for _, need := range m.needs {
			if err := place(need); err != nil {
				return err
			}
		}
		order = append(order, m)
		return nil
	}
	for _, name := range wanted {
		if err := place(name); err != nil {
			return nil, err
		}
	}
	return order, nil
}

func readModule(ctx context.Context, name, file string, content []byte) (Module, error) {
	if strings.HasSuffix(file, ".xz") {
		unpack := exec.CommandContext(ctx, "xz", "-dc")
		unpack.Stdin = bytes.NewReader(content)
		plain, err := unpack.Output()
		if err != nil {
			return Module{}, fmt.Errorf("cannot unpack %s: %w", file, err)
		}
		content = plain
	}
	m := Module{Name: name, Content: content}
	object, err := elf.NewFile(bytes.NewReader(content))
	if err != nil {
		return Module{}, fmt.Errorf("cannot read %s: %w", file, err)
	}
	section := object.Section(".modinfo")
	if section == nil {
		return m, nil
	}
	info, err := section.Data()
	if err != nil {
		return Module{}, fmt.Errorf("cannot read %s: %w", file, err)
	}
	for field := range bytes.SplitSeq(info, []byte{0}) {
		if list, ok := bytes.CutPrefix(field, []byte("depends=")); ok && len(list) > 0 {
			m.needs = strings.Split(string(list), ",")
		}
	}
	return m, nil
}
