package qemu

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemucaps"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// Plan is the input of the arguments of a guest's QEMU.
type Plan struct {
	// Definition is complete, has its aliases, and ports for its displays.
	Definition   *domain.Definition
	Capabilities *qemucaps.Capabilities

	Disks      map[string]device.DiskAttachment // by alias; none for an empty drive
	Keys       map[string][]byte                // by alias: passphrases of encrypted disks, for objects that are added to a running QEMU
	NICs       map[string]*device.NICAttachment // by alias; none for type user
	TPMSockets map[string]string                // by alias: where swtpm listens
	VSock      *os.File                         // claimed by ClaimVSock, when there is a vsock
	// Files are opened for QEMU, which opens none of these paths itself: firmware and its variables, and
	// files of character devices.
	Files map[string]*os.File
	// Sockets are those of character devices, by alias: they listen, or are connected.
	Sockets map[string]*os.File
	// Relays are, by alias, the sockets that QEMU connects to in place of the ones in the definition.
	Relays map[string]string
	// Listeners are the sockets of displays, by alias: AfterStart hands them over.
	Listeners map[string][]*os.File

	Dir      string    // private to this run of the guest: the sockets that QEMU makes
	Monitor  *os.File  // listens for the monitor
	Incoming bool      // wait for a saved or migrating guest
	Now      time.Time // what a clock of variable offset counts from; zero: the time
}

// Command is the program line to run. Files[i] becomes descriptor 3+i. The caller keeps and closes the
// files.
type Command struct {
	Args, Env []string
	Files     []*os.File
}

// firstFile is the number of the first descriptor after the standard ones.
const firstFile = 3

// builder collects the arguments of a guest's QEMU.
type builder struct {
	*Plan
	board board
	// running: the guest runs, so files are passed by name.
	running bool
	// dryRun checks that arguments can be made, without attachments, ports and sockets, which only a start
	// has.
	dryRun bool

	args    []string
	env     []string
	files   []*os.File
	fdSets  []uint
	pending []argument
	boot    bootOrder
	// controllersByKey are the controllers that devices refer to.
	controllersByKey map[controllerKey]*device.Controller
	// consolePorts are the ports of the virtio consoles that say none.
	consolePorts map[*device.Char]device.VirtioSerial
}

func newBuilder(p *Plan) *builder {
	b := &builder{Plan: p, board: boardOf(p.Definition.OS.Machine)}
	b.boot = newBootOrder(p.Definition)
	b.controllersByKey = controllersByKey(&p.Definition.Devices)
	return b
}

// Arguments makes the command line of a guest's QEMU. It stores in the definition the socket paths that it
// chose for channels; it reads and changes nothing else.
func Arguments(p *Plan) (*Command, error) {
	b := newBuilder(p)
	if err := b.addAll(); err != nil {
		return nil, err
	}
	return &Command{Args: b.args, Env: b.env, Files: b.files}, nil
}

// addAll adds all arguments in the order of libvirt: an object comes after the objects that it refers to.
func (b *builder) addAll() error {
	for _, step := range []func() error{
		b.programOptions, b.machine, b.cpu, b.memory, b.uuidAndSMBIOS, b.monitor, b.clock, b.powerManagement, b.bootOptions, b.memoryDevices,
		b.controllers, b.disks, b.nics, b.chars, b.tpms, b.inputs, b.audios, b.graphics, b.videos, b.sounds,
		b.redirs, b.hostDevices, b.watchdogs, b.balloon, b.rngs, b.panics, b.vsock, b.addExtras,
	} {
		if err := step(); err != nil {
			return err
		}
		if err := b.writePending(); err != nil {
			return err
		}
	}
	return nil
}

// addOption adds an option and its value.
func (b *builder) addOption(name string, value fmt.Stringer) {
	b.args = append(b.args, "-"+name, value.String())
}

func (b *builder) addWords(words ...string) { b.args = append(b.args, words...) }

