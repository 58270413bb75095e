// Command agent is the first and only resident process of Lodge's small test
// guest: it loads drivers, brings up network interfaces with DHCP, offers a
// shell on every console, obeys the power button, and answers on two
// virtio-serial ports: Lodge's own line protocol and the QEMU guest agent's.
//
// Tests, the lab and `make up` boot it. It trusts its host, and a user
// of its console is root: it must never run in a guest with valuable data.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/testguest/early"
)

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "this is the first process of Lodge's test guest; it does not run elsewhere")
		os.Exit(2)
	}
	g := &guest{family: newFamily(), present: map[string]bool{}}
	if err := g.boot(); err != nil {
		g.say("cannot boot: %v", err)
		g.end(unix.LINUX_REBOOT_CMD_POWER_OFF)
	}
	g.obeySignals()
}

// boot sets the guest up until it answers its host. The kernel's
// device events are subscribed to before the drivers are loaded, so that
// nothing that appears in between is missed.
func (g *guest) boot() error {
	if err := early.Mount(""); err != nil {
		return err
	}
	g.args = early.Arguments()
	name := g.args["lodge.name"]
	if name == "" {
		name = "lodge-guest"
	}
	if err := unix.Sethostname([]byte(name)); err != nil {
		return fmt.Errorf("cannot set the host name: %w", err)
	}
	events, err := early.OpenEvents()
	if err != nil {
		return err
	}
	for _, err := range early.LoadModules("/etc/modules") {
		g.say("%v", err)
	}
	if err := early.LoopbackUp(); err != nil {
		g.say("%v", err)
	}
	g.upAfter = age()
	g.say("user space up after %.2f s", g.upAfter)
	g.scan()
	go g.follow(events)
	return nil
}

// obeySignals answers what busybox's poweroff, halt and reboot, and
// Ctrl-Alt-Del, send to the first process.
func (g *guest) obeySignals() {
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_CAD_OFF) // Ctrl-Alt-Del becomes SIGINT
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2)
	for s := range signals {
		switch s {
		case unix.SIGINT, unix.SIGTERM:
			g.end(unix.LINUX_REBOOT_CMD_RESTART)
		default:
			g.end(unix.LINUX_REBOOT_CMD_POWER_OFF)
		}
	}
}

// say writes one line to the kernel's console.
func (g *guest) say(format string, args ...any) {
	text := "lodge-guest: " + fmt.Sprintf(format, args...) + "\r\n"
	console, err := os.OpenFile("/dev/console", os.O_WRONLY|unix.O_NOCTTY, 0)
	if err != nil {
		return
	}
	defer console.Close()
	_, _ = console.WriteString(text)
}

// age is the guest's own uptime in seconds.
func age() float64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return 0
	}
	return float64(t.Nano()) / 1e9
}

func init() {
	// The guest has a processor or two and the agent is nearly always asleep.
	runtime.GOMAXPROCS(2)
}
