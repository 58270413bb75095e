package host

import (
	"fmt"

	"github.com/lodge-kvm/lodge/fault"
	"github.com/lodge-kvm/lodge/kernel"
)

// Need is what a guest takes of the host's ceilings.
type Need struct {
	Threads uint64
	Files   uint64
	PTYs    uint64
	// AIO counts places for native asynchronous I/O (fs.aio-max-nr). QEMU takes
	// AIOContext for each of its threads that serves such disks.
	AIO uint64
}

// AIOContext is what one QEMU thread with native asynchronous I/O takes of
// fs.aio-max-nr: QEMU's own constant in its Linux AIO code, and why a host with
// the kernel's default of 65536 stops at 64 such guests.
const AIOContext = 1024

// of says what a need takes of a ceiling.
func (n Need) of(c kernel.Ceiling) uint64 {
	switch c.Name {
	case "fs.aio-max-nr":
		return n.AIO
	case "fs.file-max":
		return n.Files
	case "kernel.pty.max":
		return n.PTYs
	case "kernel.threads-max", "kernel.pid_max":
		return n.Threads
	}
	return 0
}

// room is by how much a raised ceiling is meant to suffice for further guests.
const room = 4096

// CheckCeilings refuses a guest that would hit one of the host's ceilings, while
// nothing has been made of it yet. The error names the ceiling, its value, what
// is needed, and the command that raises it.
func (inv *Inventory) CheckCeilings(n Need) error {
	all, err := inv.root.Ceilings()
	if err != nil {
		return err
	}
	for _, c := range all {
		if need := n.of(c); need > c.Left() {
			return fault.New(fault.NoCapacity, fault.Host,
				"the guest needs %d of %s, which is %d and of which %d are in use; raise it with: %s", need, c.Name, c.Max, c.Used, raise(c, need))
		}
	}
	return nil
}

// raise is the command that lifts a ceiling for many more guests like this one.
func raise(c kernel.Ceiling, need uint64) string {
	return fmt.Sprintf("sysctl -w %s=%d", c.Name, c.Used+need*room)
}

// Warnings says which ceilings will stop this host before it has so many
// guests of a plain kind: each with a pty, and with disks on native I/O.
func (inv *Inventory) Warnings(guests uint64) ([]string, error) {
	all, err := inv.root.Ceilings()
	if err != nil {
		return nil, err
	}
	plain := Need{Threads: 8, Files: 64, PTYs: 1, AIO: AIOContext}
	var warnings []string
	for _, c := range all {
		if fits := c.Left() / plain.of(c); fits < guests {
			warnings = append(warnings, fmt.Sprintf("%s is %d (%d in use): it stops this host after about %d more guests; raise it with: sysctl -w %s=%d",
				c.Name, c.Max, c.Used, fits, c.Name, c.Used+guests*plain.of(c)))
		}
	}
	return warnings, nil
}
