package main

import (
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/lodge-kvm/lodge/internal/testguest/early"
)

// configure runs a DHCP client on an interface until it is removed.
func (g *guest) configure(name string) {
	if name == "lo" {
		return
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		g.say("%v", err)
		return
	}
	defer null.Close()
	for pause := time.Second; g.here("net", name); pause = min(2*pause, time.Minute) {
		_, ended, err := g.family.start(g.dhcpClient(name), []*os.File{null, null, null}, &syscall.SysProcAttr{Setsid: true})
		if err != nil {
			g.say("%v", err)
			return
		}
		<-ended
		<-time.After(pause) // a client that keeps failing must not spin
	}
}

// dhcpClient asks every second at first: bridges may swallow the first
// requests while they learn.
func (g *guest) dhcpClient(name string) []string {
	argv := []string{"/bin/udhcpc", "-f", "-i", name, "-s", "/etc/udhcpc.script", "-T", "1", "-t", "5", "-A", "2"}
	if host := g.args["lodge.name"]; host != "" {
		argv = append(argv, "-x", "hostname:"+host)
	}
	return argv
}

// isConsole reports whether a terminal has a device: serial lines
// that exist, virtio consoles, and the first screen.
func isConsole(name string) bool {
	switch {
	case strings.HasPrefix(name, "ttyS"):
		kind := early.Trimmed("/sys/class/tty/" + name + "/type")
		return kind != "" && kind != "0"
	case strings.HasPrefix(name, "hvc"):
		return true
	}
	return name == "tty1"
}
