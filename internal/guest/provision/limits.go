package provision

import (
	"github.com/lodge-kvm/lodge/internal/host/resources"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// These count what every QEMU needs. Threads: its main thread, the RCU and signal threads, and the one that
// prepares the guest's memory. Files: its own files, sockets and event descriptors.
const (
	baseThreads = 6
	baseFiles   = 48
	diskFiles   = 4
	// queueFiles are those of each queue of a NIC: tap, vhost and their event descriptors.
	queueFiles = 6
	// daemonFiles are the daemon's own open files for a guest: monitor, agent, the pidfd of the process,
	// and a few during the start.
	daemonFiles = 8
)

// These count memory mappings: QEMU's image and libraries; a stack, its guard and a heap for each thread;
// rings and buffers of each device; the regions of a passed-through device.
const (
	baseMaps   = 1000
	threadMaps = 6
	deviceMaps = 8
	hostMaps   = 64
)

// LockedBeside is how many bytes a guest with locked memory locks in addition: QEMU's own memory, and the
// regions of devices.
const LockedBeside = 1 << 30

// Need returns what a guest takes by its definition alone, rounded up a little.
func Need(def *domain.Definition) resources.Need {
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
		n.Locked = max(def.Memory, def.MaxMemory) + LockedBeside // a process cannot raise it later
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
	// A console that stands for the first serial port has no pty of its own.
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
