package early

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Port is a virtio-serial port, open for as long as it exists.
type Port struct {
	file *os.File
	raw  syscall.RawConn
}

// PortName is the name that the host gave a port; "" as long as it has none.
func PortName(device string) string {
	return Trimmed("/sys/class/virtio-ports/" + device + "/name")
}

// Write waits for a host that reads.
func (p *Port) Write(b []byte) (int, error) { return p.file.Write(b) }

// Close lets another program open the port.
func (p *Port) Close() error { return p.file.Close() }

// OpenPort opens a virtio-serial port by the name of its device.
func OpenPort(device string) (*Port, error) {
	// Non-blocking, so that the runtime's poller waits, not a thread.
	file, err := os.OpenFile("/dev/"+device, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, err
	}
	return &Port{file: file, raw: raw}, nil
}

// Read waits for bytes. A port whose host end is closed reads as ended at once, every time. Read treats such an
// end as silence and waits for the next edge of the poller: polling would cost the idle guest a few per cent of a
// processor.
func (p *Port) Read(buffer []byte) (int, error) {
	var n int
	var failed error
	err := p.raw.Read(func(fd uintptr) bool {
		n, failed = unix.Read(int(fd), buffer)
		if errors.Is(failed, unix.EAGAIN) || errors.Is(failed, unix.EINTR) || (failed == nil && n == 0) {
			failed = nil
			return false
		}
		return true
	})
	if err != nil {
		return 0, err
	}
	return n, failed
}
