package hostnet

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// ForwardingWatch reports that another program turned off the host's routing between its links.
type ForwardingWatch struct{ conn *netlink.Conn }

// WatchForwarding starts listening. Only Forward finds a change that was made before.
func WatchForwarding() (*ForwardingWatch, error) {
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	for _, group := range []uint32{unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF} {
		if err == nil {
			if err = conn.JoinGroup(group); err != nil {
				_ = conn.Close()
			}
		}
	}
	return &ForwardingWatch{conn}, fault.Wrap(err, fault.Failed, fault.Host, "cannot listen to changes of the host's forwarding")
}

// Close ends the watch.
func (w *ForwardingWatch) Close() { _ = w.conn.Close() }

// Next waits until forwarding is turned off for the whole host. It also returns when messages of the kernel were
// lost for lack of space: forwarding may have been turned off then.
func (w *ForwardingWatch) Next(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { _ = w.conn.SetReadDeadline(time.Now()) })()
	for ctx.Err() == nil {
		told, err := w.conn.Receive()
		if errors.Is(err, unix.ENOBUFS) {
			return nil
		}
		if err != nil {
			return fault.Wrap(err, fault.Failed, fault.Host, "cannot receive changes of the host's forwarding")
		}
		if slices.ContainsFunc(told, turnsOff) {
			return nil
		}
	}
	return context.Cause(ctx)
}

// Values in the kernel's messages about settings, from linux/netconf.h.
const (
	netconfHeader     = 4 // the family, and three bytes that say nothing
	netconfInterface  = 1
	netconfForwarding = 2
	netconfAll        = -1 // as an interface: the host as a whole
)

// turnsOff reads one message. Each link also has such a setting of its own, which the
// administrator decides.
func turnsOff(m netlink.Message) bool {
	if m.Header.Type != unix.RTM_NEWNETCONF || len(m.Data) < netconfHeader {
		return false
	}
	attributes, err := netlink.NewAttributeDecoder(m.Data[netconfHeader:])
	if err != nil {
		return false
	}
	whole, off := false, false
	for attributes.Next() {
		switch attributes.Type() {
		case netconfInterface:
			whole = attributes.Int32() == netconfAll
		case netconfForwarding:
			off = attributes.Int32() == 0
		}
	}
	return attributes.Err() == nil && whole && off
}
