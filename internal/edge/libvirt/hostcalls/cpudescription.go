package hostcalls

import (
	"slices"
	"strconv"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// CPUDescription is a client's description of a CPU: that of a host, with its architecture
// and all its features, or the requirements of a guest.
type CPUDescription struct {
	arch          string // "" in a guest's description
	match         string
	model, vendor string // "" if none is named
	features      []cpuFeature
}

// cpuFeature is a feature that a description names in addition to the model. In the
// description of a host every policy is "require".
type cpuFeature struct{ name, policy string }

// ofHost reports whether the description is of a host: only those name an architecture.
func (p CPUDescription) ofHost() bool { return p.arch != "" }

// CPUKind selects the CPUs that a client may describe in a call.
type CPUKind int

const (
	// AnyCPU allows the CPU of a host, with <arch>, and that of a guest.
	AnyCPU CPUKind = iota
	// HostCPU allows only the CPU of a host.
	HostCPU
)

// otherArchitectures are the architectures that libvirt knows, except those of x86.
var otherArchitectures = []string{
	"aarch64", "alpha", "armv6l", "armv7b", "armv7l", "cris", "itanium", "lm32", "loongarch64", "m68k", "microblaze", "microblazeel",
	"mips", "mips64", "mips64el", "mipsel", "or32", "parisc", "parisc64", "ppc", "ppc64", "ppc64le", "ppcemb", "riscv32", "riscv64",
	"s390", "s390x", "sh4", "sh4eb", "sparc", "sparc64", "tricore", "unicore32", "xtensa", "xtensaeb",
}

// isX86 reports whether an architecture is x86, with 32 or 64 bits.
func isX86(arch string) bool { return arch == "x86_64" || arch == "i686" }

// ParseCPU parses a description. Its errors have libvirt's codes.
func ParseCPU(doc string, kind CPUKind) (CPUDescription, error) {
	var p CPUDescription
	root, err := xmltree.Parse(doc)
	if err != nil {
		return p, rpc.WithCode(rpc.CodeXMLDetail, err)
	}
	if root.Name != "cpu" {
		return p, errBadCPU("XML does not contain expected 'cpu' element: the root is '%s'", root.Name)
	}
	host := kind == HostCPU || len(root.Elements("arch")) > 0
	p.model, p.vendor = root.Child("model").Text(), root.Child("vendor").Text()
	if host {
		err = p.parseHost(root, kind)
	} else {
		err = p.parseGuest(root)
	}
	if err != nil {
		return p, err
	}
	if p.vendor != "" && p.model == "" {
		return p, errBadCPU("CPU vendor specified without CPU model")
	}
	if topology := root.Child("topology"); topology != nil {
		for _, name := range []string{"sockets", "cores", "threads"} {
			if n, err := strconv.ParseUint(topology.Attr(name), 10, 32); err != nil || n == 0 {
				return p, errBadCPU("invalid value for attribute '%s' in element 'topology': %q", name, topology.Attr(name))
			}
		}
	}
	return p, p.parseFeatures(root, host)
}

// validateCPU refuses attributes and elements that a description of a CPU does not have.
func validateCPU(doc string) error {
	root, err := xmltree.Parse(doc)
	if err != nil {
		return rpc.WithCode(rpc.CodeXMLDetail, err)
	}
	for _, a := range root.Attrs {
		if a.Prefix == "" && !slices.Contains([]string{"mode", "match", "check", "migratable", "deprecated_features"}, a.Name) {
			return rpc.WithCode(rpc.CodeXMLSchema, errBadCPU("element 'cpu' has no attribute '%s'", a.Name))
		}
	}
	for _, e := range root.Elements() {
		if !slices.Contains([]string{
			"arch", "cache", "counter", "feature", "maxphysaddr", "microcode", "model", "numa", "pages", "signature", "topology", "vendor",
		}, e.Name) {
			return rpc.WithCode(rpc.CodeXMLSchema, errBadCPU("element 'cpu' has no element '%s'", e.Name))
		}
	}
	return nil
}

// errBadCPU makes an error about the form of a description.
func errBadCPU(format string, args ...any) error {
	return fault.New(fault.Invalid, fault.XML, format, args...)
}

// errUnsupportedCPU makes an error about the content of a description.
func errUnsupportedCPU(format string, args ...any) error {
	return fault.New(fault.Unsupported, fault.Config, format, args...)
}

var errMigratable = errUnsupportedCPU("attribute migratable is only allowed for 'host-passthrough' / 'maximum' CPU mode")

func (p *CPUDescription) parseHost(root *xmltree.Element, kind CPUKind) error {
	if kind == AnyCPU && hasAttr(root, "match") {
		return errBadCPU("'arch' element cannot be used inside 'cpu' element with 'match' attribute")
	}
	if hasAttr(root, "mode") {
		return errUnsupportedCPU("attribute mode is only allowed for guest CPU")
	}
	if hasAttr(root, "migratable") {
		return errMigratable
	}
	switch p.arch = root.Child("arch").Text(); {
	case p.arch == "":
		return errBadCPU("missing CPU architecture: name one in <arch>, as capabilities do")
	case !isX86(p.arch) && !slices.Contains(otherArchitectures, p.arch):
		return errUnsupportedCPU("unknown architecture %s", p.arch)
	case p.model == "":
		return errBadCPU("missing CPU model name")
	}
	return nil
}

func (p *CPUDescription) parseGuest(root *xmltree.Element) error {
	mode := root.Attr("mode")
	whole := mode == "host-passthrough" || mode == "maximum"
	switch p.match = root.Attr("match"); {
	case hasAttr(root, "mode") && !whole && mode != "custom" && mode != "host-model":
		return errUnsupportedCPU("invalid mode attribute '%s'", mode)
	case hasAttr(root, "migratable") && !whole:
		return errMigratable
	case hasAttr(root, "match") && !slices.Contains([]string{"minimum", "exact", "strict"}, p.match):
		return errBadCPU("invalid value for attribute 'match' in element 'cpu': '%s'", p.match)
	case p.model == "" && len(root.Elements("feature")) > 0 && (mode == "" || mode == "custom"):
		return errBadCPU("non-empty feature list specified without CPU model")
	case whole:
		return nil
	}
	model := root.Child("model")
	if fallback := model.Attr("fallback"); fallback != "" && fallback != "allow" && fallback != "forbid" {
		return errUnsupportedCPU("invalid fallback attribute '%s'", fallback)
	}
	if id := model.Attr("vendor_id"); id != "" && len(id) != vendorIDLength {
		return errBadCPU("vendor_id must be exactly %d characters long", vendorIDLength)
	}
	return nil
}

// vendorIDLength is the length of CPUID's vendor string, in bytes.
const vendorIDLength = 12

func (p *CPUDescription) parseFeatures(root *xmltree.Element, host bool) error {
	seen := map[string]bool{}
	for _, e := range root.Elements("feature") {
		f := cpuFeature{e.Attr("name"), "require"}
		if policy := e.Attr("policy"); hasAttr(e, "policy") && !host {
			f.policy = policy
		}
		switch {
		case !slices.Contains([]string{"require", "force", "optional", "disable", "forbid"}, f.policy):
			return errUnsupportedCPU("invalid CPU feature policy '%s'", f.policy)
		case f.name == "":
			return errBadCPU("invalid CPU feature name")
		case seen[f.name]:
			return errBadCPU("CPU feature '%s' specified more than once", f.name)
		}
		seen[f.name] = true
		p.features = append(p.features, f)
	}
	return nil
}

func hasAttr(e *xmltree.Element, name string) bool {
	return slices.ContainsFunc(e.Attrs, func(a xmltree.Attr) bool { return a.Name == name && a.Prefix == "" })
}
