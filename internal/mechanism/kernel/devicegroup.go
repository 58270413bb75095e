package kernel

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// DeviceNode is a device node of the host, by its numbers. AnyMinor stands for all
// nodes of a kind with the same major number.
type DeviceNode struct {
	Block bool
	Major uint32
	Minor uint32 // or AnyMinor
}

// AnyMinor stands for every minor number.
const AnyMinor = ^uint32(0)

// Terminals are the device nodes that make and serve pseudo-terminals.
func Terminals() []DeviceNode {
	const maker, slaves = 5, 136
	return []DeviceNode{{Major: maker, Minor: 2}, {Major: slaves, Minor: AnyMinor}}
}

// String is how version 1 writes it: "c 1:3".
func (n DeviceNode) String() string {
	kind, minor := "c", "*"
	if n.Block {
		kind = "b"
	}
	if n.Minor != AnyMinor {
		minor = decimal(uint64(n.Minor))
	}
	return fmt.Sprintf("%s %d:%s", kind, n.Major, minor)
}

// maxNodes bounds the device nodes of one group; a guest has a few dozen.
const maxNodes = 1024

// AllowDevices lets the processes of a guest's group open these device nodes to
// read and write, and no others. They cannot make device nodes. Open files stay
// open. A node that was allowed before and still is stays allowed throughout the
// change. On a host without control of devices (see Has) it does nothing.
func (g *Group) AllowDevices(nodes []DeviceNode) error {
	if len(nodes) > maxNodes {
		return fault.New(fault.Invalid, fault.Host, "a guest may use at most %d device nodes of the host", maxNodes)
	}
	dir := g.Path(DeviceController)
	if dir == "" {
		return nil
	}
	dir = g.cgroups.root.path(dir)
	if g.cgroups.v2 {
		return g.failed(attachDeviceProgram(dir, nodes), "bound the devices of")
	}
	return g.failed(listDevices(dir, nodes), "bound the devices of")
}

// listDevices changes the list of a version 1 group to these nodes.
func listDevices(dir string, nodes []DeviceNode) error {
	text, err := readUpTo(dir+"/devices.list", maxFile)
	if err != nil {
		return err
	}
	allowed := strings.Split(strings.TrimSpace(string(text)), "\n")
	if slices.Contains(allowed, "a *:* rwm") { // as a new group is
		if err := writeControl(dir, "devices.deny", "a"); err != nil {
			return err
		}
		allowed = nil
	}
	access := map[string]string{} // by node
	for _, rule := range allowed {
		if at := strings.LastIndexByte(rule, ' '); at > 0 {
			access[rule[:at]] = rule[at+1:]
		}
	}
	wanted := map[string]bool{}
	for _, n := range nodes {
		node := n.String()
		wanted[node] = true
		if now := access[node]; strings.Contains(now, "r") && strings.Contains(now, "w") {
			continue
		}
		// The daemon's own group cannot allow a node that it is refused itself.
		if err := writeControl(dir, "devices.allow", node+" rw"); err != nil && !errors.Is(err, unix.EPERM) {
			return err
		}
	}
	for _, node := range slices.Sorted(maps.Keys(access)) {
		surplus := access[node]
		if wanted[node] { // in a container the group starts with all rights of the daemon's own group
			surplus = strings.NewReplacer("r", "", "w", "").Replace(surplus)
		}
		if surplus == "" {
			continue
		}
		if err := writeControl(dir, "devices.deny", node+" "+surplus); err != nil {
			return err
		}
	}
	return nil
}
