package hostnet

import (
	"encoding/binary"
	"errors"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Meter reads the counters of single links over one socket that it keeps open: two
// system calls a reading. A listing of all links would cost each reading as much as
// all links, even if only a few are needed.
type Meter struct {
	mu sync.Mutex
	fd int
	// number tells an answer from one to an earlier request.
	number uint32
}

// OpenMeter opens a meter; the caller closes it.
func OpenMeter() (*Meter, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot open a netlink socket")
	}
	// The kernel answers before the send of the request returns, so this timeout
	// is only a safety net.
	patience := unix.NsecToTimeval(int64(time.Second))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience); err != nil {
		_ = unix.Close(fd)
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot set a timeout on the netlink socket")
	}
	return &Meter{fd: fd}, nil
}

// Close closes the meter; later readings fail.
func (m *Meter) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fd >= 0 {
		_ = unix.Close(m.fd)
		m.fd = -1
	}
}

// Index returns the kernel's index of a link, or fault.NotFound. The kernel uses no
// index again before it has counted through all of them.
func (m *Meter) Index(name string) (int, error) {
	request, err := unix.NewIfreq(name)
	if err != nil {
		return 0, fault.Wrap(err, fault.Invalid, fault.Interface, "%q cannot be the name of a link", name)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch err := unix.IoctlIfreq(m.fd, unix.SIOCGIFINDEX, request); {
	case errors.Is(err, unix.ENODEV):
		return 0, fault.Wrap(err, fault.NotFound, fault.Interface, "no network interface with name %q", name)
	case err != nil:
		return 0, fault.Wrap(err, fault.Failed, fault.Interface, "cannot look up network interface %q", name)
	}
	return int(int32(request.Uint32())), nil
}

// The layout of the request and of its answer, as in linux/if_link.h.
const (
	newStats   = 92 // RTM_NEWSTATS
	getStats   = 94 // RTM_GETSTATS
	headerSize = unix.SizeofNlMsghdr
	statsSize  = 12 // struct if_stats_msg: family, padding, index, mask
	stats64    = 1  // IFLA_STATS_LINK_64
	attrSize   = unix.SizeofRtAttr
	counters   = 8 // the first ones of struct rtnl_link_stats64
)

// Counters reads the counters of the link with this index; fault.NotFound if there is none.
func (m *Meter) Counters(index int) (Counters, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.number++
	native := binary.NativeEndian
	var question [headerSize + statsSize]byte
	native.PutUint32(question[0:], uint32(len(question)))
	native.PutUint16(question[4:], getStats)
	native.PutUint16(question[6:], unix.NLM_F_REQUEST)
	native.PutUint32(question[8:], m.number)
	native.PutUint32(question[headerSize+4:], uint32(index))
	native.PutUint32(question[headerSize+8:], 1<<(stats64-1))
	if err := unix.Sendto(m.fd, question[:], 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return Counters{}, fault.Wrap(err, fault.Failed, fault.Host, "cannot ask the kernel for the counters of link %d", index)
	}
	var answer [1024]byte
	for {
		n, _, err := unix.Recvfrom(m.fd, answer[:], 0)
		if err != nil {
			return Counters{}, fault.Wrap(err, fault.Failed, fault.Host, "the kernel did not answer about the counters of link %d", index)
		}
		if n >= headerSize && native.Uint32(answer[8:]) == m.number {
			return parseCounters(answer[:n], index)
		}
	}
}

// parseCounters reads the kernel's answer.
func parseCounters(answer []byte, index int) (Counters, error) {
	native := binary.NativeEndian
	garbled := fault.New(fault.Failed, fault.Host, "cannot understand the kernel's answer about link %d", index)
	switch body := answer[headerSize:]; native.Uint16(answer[4:]) {
	case unix.NLMSG_ERROR:
		if len(body) < 4 {
			return Counters{}, garbled
		}
		errno := unix.Errno(-int32(native.Uint32(body)))
		kind := fault.Failed
		if errno == unix.ENODEV {
			kind = fault.NotFound
		}
		return Counters{}, fault.Wrap(errno, kind, fault.Interface, "no counters of link %d", index)
	case newStats:
		for at := statsSize; at+attrSize <= len(body); {
			size, sort := int(native.Uint16(body[at:])), native.Uint16(body[at+2:])
			if size < attrSize || at+size > len(body) {
				return Counters{}, garbled
			}
			if values := body[at+attrSize : at+size]; sort == stats64 && len(values) >= 8*counters {
				return countersOf(values), nil
			}
			at += (size + 3) &^ 3
		}
	}
	return Counters{}, garbled
}

func countersOf(values []byte) Counters {
	at := func(i int) uint64 { return binary.NativeEndian.Uint64(values[8*i:]) }
	return Counters{
		RxPackets: at(0), TxPackets: at(1), RxBytes: at(2), TxBytes: at(3),
		RxErrors: at(4), TxErrors: at(5), RxDropped: at(6), TxDropped: at(7),
	}
}
