package main

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/testguest/early"
	"github.com/lodge-kvm/lodge/lab/agent"
	"github.com/lodge-kvm/lodge/lab/wire"
)

// answer serves the guest's port, obeys the power button, and takes processors
// and memory into use that are plugged in. It does not return.
func answer() {
	events, err := early.OpenEvents()
	if err != nil {
		say("%v", err)
		os.Exit(1)
	}
	a := &agent.Agent{Power: powerOff}
	serving := map[string]bool{}
	gone := make(chan string, 1)
	look := func() {
		for _, port := range entries("/sys/class/virtio-ports") {
			if early.PortName(port) == wire.Port && !serving[port] {
				serving[port] = true
				go func() {
					serve(a, port)
					gone <- port
				}()
			}
		}
	}
	for _, input := range entries("/sys/class/input") {
		go watch(input)
	}
	look()
	for {
		e, err := events.Next()
		select {
		case port := <-gone: // its end is told of by an event
			delete(serving, port)
		default:
		}
		switch {
		case errors.Is(err, early.ErrDropped), e.Class == "virtio-ports" && e.Action != "remove":
			look()
		case e.Pluggable():
			if err := e.Online(); err != nil {
				say("%v", err)
			}
		}
	}
}

func serve(a *agent.Agent, device string) {
	port, err := early.OpenPort(device)
	if err != nil {
		say("cannot answer on %s: %v", device, err)
		return
	}
	defer func() { _ = port.Close() }()
	if err := a.Serve(context.Background(), port); err != nil {
		say("cannot answer on %s any more: %v", device, err)
	}
}

func watch(input string) {
	if len(input) < 5 || input[:5] != "event" {
		return
	}
	if pressed, err := early.WatchPowerKey(input); err != nil {
		say("%v", err)
	} else if pressed {
		powerOff()
	}
}

// powerOff asks the first process.
func powerOff() { _ = unix.Kill(1, unix.SIGUSR2) }

func entries(dir string) []string {
	all, _ := os.ReadDir(dir)
	names := make([]string, 0, len(all))
	for _, e := range all {
		names = append(names, e.Name())
	}
	return names
}
