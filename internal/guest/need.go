package guest

import (
	"github.com/lodge-kvm/lodge/internal/host/resources"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// What any QEMU takes: its main thread, RCU and signal threads and the one that
// makes the guest's memory ready; its own files, sockets and event descriptors.
const (
	baseThreads = 6
	baseFiles   = 48
	diskFiles   = 4
	// queueFiles are for each queue of a NIC: tap, vhost and their event
	// descriptors.
	queueFiles = 6
	// daemonFiles are what the daemon has open for a guest: monitor, agent, the
	// watch on the process, and a few while it starts.
	daemonFiles = 8
)

// The areas of QEMU's address space: its own image and libraries; a stack, its
// guard and a heap for each thread; rings and buffers of each device; the regions
// of a device of the host.
const (
	baseMaps   = 1000
	threadMaps = 6
	deviceMaps = 8
	hostMaps   = 64
)

// lockedBeside is what a guest whose memory is locked locks beside it: QEMU's own
// memory, and the regions of devices.
const lockedBeside = 1 << 30

// need is what a guest takes of the host's limits.
func (r *Registry) need(def *domain.Definition) resources.Need {
	n := need(def)
	for _, nic := range def.Devices.NICs {
		switch nic.Type {
		case "bridge":
			n.Bridges = append(n.Bridges, nic.Bridge)
		case "network":
			// A network without a bridge, or none at all, is told when the NIC is plugged.
			if found, err := r.Networks.ByName(nic.Network); err == nil {
				if bridge, err := found.BridgeName(); err == nil {
					n.Bridges = append(n.Bridges, bridge)
				}
			}
		}
	}
	return n
}

// need is what a guest takes by its definition alone, a little rounded up.
func need(def *domain.Definition) resources.Need {
	n := resources.Need{
		Threads: baseThreads + uint64(def.VCPUs.Max) + uint64(def.IOThreads),
		Files:   baseFiles + diskFiles*uint64(len(def.Devices.Disks)),

		DaemonFiles: daemonFiles,
	}
	for _, nic := range def.Devices.NICs {
		n.Files += queueFiles * uint64(max(nic.Queues, 1))
	}
	n.Maps = baseMaps + threadMaps*n.Threads + deviceMaps*uint64(len(def.Devices.Disks)+len(def.Devices.NICs)+int(def.MemorySlots)) +
		hostMaps*uint64(len(def.Devices.HostDevices))
	if def.Backing.Locked || len(def.Devices.HostDevices) > 0 {
		n.Locked = max(def.Memory, def.MaxMemory) + lockedBeside // a process cannot raise it later
	}
	native := map[uint]bool{}
	for _, d := range def.Devices.Disks {
		if d.IO == "native" {
			native[d.IOThread] = true // the main loop counts as thread 0
		}
	}
	n.AIO = uint64(len(native)) * resources.AIOContext
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
