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

// validXMLText removes characters that XML does not allow: a device may have any name.
func validXMLText(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\t' && r != '\n' || r == 0xfffe || r == 0xffff {
			return -1
		}
		return r
	}, strings.ToValidUTF8(text, "\ufffd"))
}

// element makes an element. Attributes are pairs of name and value; one with an empty
// value is left out.
func element(name string, attrs ...string) *xmltree.Element {
	e := &xmltree.Element{Name: name}
	for i := 0; i < len(attrs); i += 2 {
		if attrs[i+1] != "" {
			e.Attrs = append(e.Attrs, xmltree.Attr{Name: attrs[i], Value: validXMLText(attrs[i+1])})
		}
	}
	return e
}

// textElement makes an element with a text; nil without a text.
func textElement(name, text string, attrs ...string) *xmltree.Element {
	if text == "" {
		return nil
	}
	return appendNodes(element(name, attrs...), xmltree.Text(validXMLText(text)))
}

// numberElement is textElement for a number.
func numberElement[N int | uint | uint64](name string, n N) *xmltree.Element {
	return textElement(name, fmt.Sprint(n))
}

// appendNodes appends nodes to an element, except nil elements.
func appendNodes(e *xmltree.Element, nodes ...xmltree.Node) *xmltree.Element {
	for _, n := range nodes {
		if child, ok := n.(*xmltree.Element); !ok || child != nil {
			e.Children = append(e.Children, n)
		}
	}
	return e
}

// capability makes the <capability> element of a device, or one inside of it.
func capability(kind resources.Kind, nodes ...xmltree.Node) *xmltree.Element {
	return appendNodes(element("capability", "type", string(kind)), nodes...)
}

// DescribeDevice writes a node device as XML.
func DescribeDevice(d *resources.Device) (string, error) {
	doc := appendNodes(element("device"), textElement("name", d.Name), textElement("path", d.Path), textElement("devnode", d.Node, "type", "dev"))
	for _, link := range d.Links {
		appendNodes(doc, textElement("devnode", link, "type", "link"))
	}
	appendNodes(doc, textElement("parent", d.Parent))
	if d.Driver != "" {
		appendNodes(doc, appendNodes(element("driver"), textElement("name", d.Driver)))
	}
	return xmltree.Format(appendNodes(doc, describeCapability(d)))
}

func describeCapability(d *resources.Device) *xmltree.Element {
	switch {
	case d.PCI != nil:
		return describePCI(d)
	case d.USB != nil:
		return capability(resources.USB,
			numberElement("bus", d.USB.Bus), numberElement("device", d.USB.Device),
			idElement("product", uint64(d.USB.Product), d.ProductName), idElement("vendor", uint64(d.USB.Vendor), d.VendorName))
	case d.USBInterface != nil:
		u := d.USBInterface
		return capability(resources.USBInterface,
			numberElement("number", u.Number), numberElement("class", u.Class), numberElement("subclass", u.Subclass), numberElement("protocol", u.Protocol),
			textElement("description", u.Description))
	case d.Net != nil:
		return describeNet(d.Net)
	case d.SCSIHost != nil:
		return describeSCSIHost(d)
	case d.SCSITarget != nil:
		return capability(resources.SCSITarget, textElement("target", d.SCSITarget.Name))
	case d.SCSI != nil:
		u := d.SCSI
		return capability(resources.SCSI,
			numberElement("host", u.Host), numberElement("bus", u.Bus), numberElement("target", u.Target), numberElement("lun", u.LUN), textElement("type", u.Kind))
	case d.Storage != nil:
		return describeStorage(d.Storage)
	case d.DRM != nil:
		return capability(resources.DRM, textElement("type", d.DRM.Kind))
	}
	return describeSystem(d.Firmware)
}

func describeSystem(d *kernel.DMI) *xmltree.Element {
	if d == nil {
		d = &kernel.DMI{UUID: uuid.UUID{}.String()} // clients need the element
	}
	return capability(resources.System, textElement("product", d.Product),
		appendNodes(element("hardware"), textElement("vendor", d.Vendor), textElement("version", d.Version), textElement("serial", d.Serial), textElement("uuid", d.UUID)),
		appendNodes(element("firmware"), textElement("vendor", d.BIOSVendor), textElement("version", d.BIOSVersion), textElement("release_date", d.BIOSDate)))
}

// idElement makes an element with a vendor's or product's number, and its name if that is known.
func idElement(tag string, id uint64, name string) *xmltree.Element {
	e := element(tag, "id", fmt.Sprintf("0x%04x", id))
	if name != "" {
		appendNodes(e, xmltree.Text(validXMLText(name)))
	}
	return e
}

