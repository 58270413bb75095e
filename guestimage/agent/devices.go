package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// watched are the classes of device that the agent does something about.
var watched = []string{"net", "virtio-ports", "input", "tty"}

// openEvents subscribes to what the kernel says about devices.
func openEvents() (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return -1, fmt.Errorf("cannot watch devices: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1}); err != nil {
		return -1, fmt.Errorf("cannot watch devices: %w", err)
	}
	return fd, nil
}

// scan serves every device that is there.
func (g *guest) scan() {
	for _, class := range watched {
		devices, _ := os.ReadDir("/sys/class/" + class)
		for _, d := range devices {
			g.appeared(class, d.Name())
		}
	}
}

// follow serves devices that come later, for as long as the machine runs. What
// the kernel had to drop is found by looking again.
func (g *guest) follow(fd int) {
	buffer := make([]byte, 16<<10)
	for {
		n, _, err := unix.Recvfrom(fd, buffer, 0)
		switch {
		case errors.Is(err, unix.ENOBUFS):
			g.scan()
		case err == nil:
			g.event(buffer[:n])
		}
	}
}

// event reads one message: "add@/devices/…" and then KEY=value, each ended by
// a zero byte.
func (g *guest) event(message []byte) {
	var action, path, class string
	for field := range bytes.SplitSeq(message, []byte{0}) {
		key, value, _ := strings.Cut(string(field), "=")
		switch key {
		case "ACTION":
			action = value
		case "DEVPATH":
			path = value
		case "SUBSYSTEM":
			class = value
		}
	}
	switch {
	case action == "remove":
		g.gone(class, filepath.Base(path))
	case class == "cpu" && action == "add", class == "memory" && action == "add":
		g.online("/sys" + path)
	default:
		// "change" counts too: a port gets its name after it appears.
		g.appeared(class, filepath.Base(path))
	}
}

// online takes a processor or a block of memory that was plugged in into use.
func (g *guest) online(dir string) {
	err := os.WriteFile(dir+"/online", []byte("1"), 0)
	if err != nil && !errors.Is(err, unix.EINVAL) { // it already is
		g.say("cannot use %s: %v", filepath.Base(dir), err)
	}
}

// appeared starts to serve a device, once.
func (g *guest) appeared(class, name string) {
	var serve func(string)
	switch class {
	case "net":
		serve = g.configure
	case "virtio-ports":
		serve = g.portServer(name)
	case "input":
		if strings.HasPrefix(name, "event") {
			serve = g.watchKeys
		}
	case "tty":
		if isConsole(name) {
			serve = g.offerShell
		}
	}
	if serve != nil && g.claim(class, name) {
		go serve(name)
	}
}

func (g *guest) claim(class, name string) bool {
	g.seen.Lock()
	defer g.seen.Unlock()
	key := class + "/" + name
	if g.present[key] {
		return false
	}
	g.present[key] = true
	return true
}

func (g *guest) gone(class, name string) {
	g.seen.Lock()
	defer g.seen.Unlock()
	delete(g.present, class+"/"+name)
}

// here reports whether a device has not been taken away.
func (g *guest) here(class, name string) bool {
	g.seen.Lock()
	defer g.seen.Unlock()
	return g.present[class+"/"+name]
}
