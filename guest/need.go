package guest

import (
	"github.com/lodge-kvm/lodge/device"
	"github.com/lodge-kvm/lodge/domain"
	"github.com/lodge-kvm/lodge/host"
)

// What any QEMU takes: its main thread, RCU and signal threads and the one that
// makes the guest's memory ready; its own files, sockets and event descriptors.
const (
	baseThreads = 6
	baseFiles   = 48
	diskFiles   = 4
)

// need is what a guest takes of the host's ceilings, a little rounded up.
func need(def *domain.Definition) host.Need {
	n := host.Need{
		Threads: baseThreads + uint64(def.VCPUs.Max) + uint64(def.IOThreads),
		Files:   baseFiles + diskFiles*uint64(len(def.Devices.Disks)),
	}
	native := map[uint]bool{}
	for _, d := range def.Devices.Disks {
		if d.IO == "native" {
			native[d.IOThread] = true // the main loop counts as thread 0
		}
	}
	n.AIO = uint64(len(native)) * host.AIOContext
	for _, group := range [][]*device.Char{def.Devices.Serials, def.Devices.Parallels, def.Devices.Channels} {
		n.PTYs += ptys(group)
	}
	// A console that shows the first serial port has no pty of its own.
	for _, c := range def.Devices.Consoles {
		if c.TargetType != "serial" {
			n.PTYs += ptys([]*device.Char{c})
		}
	}
	return n
}

func ptys(chars []*device.Char) (n uint64) {
	for _, c := range chars {
		if c.Backend.Type == "pty" {
			n++
		}
	}
	return n
}
