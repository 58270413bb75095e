package kernel

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Version 2 groups have no list of devices. Instead the kernel runs a program of the
// group for each node that one of its processes opens or makes, and refuses the access
// if the program returns 0. The program is so simple that it is written here, in the
// kernel's own instructions, and needs no library.

// instruction is one of the kernel's (struct bpf_insn).
type instruction struct {
	code   uint8
	regs   uint8 // destination, and source in the upper half
	offset int16 // number of instructions that a jump skips, or the place to load from
	value  int32
}

// The instructions that are used.
const (
	loadWord   = 0x61 // destination = the 32 bits at source + offset
	setTo      = 0xb7 // destination = value
	maskBy     = 0x57 // destination &= value
	jumpIfSet  = 0x45 // jump if destination & value
	jumpUnless = 0x55 // jump if destination != value
	leave      = 0x95 // with register 0 as answer
)

// How the kernel describes an access (struct bpf_cgroup_dev_ctx): the lower half of the
// first word is the kind of node, the upper half is the kind of access.
const (
	accessAt, majorAt, minorAt = 0, 4, 8

	kindMask  = 0xffff
	kindBlock = 1
	kindChar  = 2
	makesNode = 1 << 16
)

// deviceProgram allows these nodes to be opened, and refuses all else.
func deviceProgram(nodes []DeviceNode) []instruction {
	const answer, about, kind, major, minor = 0, 1, 3, 4, 5
	p := []instruction{
		{code: loadWord, regs: kind | about<<4, offset: accessAt},
		{code: loadWord, regs: major | about<<4, offset: majorAt},
		{code: loadWord, regs: minor | about<<4, offset: minorAt},
		{code: setTo, regs: answer, value: 0},
		{code: jumpIfSet, regs: kind, value: makesNode}, // to the end
		{code: maskBy, regs: kind, value: kindMask},
	}
	const refusal = 4
	for _, n := range nodes {
		wanted := int32(kindChar)
		if n.Block {
			wanted = kindBlock
		}
		rule := []instruction{
			{code: jumpUnless, regs: kind, value: wanted},
			{code: jumpUnless, regs: major, value: int32(n.Major)},
		}
		if n.Minor != AnyMinor {
			rule = append(rule, instruction{code: jumpUnless, regs: minor, value: int32(n.Minor)})
		}
		for i := range rule {
			rule[i].offset = int16(len(rule) - i + 1) // over the rest of the rule
		}
		p = append(append(p, rule...), instruction{code: setTo, regs: answer, value: 1}, instruction{code: leave})
	}
	p = append(p, instruction{code: leave})
	p[refusal].offset = int16(len(p) - 1 - refusal - 1) // within bounds by maxNodes
	return p
}

// maxLoads bounds the attempts to load a program. The kernel's verifier returns EAGAIN when a signal is
// pending, and the Go runtime sends its threads signals.
const maxLoads = 32

// loadDeviceProgram makes the kernel check a program, and returns its descriptor.
func loadDeviceProgram(p []instruction) (*os.File, error) {
	license := []byte("Apache-2.0\x00")
	load := struct { // the begin of union bpf_attr for BPF_PROG_LOAD
		kind, count              uint32
		instructions, license    uint64
		logLevel, logSize        uint32
		log                      uint64
		kernelVersion, loadFlags uint32
	}{
		kind: unix.BPF_PROG_TYPE_CGROUP_DEVICE, count: uint32(len(p)),
		instructions: uint64(uintptr(unsafe.Pointer(&p[0]))), license: uint64(uintptr(unsafe.Pointer(&license[0]))),
	}
	fd, errno := uintptr(0), unix.EAGAIN
	for tries := 0; errno == unix.EAGAIN && tries < maxLoads; tries++ {
		fd, _, errno = unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_LOAD, uintptr(unsafe.Pointer(&load)), unsafe.Sizeof(load))
	}
	runtime.KeepAlive(p)
	runtime.KeepAlive(license)
	if errno != 0 {
		return nil, fmt.Errorf("cannot load the BPF program for devices: %w", errno)
	}
	return os.NewFile(fd, "device program"), nil
}

// attachDeviceProgram makes a program for these nodes and attaches it to the group,
// in place of the earlier one. The program is removed with the group.
func attachDeviceProgram(dir string, nodes []DeviceNode) error {
	program, err := loadDeviceProgram(deviceProgram(nodes))
	if err != nil {
		return err
	}
	defer program.Close()
	group, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer group.Close()
	attach := struct{ target, program, kind, flags uint32 }{
		target: uint32(group.Fd()), program: uint32(program.Fd()), kind: unix.BPF_CGROUP_DEVICE,
	}
	_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_ATTACH, uintptr(unsafe.Pointer(&attach)), unsafe.Sizeof(attach))
	if errno != 0 {
		return fmt.Errorf("cannot attach the BPF program for devices: %w", errno)
	}
	return nil
}

// tryDevices returns why devices cannot be controlled in a version 2 tree. It tries on an empty group.
func tryDevices(parent string) error {
	dir := filepath.Join(parent, "devices-trial")
	if err := makeGroup(dir); err != nil {
		return err
	}
	err := attachDeviceProgram(dir, nil)
	if gone := removeGroup(dir); err == nil {
		err = gone
	}
	return err
}
