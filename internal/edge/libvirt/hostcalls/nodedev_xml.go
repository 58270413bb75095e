package hostcalls

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/lodge-kvm/lodge/internal/host/resources"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// legible removes characters that XML cannot carry: a device may have any name.
func legible(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\t' && r != '\n' || r == 0xfffe || r == 0xffff {
			return -1
		}
		return r
	}, strings.ToValidUTF8(text, "\ufffd"))
}

// tag makes an element. Attributes are names and values in turn; one without a
// value is left out.
func tag(name string, attrs ...string) *xmltree.Element {
	e := &xmltree.Element{Name: name}
	for i := 0; i < len(attrs); i += 2 {
		if attrs[i+1] != "" {
			e.Attrs = append(e.Attrs, xmltree.Attr{Name: attrs[i], Value: legible(attrs[i+1])})
		}
	}
	return e
}

// leaf makes an element with a text, or nothing when there is no text.
func leaf(name, text string, attrs ...string) *xmltree.Element {
	if text == "" {
		return nil
	}
	return within(tag(name, attrs...), xmltree.Text(legible(text)))
}

// number is leaf for a number.
func number[N int | uint | uint64](name string, n N) *xmltree.Element {
	return leaf(name, fmt.Sprint(n))
}

// within puts nodes into an element, leaving out elements that are nothing.
func within(e *xmltree.Element, nodes ...xmltree.Node) *xmltree.Element {
	for _, n := range nodes {
		if child, ok := n.(*xmltree.Element); !ok || child != nil {
			e.Children = append(e.Children, n)
		}
	}
	return e
}

// capability makes the element for a device's kind, or for a further capability of it.
func capability(kind resources.Kind, nodes ...xmltree.Node) *xmltree.Element {
	return within(tag("capability", "type", string(kind)), nodes...)
}

// DescribeDevice makes a device's document.
func DescribeDevice(d *resources.Device) (string, error) {
	doc := within(tag("device"), leaf("name", d.Name), leaf("path", d.Path), leaf("devnode", d.Node, "type", "dev"))
	for _, link := range d.Links {
		within(doc, leaf("devnode", link, "type", "link"))
	}
	within(doc, leaf("parent", d.Parent))
	if d.Driver != "" {
		within(doc, within(tag("driver"), leaf("name", d.Driver)))
	}
	return xmltree.Format(within(doc, describeNature(d)))
}

func describeNature(d *resources.Device) *xmltree.Element {
	switch {
	case d.PCI != nil:
		return describePCI(d)
	case d.USB != nil:
		return capability(resources.USB,
			number("bus", d.USB.Bus), number("device", d.USB.Device),
			named("product", uint64(d.USB.Product), d.ProductName), named("vendor", uint64(d.USB.Vendor), d.VendorName))
	case d.USBInterface != nil:
		u := d.USBInterface
		return capability(resources.USBInterface,
			number("number", u.Number), number("class", u.Class), number("subclass", u.Subclass), number("protocol", u.Protocol),
			leaf("description", u.Description))
	case d.Net != nil:
		return describeNet(d.Net)
	case d.SCSIHost != nil:
		return describeSCSIHost(d)
	case d.SCSITarget != nil:
		return capability(resources.SCSITarget, leaf("target", d.SCSITarget.Name))
	case d.SCSI != nil:
		u := d.SCSI
		return capability(resources.SCSI,
			number("host", u.Host), number("bus", u.Bus), number("target", u.Target), number("lun", u.LUN), leaf("type", u.Kind))
	case d.Storage != nil:
		return describeStorage(d.Storage)
	case d.DRM != nil:
		return capability(resources.DRM, leaf("type", d.DRM.Kind))
	}
	return describeComputer(d.Firmware)
}

func describeComputer(d *kernel.DMI) *xmltree.Element {
	if d == nil {
		d = &kernel.DMI{UUID: uuid.UUID{}.String()} // clients count on one
	}
	return capability(resources.System, leaf("product", d.Product),
		within(tag("hardware"), leaf("vendor", d.Vendor), leaf("version", d.Version), leaf("serial", d.Serial), leaf("uuid", d.UUID)),
		within(tag("firmware"), leaf("vendor", d.BIOSVendor), leaf("version", d.BIOSVersion), leaf("release_date", d.BIOSDate)))
}

// named is an element with a hardware number, and the name of that, if any.
func named(element string, id uint64, name string) *xmltree.Element {
	e := tag(element, "id", fmt.Sprintf("0x%04x", id))
	if name != "" {
		within(e, xmltree.Text(legible(name)))
	}
	return e
}