// writePending moves the collected arguments to the command line.
func (b *builder) writePending() error {
	if b.dryRun {
		b.pending = nil
	}
	for _, p := range b.pending {
		argument, err := p.commandLine()
		if err != nil {
			return fault.Wrap(err, fault.Internal, fault.Config, "cannot write -%s", p.option)
		}
		b.addWords("-"+p.option, argument)
	}
	b.pending = nil
	return nil
}

func (b *builder) add(option string, props properties) {
	if b.dryRun {
		return // a dry run has no reader for them
	}
	b.pending = append(b.pending, argument{option: option, props: props})
}

// addObject adds a QEMU object that is no device.
func (b *builder) addObject(typ, id string, rest ...property) error {
	if !b.Capabilities.HasObject(typ) {
		return unsupported("this QEMU has no object %s", typ)
	}
	b.add("object", append(properties{{"qom-type", typ}, {"id", id}}, rest...))
	return nil
}

// addDevice adds a device, if the binary has it.
func (b *builder) addDevice(driver string, rest properties) error {
	if !b.Capabilities.HasDevice(driver) {
		return unsupported("this QEMU has no device %s", driver)
	}
	if b.dryRun {
		return nil
	}
	b.add("device", append(properties{{"driver", driver}}, rest...))
	return nil
}

// passFile passes a file and returns the name that QEMU uses for it.
func (b *builder) passFile(f *os.File, name string) string {
	if b.running {
		b.pending = append(b.pending, argument{option: "getfd", props: properties{{"fdname", name}}, file: f})
		return name
	}
	b.files = append(b.files, f)
	return strconv.Itoa(firstFile + len(b.files) - 1)
}

// maxSocketPath is the longest path that a socket's address takes, in bytes.
const maxSocketPath = len(unix.RawSockaddrUnix{}.Path) - 1

// socketIn returns a path for a socket in the guest's own directory.
func socketIn(dir, name string) (string, error) {
	path := filepath.Join(dir, name)
	if len(path) > maxSocketPath {
		return "", fault.New(fault.Invalid, fault.Config,
			"the socket %s has a path of %d bytes and sockets allow %d; use a shorter run directory or alias", path, len(path), maxSocketPath)
	}
	return path, nil
}

func unsupported(format string, args ...any) error {
	return fault.New(fault.Unsupported, fault.Config, format, args...)
}

func invalid(format string, args ...any) error {
	return fault.New(fault.Invalid, fault.Config, format, args...)
}

// programOptions adds the options for the program rather than the machine.
func (b *builder) programOptions() error {
	d := b.Definition
	name := optionList{}
	name.add("guest", d.Name)
	name.raw("debug-threads=on")
	b.addOption("name", name)
	b.addWords("-S", "-no-user-config", "-nodefaults", "-display", "none")
	if b.Capabilities.HasOption("sandbox", "spawn") {
		b.addWords("-sandbox", ownSeccompOptions)
	}
	return nil
}

// ownSeccompOptions are QEMU's own seccomp options. They add to the filter of package sandbox.
const ownSeccompOptions = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"

// monitor adds the monitor.
func (b *builder) monitor() error {
	fd := strconv.Itoa(firstFile)
	if b.Monitor != nil {
		fd = b.passFile(b.Monitor, "monitor")
	}
	b.addWords("-chardev", "socket,id=charmonitor,fd="+fd+",server=on,wait=off",
		"-mon", "chardev=charmonitor,id=monitor,mode=control")
	return nil
}

// addExtras adds the user's own arguments last, so that they override all others.
func (b *builder) addExtras() error {
	d := b.Definition
	if b.Incoming {
		b.addWords("-incoming", "defer")
	}
	b.addWords("-msg", "timestamp=on")
	b.addWords(d.QEMUArgs...)
	for _, e := range d.QEMUEnv {
		b.env = append(b.env, e.Name+"="+e.Value)
	}
	return nil
}
