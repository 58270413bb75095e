package rpc

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
)

// frame is one packet as it came in.
type frame struct {
	xdr.Header
	payload []byte
	files   []*os.File // owned by the holder of the frame
	charged int        // bytes that the client is charged for it
}

// closeFiles closes the descriptors that came with the packet.
func (f *frame) closeFiles() {
	for _, file := range f.files {
		_ = file.Close()
	}
	f.files = nil
}

// readChunk is the most that is allocated for a frame before its bytes arrive, so that a
// length word alone does not take much memory.
const readChunk = 64 << 10

// ReadLength reads the length word, and returns how many bytes follow it.
func ReadLength(r io.Reader) (int, error) {
	var word [xdr.LengthSize]byte
	if _, err := io.ReadFull(r, word[:]); err != nil {
		return 0, err
	}
	return xdr.CheckLength(binary.BigEndian.Uint32(word[:]))
}

// readBody reads header and payload, n bytes together. It never reads further:
// the byte behind the packet may carry a descriptor, which a plain read would
// lose. It calls grow with the size of each further allocation.
func readBody(r io.Reader, n int, grow func(int)) (*frame, error) {
	buf := make([]byte, 0, min(n, readChunk))
	grow(cap(buf))
	for len(buf) < n {
		if len(buf) == cap(buf) {
			bigger := make([]byte, len(buf), min(n, 4*cap(buf)))
			grow(cap(bigger) - cap(buf))
			copy(bigger, buf)
			buf = bigger
		}
		got, err := io.ReadFull(r, buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+got]
		if err != nil {
			return nil, err
		}
	}
	h, err := xdr.ParseHeader(buf)
	if err != nil {
		return nil, err
	}
	return &frame{Header: h, payload: buf[xdr.HeaderSize:]}, nil
}

// readFiles receives the descriptors that follow a packet of the types that have
// them: one message with one byte for each descriptor.
func (f *frame) readFiles(conn net.Conn) error {
	if f.Type != xdr.TypeCallWithFDs && f.Type != xdr.TypeReplyWithFDs {
		return nil
	}
	r := xdr.NewReader(f.payload)
	count := r.Uint32("descriptors")
	if r.Err() != nil || count > xdr.MaxFDs {
		return fault.New(fault.Invalid, fault.Call, "packet announces %d descriptors, the limit is %d", count, xdr.MaxFDs)
	}
	f.payload = f.payload[4:]
	if count == 0 {
		return nil
	}
	socket, ok := conn.(*net.UnixConn)
	if !ok {
		return fault.New(fault.Invalid, fault.Call, "descriptors can only come over a unix socket")
	}
	for range count {
		file, err := ReceiveFile(socket)
		if err != nil {
			f.closeFiles()
			return err
		}
		f.files = append(f.files, file)
	}
	return nil
}

// ReceiveFile receives exactly one descriptor. The runtime marks it close-on-exec.
func ReceiveFile(socket *net.UnixConn) (*os.File, error) {
	var mark [1]byte
	control := make([]byte, unix.CmsgSpace(4*xdr.MaxFDs))
	n, controlLen, flags, _, err := socket.ReadMsgUnix(mark[:], control)
	if err != nil {
		return nil, err
	}
	fds := parseFDs(control[:controlLen])
	if n == 1 && len(fds) == 1 && flags&unix.MSG_CTRUNC == 0 {
		return os.NewFile(uintptr(fds[0]), "received"), nil
	}
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
	if n == 0 && len(fds) == 0 {
		return nil, io.ErrUnexpectedEOF
	}
	return nil, fault.New(fault.Invalid, fault.Call, "expected one descriptor behind the packet and got %d", len(fds))
}

func parseFDs(control []byte) []int {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil
	}
	var fds []int
	for i := range messages {
		if got, err := unix.ParseUnixRights(&messages[i]); err == nil {
			fds = append(fds, got...)
		}
	}
	return fds
}

// outgoing is one packet on its way to a client.
type outgoing struct {
	packet     []byte
	files      []*os.File // sent behind the packet; closed when sent or dropped
	closeAfter bool       // the connection ends after this packet
	// done is called once, when the packet was sent or dropped. It must not block.
	done func()
}

// release releases the resources that the packet holds.
func (o *outgoing) release() {
	for _, file := range o.files {
		_ = file.Close()
	}
	o.files = nil
	if o.done != nil {
		o.done()
	}
}

// writeSlice is the number of bytes that are written under one deadline. So the timeout
// counts for each slice, and a slow client that still reads is not disconnected.
const writeSlice = 256 << 10

// write sends a packet and its descriptors. The client must take each slice within the timeout.
func (o *outgoing) write(conn net.Conn, timeout time.Duration) error {
	for rest := o.packet; len(rest) > 0; {
		slice := rest[:min(len(rest), writeSlice)]
		if err := conn.SetWriteDeadline(time.Now().Add(timeout)); err != nil {
			return err
		}
		if _, err := conn.Write(slice); err != nil {
			return err
		}
		rest = rest[len(slice):]
	}
	if len(o.files) == 0 {
		return nil
	}
	socket, ok := conn.(*net.UnixConn)
	if !ok {
		return errors.New("descriptors can only be sent over a unix socket")
	}
	for _, file := range o.files {
		if err := SendFile(socket, file); err != nil {
			return err
		}
	}
	return nil
}

// SendFile sends one descriptor beside a byte of data.
func SendFile(socket *net.UnixConn, file *os.File) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var sendErr error
	err = raw.Control(func(fd uintptr) {
		_, _, sendErr = socket.WriteMsgUnix([]byte{0}, unix.UnixRights(int(fd)), nil)
	})
	return errors.Join(err, sendErr)
}
