package volume

import (
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"libvirt.org/go/libvirtxml"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/host/volume/blockdev"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// element makes an element with children in order; nil children are left out.
func element(name string, children ...*xmltree.Element) *xmltree.Element {
	e := &xmltree.Element{Name: name}
	for _, c := range children {
		if c != nil {
			e.Children = append(e.Children, c)
		}
	}
	return e
}

func textElement(name, text string) *xmltree.Element {
	return &xmltree.Element{Name: name, Children: []xmltree.Node{xmltree.Text(text)}}
}

func (f attribute) on(e *xmltree.Element) *xmltree.Element {
	e.Attrs = append(e.Attrs, xmltree.Attr{Name: f.name, Value: f.value})
	return e
}

// attribute is an attribute to add.
type attribute struct{ name, value string }

func bytesElement(name string, n uint64) *xmltree.Element {
	return attribute{"unit", "bytes"}.on(textElement(name, strconv.FormatUint(n, 10)))
}

func typedElement(name, kind string) *xmltree.Element {
	return attribute{"type", kind}.on(element(name))
}

func (p permissions) element() *xmltree.Element {
	if p == noPermissions {
		return nil
	}
	e := element("permissions")
	if p.mode >= 0 {
		e.Children = append(e.Children, textElement("mode", fmt.Sprintf("0%o", p.mode)))
	}
	if p.owner >= 0 {
		e.Children = append(e.Children, textElement("owner", strconv.Itoa(p.owner)))
	}
	if p.group >= 0 {
		e.Children = append(e.Children, textElement("group", strconv.Itoa(p.group)))
	}
	return e
}

// supported returns all three elements, for comparison with the submitted document.
func (p permissions) supported() *xmltree.Element {
	return element("permissions", textElement("mode", "0"), textElement("owner", "0"), textElement("group", "0"))
}

// space is the size of a pool, in bytes.
type space struct {
	capacity, allocation, available uint64
	free                            []blockdev.Extent // disk: free extents for partitions
}

// document returns the definition's XML in libvirt's order.
func (d *definition) document(s space) *xmltree.Element {
	return attribute{"type", string(d.kind)}.on(element("pool", textElement("name", d.name), textElement("uuid", d.uuid),
		bytesElement("capacity", s.capacity), bytesElement("allocation", s.allocation), bytesElement("available", s.available),
		d.featuresElement(), d.sourceElement(s.free), element("target", textElement("path", d.target), d.perms.element())))
}

// supported returns every supported element, for comparison. Values do not matter there.
func (d *definition) supported() *xmltree.Element {
	return attribute{"type", string(d.kind)}.on(element("pool", textElement("name", d.name), textElement("uuid", d.uuid), d.sourceElement(nil),
		(&definition{copyOnWrite: "no"}).featuresElement(), element("target", textElement("path", d.target), d.perms.supported())))
}

// featuresElement says whether files in the pool's folder are copied on write; nil if that is not set.
func (d *definition) featuresElement() *xmltree.Element {
	if d.copyOnWrite == "" {
		return nil
	}
	return element("features", attribute{"state", d.copyOnWrite}.on(element("cow")))
}

func (d *definition) sourceElement(free []blockdev.Extent) *xmltree.Element {
	source := element("source")
	switch d.kind {
	case FS:
		source = element("source", attribute{"path", d.device}.on(element("device")), typedElement("format", d.format))
	case NetFS:
		source = element("source", attribute{"name", d.host}.on(element("host")), attribute{"path", d.dir}.on(element("dir")), typedElement("format", d.format))
		if d.protocol != "" {
			source.Children = append(source.Children, attribute{"ver", d.protocol}.on(element("protocol")))
		}
	case Logical:
		for _, device := range d.devices {
			source.Children = append(source.Children, attribute{"path", device}.on(element("device")))
		}
		source.Children = append(source.Children, textElement("name", d.group), typedElement("format", d.format))
	case Disk:
		device := attribute{"path", d.device}.on(element("device"))
		for _, e := range free {
			device.Children = append(device.Children, extentElement("freeExtent", e))
		}
		source = element("source", device, typedElement("format", d.format))
	case Dir:
		// libvirt prints an empty source on two lines.
		source.Children = []xmltree.Node{xmltree.Text("\n  ")}
	}
	return source
}

func extentElement(name string, e blockdev.Extent) *xmltree.Element {
	return attribute{"end", strconv.FormatUint(e.End, 10)}.on(attribute{"start", strconv.FormatUint(e.Start, 10)}.on(element(name)))
}

// source is the place of a volume on block devices; nil for a file.
func (v *Volume) source() *xmltree.Element {
	if len(v.extents) == 0 {
		return nil
	}
	source := element("source")
	var device *xmltree.Element
	for _, e := range v.extents {
		if device == nil || device.Attr("path") != e.Device {
			device = attribute{"path", e.Device}.on(element("device"))
			source.Children = append(source.Children, device)
		}
		device.Children = append(device.Children, extentElement("extent", e))
	}
	return source
}

// format is the format of an image or the type of a partition; nil for a logical volume, which has neither.
func (v *Volume) format() *xmltree.Element {
	switch {
	case v.usage != "":
		return typedElement("format", v.usage)
	case v.extents != nil:
		return nil
	}
	if v.Format == image.LUKS {
		return typedElement("format", string(image.Raw))
	}
	return typedElement("format", string(v.Format))
}

// Paths in documents that request nothing. They report state, so that a dumped document can be submitted
// again, or libvirt ignores them.
var (
	poolStatus = map[string]bool{
		"capacity": true, "allocation": true, "available": true, "source/device/freeExtent": true,
		"target/permissions/label": true, "source/vendor": true, "source/product": true,
	}
	volumeStatus = map[string]bool{
		"@type": true, "key": true, "physical": true, "source": true,
		"target/path": true, "target/timestamps": true, "target/permissions/label": true,
		"backingStore/permissions": true, "backingStore/timestamps": true,
	}
)

// sourceParts are the children of a pool's source.
var sourceParts = []string{"host", "device", "dir", "adapter", "name", "initiator", "format", "auth", "protocol"}

// ignoredPaths returns poolStatus, and the children of the source that a pool of this type ignores.
func (d *definition) ignoredPaths() map[string]bool {
	used := map[Type][]string{
		FS: {"device", "format"}, NetFS: {"host", "dir", "format", "protocol", "auth"}, Logical: {"name", "device", "format"}, Disk: {"device", "format"},
	}[d.kind]
	paths := maps.Clone(poolStatus)
	for _, part := range sourceParts {
		if !slices.Contains(used, part) {
			paths["source/"+part] = true
		}
	}
	if d.kind == NetFS {
		paths["source/host/@port"] = true
	}
	return paths
}

// refuseIgnored refuses, by name, elements that libvirt knows and this package did not read. With validate it
// also refuses elements that libvirt does not know.
func refuseIgnored(submitted, understood *xmltree.Element, into libvirtxml.Document, validate bool, status map[string]bool) error {
	unread := withoutStatus(xmltree.Unknown(submitted, understood), status)
	if len(unread) == 0 {
		return nil
	}
	if err := submitted.Unmarshal(into); err != nil {
		return err
	}
	text, err := into.Marshal()
	if err != nil {
		return fault.Wrap(err, fault.Internal, fault.XML, "cannot compare document")
	}
	known, err := xmltree.Parse(text)
	if err != nil {
		return err
	}
	if lost := withoutStatus(xmltree.Unbuilt(withoutEmpty(submitted), known, understood), status); len(lost) > 0 {
		return fault.New(fault.Unsupported, fault.Config, "not supported: %s", strings.Join(lost, ", "))
	}
	if unknown := withoutStatus(xmltree.Unknown(submitted, known), status); validate && len(unknown) > 0 {
		return fault.New(fault.Invalid, fault.XML, "document failed to validate: unknown %s", strings.Join(unknown, ", "))
	}
	return nil
}

// withoutEmpty returns a document without the empty elements at its top.
func withoutEmpty(root *xmltree.Element) *xmltree.Element {
	out := *root
	out.Children = slices.DeleteFunc(slices.Clone(root.Children), func(n xmltree.Node) bool {
		e, ok := n.(*xmltree.Element)
		return ok && !e.Says()
	})
	return &out
}

// siblingIndex matches the index of an element among its siblings, in a path.
var siblingIndex = regexp.MustCompile(`\[[0-9]+\]`)

// withoutStatus removes the paths of a status and the paths below them.
func withoutStatus(paths []string, status map[string]bool) []string {
	return slices.DeleteFunc(paths, func(path string) bool {
		for p := siblingIndex.ReplaceAllString(path, ""); p != "."; p = filepath.Dir(p) {
			if status[p] {
				return true
			}
		}
		return false
	})
}

// document returns a volume's XML in libvirt's order.
func (v *Volume) document() *xmltree.Element {
	target := element("target", textElement("path", v.Path), v.format(), v.perms.element(), v.times(), v.encryptionElement())
	if v.Compat != "" {
		target.Children = append(target.Children, textElement("compat", v.Compat))
	}
	if v.ClusterSize != 0 {
		target.Children = append(target.Children, attribute{"unit", "B"}.on(textElement("clusterSize", strconv.FormatUint(v.ClusterSize, 10))))
	}
	if v.Compat == "1.1" {
		target.Children = append(target.Children, features(v.LazyRefcounts, v.ExtendedL2))
	}
	root := attribute{"type", string(v.Kind)}.on(element("volume",
		textElement("name", v.Name), textElement("key", v.Key()), v.source(),
		bytesElement("capacity", v.Virtual), bytesElement("allocation", v.Allocated), bytesElement("physical", v.Physical), target))
	if v.Backing != nil {
		root.Children = append(root.Children, v.backing())
	}
	return root
}

func features(lazy, extended bool) *xmltree.Element {
	e := element("features")
	if lazy {
		e.Children = append(e.Children, element("lazy_refcounts"))
	}
	if extended {
		e.Children = append(e.Children, element("extended_l2"))
	}
	return e
}

// backing is the backing file, as the header names it. A format that is not declared is not shown, because no
// client should trust it.
func (v *Volume) backing() *xmltree.Element {
	path := v.Backing.Name
	if v.backingPath != "" {
		path = v.backingPath
	}
	e := element("backingStore", textElement("path", path))
	if v.Backing.Format != "" {
		e.Children = append(e.Children, typedElement("format", string(v.Backing.Format)))
	}
	return e
}

func (v *Volume) times() *xmltree.Element {
	e := element("timestamps")
	for _, t := range []struct {
		name string
		at   unix.StatxTimestamp
	}{{"atime", v.atime}, {"mtime", v.mtime}, {"ctime", v.ctime}, {"btime", v.btime}} {
		text := strconv.FormatInt(t.at.Sec, 10)
		if t.at.Nsec != 0 {
			text = fmt.Sprintf("%d.%09d", t.at.Sec, t.at.Nsec)
		}
		e.Children = append(e.Children, textElement(t.name, text))
	}
	return e
}