func describePCI(d *resources.Device) *xmltree.Element {
	p := d.PCI
	c := capability(resources.PCI,
		leaf("class", fmt.Sprintf("0x%06x", p.Class)),
		number("domain", p.Address.Domain), number("bus", p.Address.Bus), number("slot", p.Address.Slot), number("function", p.Address.Function),
		named("product", uint64(p.Device), d.ProductName), named("vendor", uint64(p.Vendor), d.VendorName))
	if p.PhysicalFunction != nil {
		within(c, capability("phys_function", pciAddress(*p.PhysicalFunction)))
	}
	if p.MaxVirtualFunctions > 0 {
		functions := tag("capability", "type", "virt_functions", "maxCount", strconv.Itoa(p.MaxVirtualFunctions))
		within(c, withAddresses(functions, p.VirtualFunctions))
	}
	if p.Bridge {
		within(c, capability("pci-bridge"))
	}
	if p.IOMMUGroup >= 0 {
		within(c, withAddresses(tag("iommuGroup", "number", strconv.Itoa(p.IOMMUGroup)), p.IOMMUPeers))
	}
	if p.Node >= 0 {
		within(c, tag("numa", "node", strconv.Itoa(p.Node)))
	}
	if p.Link != nil {
		within(c, describeLink(p.Link))
	}
	return c
}

func withAddresses(e *xmltree.Element, addresses []kernel.PCIAddress) *xmltree.Element {
	for _, a := range addresses {
		within(e, pciAddress(a))
	}
	return e
}

func pciAddress(a kernel.PCIAddress) *xmltree.Element {
	return tag("address",
		"domain", fmt.Sprintf("0x%04x", a.Domain), "bus", fmt.Sprintf("0x%02x", a.Bus),
		"slot", fmt.Sprintf("0x%02x", a.Slot), "function", fmt.Sprintf("0x%x", a.Function))
}

// describeLink gives the link's capabilities, and its present speed and width if it is up.
func describeLink(l *kernel.PCILink) *xmltree.Element {
	speed := func(s float64) string {
		if s == 0 {
			return ""
		}
		return strconv.FormatFloat(s, 'g', -1, 64)
	}
	width := func(w uint) string { return strconv.FormatUint(uint64(w), 10) }
	e := tag("pci-express")
	if l.MaxWidth > 0 {
		within(e, tag("link", "validity", "cap", "port", width(l.Port), "speed", speed(l.MaxSpeed), "width", width(l.MaxWidth)))
	}
	if l.Width > 0 {
		within(e, tag("link", "validity", "sta", "speed", speed(l.Speed), "width", width(l.Width)))
	}
	return e
}

func describeNet(n *kernel.NetDevice) *xmltree.Element {
	mbps := ""
	if n.Mbps > 0 {
		mbps = strconv.FormatUint(uint64(n.Mbps), 10)
	}
	c := capability(resources.Net, leaf("interface", n.Name), leaf("address", n.MAC), tag("link", "speed", mbps, "state", n.State))
	for _, f := range n.Features {
		within(c, tag("feature", "name", f))
	}
	if n.Wireless {
		return within(c, capability("80211"))
	}
	return within(c, capability("80203"))
}

func describeSCSIHost(d *resources.Device) *xmltree.Element {
	h := d.SCSIHost
	c := capability(resources.SCSIHost, number("host", h.Number))
	if h.UniqueID >= 0 {
		within(c, number("unique_id", h.UniqueID))
	}
	if d.Is(resources.FCHost) {
		within(c, capability(resources.FCHost, leaf("wwnn", h.WWNN), leaf("wwpn", h.WWPN), leaf("fabric_wwn", h.FabricWWN)))
	}
	return c
}

// describeStorage puts the size of a medium that can be changed into an element
// of its own: it is the medium's, not the drive's.
func describeStorage(b *kernel.BlockDevice) *xmltree.Element {
	c := capability(resources.Storage, leaf("block", b.Node), leaf("bus", b.Bus), leaf("drive_type", b.Kind),
		leaf("model", strings.TrimSpace(b.Model)), leaf("vendor", b.Vendor), leaf("serial", b.Serial))
	var size []xmltree.Node
	if b.LogicalBlockSize > 0 {
		size = []xmltree.Node{number("logical_block_size", b.LogicalBlockSize), number("num_blocks", b.Size/b.LogicalBlockSize)}
	}
	if !b.Removable {
		return within(within(c, number("size", b.Size)), size...)
	}
	available := 0
	if b.Size > 0 {
		available = 1
	}
	medium := capability("removable", number("media_available", available), number("media_size", b.Size))
	return within(c, within(medium, size...))
}
