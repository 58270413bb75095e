package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/testguest/early"
)

// watched are the classes of devices that the agent serves.
var watched = []string{"net", "virtio-ports", "input", "tty"}

// scan serves every device that is there.
func (g *guest) scan() {
	for _, class := range watched {
		devices, _ := os.ReadDir("/sys/class/" + class)
		for _, d := range devices {
			g.appeared(class, d.Name())
		}
	}
}

// follow serves devices that come later, until the machine ends. A new scan finds
// devices whose events the kernel had to drop.
func (g *guest) follow(events *early.Events) {
	for {
		switch e, err := events.Next(); {
		case errors.Is(err, early.ErrDropped):
			g.scan()
		case err == nil:
			g.event(e)
		}
	}
}

// event handles one message of the kernel.
func (g *guest) event(e early.Event) {
	switch {
	case e.Action == "remove":
		g.gone(e.Class, filepath.Base(e.Path))
	case e.Pluggable():
		if err := e.Online(); err != nil {
			g.say("%v", err)
		}
	default:
		// "change" counts too: a port gets its name after it appears.
		g.appeared(e.Class, filepath.Base(e.Path))
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
			serve = g.watchPowerKey
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

// here reports whether a device still exists.
func (g *guest) here(class, name string) bool {
	g.seen.Lock()
	defer g.seen.Unlock()
	return g.present[class+"/"+name]
}

// watchPowerKey shuts the guest down when a power key is pressed on the device.
func (g *guest) watchPowerKey(name string) {
	pressed, err := early.WatchPowerKey(name)
	if err != nil {
		g.say("%v", err)
	}
	if pressed {
		g.end(unix.LINUX_REBOOT_CMD_POWER_OFF)
	}
}
