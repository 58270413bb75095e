package main

import (
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// offerShell runs a shell on a terminal, without a login, until the terminal is
// removed.
func (g *guest) offerShell(name string) {
	for pause := 100 * time.Millisecond; g.here("tty", name); pause = min(2*pause, 10*time.Second) {
		started := time.Now()
		if err := g.shell(name); err != nil {
			g.say("no shell on %s: %v", name, err)
		}
		if time.Since(started) > time.Minute {
			pause = 100 * time.Millisecond
		}
		<-time.After(pause) // a terminal that hangs up at once must not make it spin
	}
}

func (g *guest) shell(name string) error {
	terminal, err := os.OpenFile("/dev/"+name, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	defer terminal.Close()
	host, _ := os.Hostname()
	_, _ = terminal.WriteString("\r\n" + host + " on " + name + ": Lodge test guest, no login needed\r\n")
	_, ended, err := g.family.start([]string{"/bin/sh", "-i"}, []*os.File{terminal, terminal, terminal},
		&syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0})
	if err != nil {
		return err
	}
	<-ended
	return nil
}