func describePCI(d *resources.Device) *xmltree.Element {
	p := d.PCI
	c := capability(resources.PCI,
		textElement("class", fmt.Sprintf("0x%06x", p.Class)),
		numberElement("domain", p.Address.Domain), numberElement("bus", p.Address.Bus), numberElement("slot", p.Address.Slot), numberElement("function", p.Address.Function),
		idElement("product", uint64(p.Device), d.ProductName), idElement("vendor", uint64(p.Vendor), d.VendorName))
	if p.PhysicalFunction != nil {
		appendNodes(c, capability("phys_function", pciAddress(*p.PhysicalFunction)))
	}
	if p.MaxVirtualFunctions > 0 {
		functions := element("capability", "type", "virt_functions", "maxCount", strconv.Itoa(p.MaxVirtualFunctions))
		appendNodes(c, withAddresses(functions, p.VirtualFunctions))
	}
	if p.Bridge {
		appendNodes(c, capability("pci-bridge"))
	}
	if p.IOMMUGroup >= 0 {
		appendNodes(c, withAddresses(element("iommuGroup", "number", strconv.Itoa(p.IOMMUGroup)), p.IOMMUPeers))
	}
	if p.Node >= 0 {
		appendNodes(c, element("numa", "node", strconv.Itoa(p.Node)))
	}
	if p.Link != nil {
		appendNodes(c, describeLink(p.Link))
	}
	return c
}

func withAddresses(e *xmltree.Element, addresses []kernel.PCIAddress) *xmltree.Element {
	for _, a := range addresses {
		appendNodes(e, pciAddress(a))
	}
	return e
}

func pciAddress(a kernel.PCIAddress) *xmltree.Element {
	return element("address",
		"domain", fmt.Sprintf("0x%04x", a.Domain), "bus", fmt.Sprintf("0x%02x", a.Bus),
		"slot", fmt.Sprintf("0x%02x", a.Slot), "function", fmt.Sprintf("0x%x", a.Function))
}

// describeLink returns the link's capabilities, and its current speed and width if it is up.
func describeLink(l *kernel.PCILink) *xmltree.Element {
	speed := func(s float64) string {
		if s == 0 {
			return ""
		}
		return strconv.FormatFloat(s, 'g', -1, 64)
	}
	width := func(w uint) string { return strconv.FormatUint(uint64(w), 10) }
	e := element("pci-express")
	if l.MaxWidth > 0 {
		appendNodes(e, element("link", "validity", "cap", "port", width(l.Port), "speed", speed(l.MaxSpeed), "width", width(l.MaxWidth)))
	}
	if l.Width > 0 {
		appendNodes(e, element("link", "validity", "sta", "speed", speed(l.Speed), "width", width(l.Width)))
	}
	return e
}

func describeNet(n *kernel.NetDevice) *xmltree.Element {
	mbps := ""
	if n.Mbps > 0 {
		mbps = strconv.FormatUint(uint64(n.Mbps), 10)
	}
	c := capability(resources.Net, textElement("interface", n.Name), textElement("address", n.MAC), element("link", "speed", mbps, "state", n.State))
	for _, f := range n.Features {
		appendNodes(c, element("feature", "name", f))
	}
	if n.Wireless {
		return appendNodes(c, capability("80211"))
	}
	return appendNodes(c, capability("80203"))
}

func describeSCSIHost(d *resources.Device) *xmltree.Element {
	h := d.SCSIHost
	c := capability(resources.SCSIHost, numberElement("host", h.Number))
	if h.UniqueID >= 0 {
		appendNodes(c, numberElement("unique_id", h.UniqueID))
	}
	if d.Is(resources.FCHost) {
		appendNodes(c, capability(resources.FCHost, textElement("wwnn", h.WWNN), textElement("wwpn", h.WWPN), textElement("fabric_wwn", h.FabricWWN)))
	}
	return c
}

// describeStorage: the size of a removable medium is in an element of its own, because it is not
// the drive's.
func describeStorage(b *kernel.BlockDevice) *xmltree.Element {
	c := capability(resources.Storage, textElement("block", b.Node), textElement("bus", b.Bus), textElement("drive_type", b.Kind),
		textElement("model", strings.TrimSpace(b.Model)), textElement("vendor", b.Vendor), textElement("serial", b.Serial))
	var size []xmltree.Node
	if b.LogicalBlockSize > 0 {
		size = []xmltree.Node{numberElement("logical_block_size", b.LogicalBlockSize), numberElement("num_blocks", b.Size/b.LogicalBlockSize)}
	}
	if !b.Removable {
		return appendNodes(appendNodes(c, numberElement("size", b.Size)), size...)
	}
	available := 0
	if b.Size > 0 {
		available = 1
	}
	medium := capability("removable", numberElement("media_available", available), numberElement("media_size", b.Size))
	return appendNodes(c, appendNodes(medium, size...))
}
