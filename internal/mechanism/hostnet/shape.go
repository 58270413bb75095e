package hostnet

import (
	"errors"
	"syscall"

	"github.com/vishvananda/netlink"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Shape is how fast a link may send.
type Shape struct {
	// Rate and Peak are in bytes a second; a peak of 0 is the rate.
	Rate, Peak uint64
	// Burst is how many bytes may go at the peak; 0 is the least that works.
	Burst uint64
}

// The handles of the one queue and the one class of a shaped link.
var (
	shapeQueue = netlink.MakeHandle(1, 0)
	shapeClass = netlink.MakeHandle(1, 1)
)

// SetShape limits the traffic that a link sends; on a guest's tap that is the
// traffic that the guest receives. Nil removes the limit. It replaces the link's
// root queue.
func SetShape(name string, s *Shape) error {
	return change(name, "shape the traffic of", func(l netlink.Link) error {
		queue := netlink.NewHtb(netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Parent: netlink.HANDLE_ROOT, Handle: shapeQueue})
		queue.Defcls = 1 // everything is of the one class
		if err := netlink.QdiscDel(queue); err != nil && !errors.Is(err, syscall.ENOENT) && !errors.Is(err, syscall.EINVAL) {
			return err // those two: there is none
		}
		if s == nil {
			return nil
		}
		if s.Burst > 1<<32-1 {
			return fault.New(fault.Invalid, fault.Interface, "a burst of %d bytes is more than the kernel supports", s.Burst)
		}
		if err := netlink.QdiscAdd(queue); err != nil {
			return err
		}
		class := netlink.NewHtbClass(
			netlink.ClassAttrs{LinkIndex: l.Attrs().Index, Parent: shapeQueue, Handle: shapeClass},
			netlink.HtbClassAttrs{Rate: s.Rate * 8, Ceil: max(s.Rate, s.Peak) * 8, Buffer: uint32(s.Burst), Cbuffer: uint32(s.Burst)},
		)
		if err := netlink.ClassAdd(class); err != nil {
			return errors.Join(err, netlink.QdiscDel(queue))
		}
		return nil
	})
}

// ShapeOf reads the limit on the traffic that a link sends; nil if it has none.
func ShapeOf(name string) (*Shape, error) {
	l, err := find(name)
	if err != nil {
		return nil, err
	}
	classes, err := netlink.ClassList(l, shapeQueue)
	if err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Interface, "cannot read the traffic shaping of %q", name)
	}
	for _, c := range classes {
		if htb, ok := c.(*netlink.HtbClass); ok && htb.Handle == shapeClass {
			return &Shape{Rate: htb.Rate, Peak: htb.Ceil}, nil
		}
	}
	return nil, nil
}
