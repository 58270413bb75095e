package early

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrDropped says that the kernel had to drop messages: devices must be scanned
// again.
var ErrDropped = errors.New("messages about devices were dropped")

// Events are the kernel's messages about devices since OpenEvents.
type Events struct {
	fd     int
	buffer []byte
}

// Event is one message.
type Event struct {
	Action string // "add", "remove", "change", …
	Path   string // below /sys
	Class  string
}

// OpenEvents subscribes.
func OpenEvents() (*Events, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return nil, fmt.Errorf("cannot watch devices: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1}); err != nil {
		return nil, fmt.Errorf("cannot watch devices: %w", err)
	}
	return &Events{fd: fd, buffer: make([]byte, 16<<10)}, nil
}

// Next waits for a message.
func (s *Events) Next() (Event, error) {
	n, _, err := unix.Recvfrom(s.fd, s.buffer, 0)
	if errors.Is(err, unix.ENOBUFS) {
		return Event{}, ErrDropped
	}
	if err != nil {
		return Event{}, err
	}
	return parse(s.buffer[:n]), nil
}

// parse reads "add@/devices/…" and then KEY=value, each ended by a zero byte.
func parse(message []byte) Event {
	var e Event
	for field := range bytes.SplitSeq(message, []byte{0}) {
		key, value, _ := strings.Cut(string(field), "=")
		switch key {
		case "ACTION":
			e.Action = value
		case "DEVPATH":
			e.Path = value
		case "SUBSYSTEM":
			e.Class = value
		}
	}
	return e
}

// Pluggable reports whether the event adds a processor or a block of memory.
func (e Event) Pluggable() bool {
	return e.Action == "add" && (e.Class == "cpu" || e.Class == "memory")
}

// Online sets a processor or a block of memory online.
func (e Event) Online() error {
	err := os.WriteFile("/sys"+e.Path+"/online", []byte("1"), 0)
	if err != nil && !errors.Is(err, unix.EINVAL) { // it already is
		return fmt.Errorf("cannot use %s: %w", filepath.Base(e.Path), err)
	}
	return nil
}
