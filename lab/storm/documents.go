package storm

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// shape is what the guests of a step have.
type shape struct {
	disks, memory int // memory in MiB
}

// Memory of guests, in MiB. They never run a program.
const (
	guestMemory = 100
	tinyMemory  = 32 // where there are very many
)

func (s Step) shape() shape {
	if s.Scenario == Thousand {
		return shape{s.Disks, tinyMemory}
	}
	return shape{s.Disks, guestMemory}
}

// diskSize is that of an empty image file, in bytes. Files are sparse.
const diskSize = 16 << 20

// controllerUnits is how many disks lie on one virtio-scsi controller.
const controllerUnits = 64

// definition is a guest's, emulated without KVM, because how fast guests run is
// not measured, and every host has it. Its metadata asks Lodge to add no device of its own
// accord: every daemon starts the same machine.
func (s shape) definition(dir, name string) string {
	var devices strings.Builder
	for i := range s.disks {
		if i%controllerUnits == 0 {
			fmt.Fprintf(&devices, "    <controller type='scsi' index='%d' model='virtio-scsi'/>\n", i/controllerUnits)
		}
		fmt.Fprintf(&devices, `    <disk type='file' device='disk'>
      <driver name='qemu' type='raw' cache='none' io='threads'/>
      <source file='%s'/>
      <target dev='%s' bus='scsi'/>
      <serial>%s-%02d</serial>
    </disk>
`, diskPath(dir, name, i), diskName(i), name, i)
	}
	return fmt.Sprintf(`<domain type='qemu'>
  <name>%s</name>
  <metadata><lodge:guest xmlns:lodge='https://lodge-kvm.github.io/xmlns/guest/1.0' rng='no'/></metadata>
  <memory unit='MiB'>%d</memory>
  <vcpu>1</vcpu>
  <os>
    <type arch='x86_64' machine='q35'>hvm</type>
  </os>
  <features>
    <acpi/>
  </features>
  <devices>
%s  </devices>
</domain>
`, name, s.memory, devices.String())
}

func diskPath(dir, name string, i int) string {
	return filepath.Join(dir, fmt.Sprintf("%s-%02d.raw", name, i))
}

// diskName counts sda to sdz, and then sdaa.
func diskName(i int) string {
	const letters = 'z' - 'a' + 1
	name := ""
	for i++; i > 0; i = (i - 1) / letters {
		name = string(rune('a'+(i-1)%letters)) + name
	}
	return "sd" + name
}

// makeDisks makes the files of a guest's disks; those that are there already stay.
func (s shape) makeDisks(dir, name string) error {
	for i := range s.disks {
		f, err := os.OpenFile(diskPath(dir, name, i), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err == nil {
			err = errors.Join(f.Truncate(diskSize), f.Close())
		}
		if err != nil {
			return fault.Wrap(err, fault.Failed, fault.Host, "cannot make a disk for guest %s", name)
		}
	}
	return nil
}
