package qemu

import (
	"strings"

	"github.com/lodge-kvm/lodge/internal/word/device"
)

// board is the family of a machine type.
type board int

const (
	otherBoard board = iota
	i440fx
	q35
	microvm // no PCI: virtio devices sit on a bus of their own
	isapc   // no PCI, nothing but what sits on ISA
)

func boardOf(machine string) board {
	switch {
	case machine == "q35" || strings.HasPrefix(machine, "pc-q35-"):
		return q35
	case machine == "pc" || strings.HasPrefix(machine, "pc-i440fx-"), strings.HasPrefix(machine, "pc-0.") || strings.HasPrefix(machine, "pc-1."):
		return i440fx
	case machine == "microvm":
		return microvm
	case machine == "isapc":
		return isapc
	}
	return otherBoard
}

// pci says the same in the words of the rules of addressing.
func (b board) pci() device.Board {
	switch b {
	case q35:
		return device.Q35
	case i440fx:
		return device.I440FX
	default:
		return device.NoPCI
	}
}
