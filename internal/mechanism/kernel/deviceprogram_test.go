package kernel

import (
	"fmt"
	"slices"
	"testing"
)

// run interprets a program as the kernel does, and returns its verdict on an access.
func run(p []instruction, about [3]uint32) (answer uint64, err error) {
	var regs [11]uint64
	for at := 0; ; at++ {
		if at < 0 || at >= len(p) {
			return 0, fmt.Errorf("it goes to instruction %d of %d", at, len(p))
		}
		i := p[at]
		to := &regs[i.regs&15]
		value := uint64(int64(i.value)) // the kernel extends the sign
		switch i.code {
		case 0x61:
			*to = uint64(about[i.offset/4])
		case 0xb7:
			*to = value
		case 0x57:
			*to &= value
		case 0x45:
			if *to&value != 0 {
				at += int(i.offset)
			}
		case 0x55:
			if *to != value {
				at += int(i.offset)
			}
		case 0x95:
			return regs[0], nil
		default:
			return 0, fmt.Errorf("instruction %d is %#x", at, i.code)
		}
	}
}

// A program allows the nodes of its list, for every kind of access, and no others.
// Promise: I2
func TestDeviceProgram_SameAsList(t *testing.T) {
	for _, nodes := range [][]DeviceNode{
		nil,
		{{Major: 1, Minor: 3}},
		{{Major: 1, Minor: 3}, {Block: true, Major: 8, Minor: 0}, {Major: 136, Minor: AnyMinor}, {Major: 4095, Minor: 1<<20 - 1}},
		slices.Repeat([]DeviceNode{{Major: 3, Minor: 3}}, maxNodes),
	} {
		p := deviceProgram(nodes)
		for _, kind := range []uint32{1, 2, 3} {
			for _, access := range []uint32{1, 2, 4, 6, 3, 7} { // make, read, write, and together
				for _, major := range []uint32{0, 1, 8, 136, 4095} {
					for _, minor := range []uint32{0, 3, 7, 1<<20 - 1} {
						want := access&1 == 0 && slices.ContainsFunc(nodes, func(n DeviceNode) bool {
							return n.Major == major && (n.Minor == minor || n.Minor == AnyMinor) && (n.Block && kind == 1 || !n.Block && kind == 2)
						})
						got, err := run(p, [3]uint32{access<<16 | kind, major, minor})
						if err != nil || (got == 1) != want {
							t.Fatalf("of %d nodes: kind %d, access %d, %d:%d gives %d, want %v (%v)", len(nodes), kind, access, major, minor, got, want, err)
						}
					}
				}
			}
		}
	}
}
