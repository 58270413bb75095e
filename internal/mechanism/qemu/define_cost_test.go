package qemu

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// crowd is a definition with many devices of one kind.
type crowd struct {
	name, machine string
	device        func(i int) string
	wrong         string // an invalid device, at the end
}

const crowdSize = 1000

func crowds() []crowd {
	disk := func(prefix, bus string) func(int) string {
		return func(i int) string {
			return fmt.Sprintf(`<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='/images/%d'/><target dev='%s%s' bus='%s'/></disk>`,
				i, prefix, letters(i), bus)
		}
	}
	nic := func(model string) func(int) string {
		return func(i int) string {
			return fmt.Sprintf(`<interface type='user'><mac address='52:54:00:00:%02x:%02x'/><model type='%s'/></interface>`, i>>8, i&0xff, model)
		}
	}
	controller := func(attributes string) func(int) string {
		return func(i int) string { return fmt.Sprintf(`<controller type=%s/>`, fmt.Sprintf(attributes, i+1)) }
	}
	channel := func(i int) string {
		return fmt.Sprintf(`<channel type='unix'><target type='virtio' name='port%d'/></channel>`, i)
	}
	tablet := func(int) string { return `<input type='tablet' bus='usb'/>` }
	return []crowd{
		{"nothing", "q35", func(int) string { return "" }, ""},
		{"NICs on pc", "pc", nic("virtio"), ""},
		{"NICs on pc, one wrong", "pc", nic("virtio"), `<interface type='user'><model type='virtio'/><address type='pci' bus='0' slot='0x1f' function='8'/></interface>`},
		{"NICs on q35", "q35", nic("virtio"), ""},
		{"conventional NICs on q35", "q35", nic("e1000"), ""},
		{"SCSI disks", "pc", disk("sd", "scsi"), ""},
		{"SCSI disks on q35", "q35", disk("sd", "scsi"), ""},
		{"SCSI disks, two of a name", "pc", disk("sd", "scsi"), fmt.Sprintf(`<disk device='cdrom'><target dev='sd%s' bus='scsi'/></disk>`, letters(crowdSize-1))},
		{"SCSI disks, something not built", "pc", disk("sd", "scsi"), `<filesystem type='mount'><source dir='/a'/><target dir='b'/></filesystem>`},
		{"SCSI disks, something unknown", "pc", disk("sd", "scsi"), `<shiny glow='on'/>`},
		{"virtio disks", "pc", disk("vd", "virtio"), ""},
		{"SATA disks", "q35", disk("sd", "sata"), ""},
		{"USB disks", "q35", disk("sd", "usb"), ""},
		{"channels", "pc", channel, ""},
		{"channels, one not built", "pc", channel, `<channel type='unix'><target type='guestfwd' address='10.0.2.1' port='4600'/></channel>`},
		{"tablets", "q35", tablet, ""},
		{"tablets, one on no bus", "q35", tablet, `<input type='tablet' bus='usb'><address type='usb' bus='7' port='1'/></input>`},
		{"consoles", "pc", func(int) string { return `<console type='pty'><target type='virtio'/></console>` }, ""},
		{"RNGs", "pc", func(int) string { return `<rng model='virtio'><backend model='random'>/dev/urandom</backend></rng>` }, ""},
		{"root ports", "q35", controller(`'pci' index='%d' model='pcie-root-port'`), ""},
		{"bridges", "pc", controller(`'pci' index='%d' model='pci-bridge'`), ""},
		{"SCSI controllers without index", "pc", func(int) string { return `<controller type='scsi' model='virtio-scsi'/>` }, ""},
		{"SCSI controllers, last first", "pc", func(i int) string {
			return fmt.Sprintf(`<controller type='scsi' index='%d' model='virtio-scsi'/>`, crowdSize-i)
		}, ""},
		{"USB controllers", "pc", func(int) string { return `<controller type='usb' model='ich9-ehci1'/>` }, ""},
		{"USB companions", "pc", controller(`'usb' index='%d' model='ich9-uhci1'`), ""},
		{"virtio-serial controllers", "pc", controller(`'virtio-serial' index='%d'`), ""},
		{"hubs", "q35", func(int) string { return `<hub type='usb'/>` }, ""},
		{"memory modules", "q35", func(int) string {
			return `<memory model='dimm'><target><size unit='MiB'>2</size><node>0</node></target></memory>`
		}, ""},
		{"serial ports", "pc", func(int) string { return `<serial type='pty'><target type='pci-serial'/></serial>` }, ""},
		{"unknown elements", "q35", func(int) string { return `<shiny glow='on'/>` }, ""},
		{"what is not built", "q35", func(int) string { return `<filesystem type='mount'><source dir='/a'/><target dir='b'/></filesystem>` }, ""},
	}
}

func (c crowd) document(n int) string {
	var all strings.Builder
	for i := range n {
		all.WriteString(c.device(i))
	}
	all.WriteString(c.wrong)
	return fmt.Sprintf(shell, "qemu", "", c.machine, all.String())
}

// letters returns the suffix of a disk's name: a, b, ... z, aa.
func letters(i int) string {
	if i < 26 {
		return string(rune('a' + i))
	}
	return letters(i/26-1) + letters(i%26)
}

// processorTime is the processor time of this process so far, the garbage collector included.
func processorTime(t testing.TB) time.Duration {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkDefine measures a definition with 1,000 devices, from its document to the stored definition.
func BenchmarkDefine(b *testing.B) {
	capabilities := testCapabilities(b)
	for _, c := range crowds() {
		doc := c.document(crowdSize)
		b.Run(c.name, func(b *testing.B) {
			var err error
			before := processorTime(b)
			for b.Loop() {
				err = define(doc, capabilities)
			}
			spent := processorTime(b) - before
			b.ReportMetric(float64(spent.Microseconds())/1000/float64(b.N), "cpu-ms/op")
			if err != nil {
				b.Logf("%.200v", err)
			}
		})
	}
}

// Four times as many devices of any kind cost about four times as much, whether the definition is accepted or
// refused. A quadratic cost would be sixteen times.
// Promise: G11
func TestDefine_CostGrowsWithDevices(t *testing.T) {
	capabilities := testCapabilities(t)
	const few, many, tooMuch = 500, 2000, 9
	for _, c := range crowds() {
		if c.name == "nothing" {
			continue
		}
		least := map[int]time.Duration{few: time.Hour, many: time.Hour}
		ratio := func() float64 {
			for _, n := range []int{few, many} {
				doc := c.document(n)
				before := processorTime(t)
				_ = define(doc, capabilities) // many are refused
				least[n] = min(least[n], processorTime(t)-before)
			}
			return float64(least[many]) / float64(least[few])
		}
		tries := 0
		for ratio() > tooMuch {
			if tries++; tries == 10 { // the host is busy with something else, now and then
				t.Errorf("%s: %d cost %v, and %d cost %v", c.name, few, least[few], many, least[many])
				break
			}
		}
	}
}
