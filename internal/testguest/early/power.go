package early

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
)

// From the kernel's input-event-codes.h, and the size of struct input_event on
// a 64-bit machine: two 8-byte times, two 2-byte codes, a 4-byte value.
const (
	evKey          = 1
	keyPower       = 116
	inputEventSize = 24
)

// WatchPowerKey waits for the power key of an input device to be pressed, which
// is how a host's request to shut down arrives, or for the device to be taken
// away.
func WatchPowerKey(name string) (pressed bool, err error) {
	device, err := os.Open("/dev/input/" + name)
	if err != nil {
		return false, fmt.Errorf("cannot watch %s: %w", name, err)
	}
	defer device.Close()
	event := make([]byte, inputEventSize)
	for {
		if _, err := io.ReadFull(device, event); err != nil {
			return false, nil // unplugged
		}
		kind := binary.LittleEndian.Uint16(event[16:])
		code := binary.LittleEndian.Uint16(event[18:])
		value := binary.LittleEndian.Uint32(event[20:])
		if kind == evKey && code == keyPower && value == 1 {
			return true, nil
		}
	}
}
