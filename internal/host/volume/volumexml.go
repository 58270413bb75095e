package volume

import (
	"math/bits"
	"regexp"
	"strconv"
	"strings"

	"libvirt.org/go/libvirtxml"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// volumeRequest is the parsed document of a requested volume.
type volumeRequest struct {
	name                 string
	capacity, allocation *uint64 // bytes; nil if the document has none
	format               image.Format
	perms                permissions
	compat               string
	clusterSize          uint64
	lazy, extended       bool
	noCOW                bool
	backing              *image.Backing
	encryption           *encryption
}

// defaultMode is the mode of a volume's file: it holds a guest's data.
const defaultMode = 0o600

func parseVolume(doc string, validate bool) (*volumeRequest, error) {
	root, err := xmltree.Parse(doc)
	if err != nil {
		return nil, err
	}
	if root.Name != "volume" {
		return nil, fault.New(fault.Invalid, fault.XML, "the root is <%s>, not <volume>", root.Name)
	}
	target := root.Child("target")
	w := &volumeRequest{name: root.Child("name").Text(), format: image.Format(attr(target.Child("format"), "type")), compat: target.Child("compat").Text()}
	if err := checkName(fault.Volume, w.name); err != nil {
		return nil, err
	}
	if w.format == "" {
		w.format = image.Raw
	}
	if w.capacity, err = readSize(root.Child("capacity")); err != nil {
		return nil, err
	}
	if w.allocation, err = readSize(root.Child("allocation")); err != nil {
		return nil, err
	}
	if w.perms, err = readPermissions(target.Child("permissions")); err != nil {
		return nil, err
	}
	cluster, err := readSize(target.Child("clusterSize"))
	if err != nil {
		return nil, err
	}
	if cluster != nil {
		w.clusterSize = *cluster
	}
	if err := w.readEncryption(target.Child("encryption")); err != nil {
		return nil, err
	}
	if err := w.readFeatures(target.Child("features")); err != nil {
		return nil, err
	}
	w.noCOW = target.Child("nocow") != nil
	if backing := root.Child("backingStore"); backing != nil && backing.Child("path").Text() != "" {
		path, err := cleanPath(backing.Child("path").Text())
		if err != nil {
			return nil, fault.Wrap(err, fault.Invalid, fault.XML, "volume %q has no usable backing store", w.name)
		}
		w.backing = &image.Backing{Name: path, Format: image.Format(attr(backing.Child("format"), "type"))}
	}
	return w, refuseIgnored(root, w.supported(), &libvirtxml.StorageVolume{}, validate, volumeStatus)
}

// compatVersion matches versions of image formats.
var compatVersion = regexp.MustCompile(`^([0-9]+\.[0-9]+)?$`)

// readFeatures parses the features of an image. A raw image has no features, version or clusters: libvirt
// ignores them there, and clients such as kcli send them with every volume.
func (w *volumeRequest) readFeatures(features *xmltree.Element) error {
	if !compatVersion.MatchString(w.compat) {
		return fault.New(fault.Invalid, fault.XML, "compat %q is not a version", w.compat)
	}
	if features != nil {
		for _, e := range features.Elements() {
			switch e.Name {
			case "lazy_refcounts":
				w.lazy = true
			case "extended_l2":
				w.extended = true
			default:
				return fault.New(fault.Unsupported, fault.Config, "the feature %q of a volume is not supported", e.Name)
			}
		}
	}
	if w.format == image.Raw {
		w.compat, w.clusterSize, w.lazy, w.extended = "", 0, false, false
	}
	return nil
}

// supported returns every supported element, for comparison. Values do not matter there.
func (w *volumeRequest) supported() *xmltree.Element {
	target := element("target", typedElement("format", string(w.format)), w.perms.supported(), textElement("compat", "1.1"),
		bytesElement("clusterSize", w.clusterSize), features(true, true), element("nocow"), supportedEncryption())
	return element("volume", textElement("name", w.name), bytesElement("capacity", 0), bytesElement("allocation", 0), target,
		element("backingStore", textElement("path", "/"), typedElement("format", "")))
}

// unitPrefixes are the unit prefixes of sizes, in rising order.
const unitPrefixes = "kmgtpe"

// readSize parses a size with its unit: bytes, K or KiB (1024), KB (1000) and so on.
func readSize(e *xmltree.Element) (*uint64, error) {
	text := strings.TrimSpace(e.Text())
	if text == "" {
		return nil, nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return nil, fault.New(fault.Invalid, fault.XML, "%s %q is not a number of bytes", e.Name, text)
	}
	factor, err := unitFactor(e.Attr("unit"))
	if err != nil {
		return nil, err
	}
	over, bytes := bits.Mul64(n, factor)
	if over != 0 || bytes > 1<<63-1 {
		return nil, fault.New(fault.Invalid, fault.XML, "%s of %s %s exceeds the maximum size of a disk", e.Name, text, e.Attr("unit"))
	}
	return &bytes, nil
}

func unitFactor(unit string) (uint64, error) {
	u := strings.ToLower(unit)
	switch u {
	case "", "b", "byte", "bytes":
		return 1, nil
	}
	power := strings.IndexByte(unitPrefixes, u[0]) + 1
	base := map[string]uint64{"": 1024, "ib": 1024, "b": 1000}[u[1:]]
	if power == 0 || base == 0 {
		return 0, fault.New(fault.Invalid, fault.XML, "unknown unit %q", unit)
	}
	factor := uint64(1)
	for range power {
		factor *= base
	}
	return factor, nil
}
