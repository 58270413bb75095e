package qemu

import (
	"path/filepath"
	"slices"

	"github.com/lodge-kvm/lodge/internal/mechanism/qemucaps"
	"github.com/lodge-kvm/lodge/internal/word/device"
)

// chardev is the host's end of a character device. The command line and the
// monitor describe one in different ways.
type chardev struct {
	id string
	device.Backend
	// role selects the driver of a device file.
	role device.CharRole
	// milliseconds says that QEMU counts the time to the next try in them: seconds
	// are deprecated from 9.2 on.
	milliseconds bool
	// socket is the descriptor that listens at Path, or is connected to it, if one was
	// handed over: its number, or its name while the guest runs.
	socket string
}

// backend adds the host's end of a character device and returns its name.
func (b *builder) backend(alias string, back *device.Backend, role device.CharRole) (string, error) {
	c := &chardev{id: "char" + alias, Backend: *back, role: role, milliseconds: b.Capabilities.Has(qemucaps.FactReconnectMS)}
	if err := c.check(); err != nil {
		return "", err
	}
	if !slices.Contains(b.Capabilities.Chardevs, c.driver()) {
		return "", unsupported("this QEMU has no character devices of type %s", c.Type)
	}
	if f := b.Sockets[alias]; f != nil {
		c.socket = b.passFile(f, "socket-"+alias)
	}
	if path := b.Relays[alias]; path != "" {
		c.Path = path
	}
	// A file that is handed over has been emptied already if the definition wants that.
	// QEMU would try to empty it again, and cannot do that with devices.
	if c.Type == "file" && b.Files[c.Path] != nil {
		c.Path, c.Append = b.qemuPath(c.Path), device.On
	}
	if c.LogFile != "" && b.Files[c.LogFile] != nil {
		c.LogFile, c.LogAppend = b.qemuPath(c.LogFile), device.On
	}
	b.pending = append(b.pending, argument{option: "chardev", back: c})
	return c.id, nil
}

// placeSocket is PlaceSocket, but does nothing in a dry run.
func (b *builder) placeSocket(alias string, back *device.Backend) error {
	if b.dryRun {
		return nil
	}
	return PlaceSocket(b.Dir, alias, back)
}

// PlaceSocket chooses the path of a listening socket that the definition gives no path: in
// a directory of the guest.
func PlaceSocket(dir, alias string, back *device.Backend) error {
	if back.Type != "unix" || back.Path != "" {
		return nil
	}
	path, err := socketIn(dir, alias+".sock")
	if err != nil {
		return err
	}
	back.Path, back.Mode = path, "bind"
	return nil
}

func (c *chardev) check() error {
	switch c.Type {
	case "pty", "null", "stdio", "vc", "spicevmc", "unix":
	case "file", "dev", "pipe":
		if !filepath.IsAbs(c.Path) {
			return invalid("a character device of type %s needs an absolute path", c.Type)
		}
	case "tcp":
		if c.Service == "" {
			return invalid("a character device of type tcp needs a service")
		}
	case "udp":
		if c.Service == "" {
			return invalid("a character device of type udp needs the service that it sends to")
		}
	case "spiceport":
		if c.Channel == "" {
			return invalid("a character device of type spiceport needs a channel")
		}
	default:
		return unsupported("character devices of type %q are not built", c.Type)
	}
	if c.Type == "unix" && len(c.Path) > maxSocketPath {
		return invalid("the socket %s has a path of %d bytes and sockets allow %d", c.Path, len(c.Path), maxSocketPath)
	}
	return nil
}

// driver is QEMU's name of the backend.
func (c *chardev) driver() string {
	switch c.Type {
	case "unix", "tcp":
		return "socket"
	case "dev":
		if c.role == device.Parallel {
			return "parallel"
		}
		return "serial"
	}
	return c.Type
}

func (c *chardev) connects() bool { return c.Mode == "connect" }

// argument describes the backend on the command line.
func (c *chardev) argument() string {
	l := optionList{c.driver()}
	l.add("id", c.id)
	switch c.Type {
	case "unix":
		if c.socket != "" {
			l.add("fd", c.socket)
		} else {
			l.add("path", c.Path)
		}
		c.serving(&l)
	case "tcp":
		l.text("host", c.Host)
		l.add("port", c.Service)
		c.serving(&l)
		if c.Protocol == "telnet" {
			l.raw("telnet=on")
		}
	case "udp":
		l.text("host", c.Host)
		l.add("port", c.Service)
		l.text("localaddr", c.BindHost)
		l.text("localport", c.BindService)
	case "file":
		l.add("path", c.Path)
		l.onOff("append", c.Append)
	case "dev", "pipe":
		l.add("path", c.Path)
	case "spicevmc":
		l.add("name", c.spiceName())
	case "spiceport":
		l.add("name", c.Channel)
	case "stdio":
		l.raw("signal=off")
	}
	l.text("logfile", c.LogFile)
	l.onOff("logappend", c.LogAppend)
	return l.String()
}

// serving adds the options that say whether QEMU listens or connects.
func (c *chardev) serving(l *optionList) {
	if !c.connects() {
		l.raw("server=on", "wait=off")
		return
	}
	if c.Reconnect == device.On {
		name, pause := c.retry()
		l.add(name, number(pause))
	}
}

// spiceName is the name that a spice client uses for such a device.
func (c *chardev) spiceName() string {
	if c.role == device.Channel {
		return "vdagent"
	}
	return "usbredir"
}

// arguments describe the backend to the monitor.
func (c *chardev) arguments() properties {
	data := properties{}
	switch c.Type {
	case "unix":
		at := properties{{"type", "unix"}, {"data", properties{{"path", c.Path}}}}
		if c.socket != "" {
			at = properties{{"type", "fd"}, {"data", properties{{"str", c.socket}}}}
		}
		data.add("addr", at)
		c.serve(&data)
	case "tcp":
		data.add("addr", address(c.Host, c.Service))
		c.serve(&data)
		if c.Protocol == "telnet" {
			data.add("telnet", true)
		}
	case "udp":
		data.add("remote", address(c.Host, c.Service))
		if c.BindHost != "" || c.BindService != "" {
			data.add("local", address(c.BindHost, c.BindService))
		}
	case "file":
		data.add("out", c.Path)
		data.toggle("append", c.Append)
	case "dev", "pipe":
		data.add("device", c.Path)
	case "spicevmc":
		data.add("type", c.spiceName())
	case "spiceport":
		data.add("fqdn", c.Channel)
	case "stdio":
		data.add("signal", false)
	}
	data.text("logfile", c.LogFile)
	data.toggle("logappend", c.LogAppend)
	return properties{{"id", c.id}, {"backend", properties{{"type", c.driver()}, {"data", data}}}}
}

func address(host, service string) properties {
	return properties{{"type", "inet"}, {"data", properties{{"host", host}, {"port", service}}}}
}

func (c *chardev) serve(data *properties) {
	data.add("server", !c.connects())
	if !c.connects() {
		data.add("wait", false)
		return
	}
	if c.Reconnect == device.On {
		data.add(c.retry())
	}
}

// retry returns the pause before QEMU connects again, under the name of QEMU's option.
func (c *chardev) retry() (name string, pause uint) {
	if c.milliseconds {
		return "reconnect-ms", c.ReconnectSec * 1000
	}
	return "reconnect", c.ReconnectSec
}
