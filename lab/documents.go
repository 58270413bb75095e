package lab

import (
	"fmt"
	"strings"
)

// disks is how many a definition has when its size is what is measured.
const disks = 16

// smallGuest is the definition of a guest with next to nothing in it, so that
// what is added to QEMU's own start shows. It never runs a program.
func smallGuest(name string) string { return definition(name, "") }

// diskGuest is the definition of a guest with many disks, whose files need not
// exist as long as it is not started.
func diskGuest(name string) string {
	var devices strings.Builder
	devices.WriteString("    <controller type='scsi' index='0' model='virtio-scsi'/>\n")
	for i := range disks {
		fmt.Fprintf(&devices, `    <disk type='file' device='disk'>
      <driver name='qemu' type='qcow2' cache='none' io='threads' discard='unmap'/>
      <source file='/var/tmp/%[1]s-%[2]d.qcow2'/>
      <target dev='sd%[3]c' bus='scsi'/>
      <serial>%[1]s-%[2]d</serial>
    </disk>
`, name, i, 'a'+i)
	}
	return definition(name, devices.String())
}

// definition is emulated without KVM, because how fast guests run is not
// measured, and every host has it. Its metadata asks Lodge to add no device of its own
// accord: every daemon starts the same machine.
func definition(name, devices string) string {
	return fmt.Sprintf(`<domain type='qemu'>
  <name>%s</name>
  <metadata><lodge:guest xmlns:lodge='https://lodge-kvm.github.io/xmlns/guest/1.0' rng='no'/></metadata>
  <memory unit='MiB'>100</memory>
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
`, name, devices)
}
