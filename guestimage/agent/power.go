package main

import (
	"encoding/binary"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// From the kernel's input-event-codes.h, and the size of struct input_event on
// a 64-bit machine: two 8-byte times, two 2-byte codes, a 4-byte value.
const (
	evKey          = 1
	keyPower       = 116
	inputEventSize = 24
)

// watchKeys shuts the guest down when a power key is pressed on the device,
// which is how a host's request to shut down arrives.
func (g *guest) watchKeys(name string) {
	device, err := os.Open("/dev/input/" + name)
	if err != nil {
		g.say("cannot watch %s: %v", name, err)
		return
	}
	defer device.Close()
	event := make([]byte, inputEventSize)
	for {
		if _, err := io.ReadFull(device, event); err != nil {
			return // unplugged
		}
		kind := binary.LittleEndian.Uint16(event[16:])
		code := binary.LittleEndian.Uint16(event[18:])
		value := binary.LittleEndian.Uint32(event[20:])
		if kind == evKey && code == keyPower && value == 1 {
			g.end(unix.LINUX_REBOOT_CMD_POWER_OFF)
		}
	}
}
