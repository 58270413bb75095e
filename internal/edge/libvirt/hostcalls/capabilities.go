package hostcalls

import (
	"context"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/host/resources"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemucaps"
	"github.com/lodge-kvm/lodge/internal/word/topology"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// CapabilityCalls report the host's capabilities and the features that guests may have.
func CapabilityCalls(g rpc.Group) {
	rpc.On(g, xdr.ProcConnectGetVersion, connectGetVersion)
	rpc.On(g, xdr.ProcConnectGetCapabilities, connectGetCapabilities)
	rpc.On(g, xdr.ProcConnectGetDomainCapabilities, connectGetDomainCapabilities)
	rpc.On(g, xdr.ProcConnectGetMaxVCPUs, connectGetMaxVCPUs)
	rpc.On(g, xdr.ProcConnectGetCPUModelNames, connectGetCPUModelNames)
}

// connectGetVersion returns QEMU's version, encoded as libvirt's own.
func connectGetVersion(ctx context.Context, h *rpc.Handlers, _ *rpc.Request, _ *rpc.Void) (*xdr.ConnectGetVersionRet, error) {
	caps, err := h.Emulators.Get(ctx, "")
	if err != nil {
		return nil, err
	}
	v := caps.Version
	return &xdr.ConnectGetVersionRet{Version: uint64(v.Major)*1_000_000 + uint64(v.Minor)*1000 + uint64(v.Micro)}, nil
}

// Accelerators are QEMU's names of the accelerators, by domain type.
var Accelerators = map[string]string{"kvm": "kvm", "qemu": "tcg"}

// domainTypes are the domain types, best first.
var domainTypes = []string{"kvm", "qemu"}

// PickAccelerator finds the accelerator for a domain type. Without a type, it is the best
// one that works on this host.
func PickAccelerator(caps *qemucaps.Capabilities, domainType string) (string, qemucaps.Accelerator, error) {
	for _, t := range domainTypes {
		if acc := caps.Accelerator(Accelerators[t]); t == domainType || domainType == "" && acc.Usable {
			if !acc.Usable {
				return "", acc, fault.New(fault.Invalid, fault.Call,
					"the accel '%s' is not supported by '%s' on this host: %s", acc.Name, caps.Binary.Path, acc.Reason)
			}
			return t, acc, nil
		}
	}
	if domainType == "" {
		return "", qemucaps.Accelerator{}, fault.New(fault.Unsupported, fault.Host, "'%s' can run no guest on this host", caps.Binary.Path)
	}
	return "", qemucaps.Accelerator{}, fault.New(fault.Invalid, fault.Call, "unknown type '%s'", domainType)
}

func connectGetMaxVCPUs(ctx context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.ConnectGetMaxVCPUsArgs) (*xdr.ConnectGetMaxVCPUsRet, error) {
	caps, err := h.Emulators.Get(ctx, "")
	if err != nil {
		return nil, err
	}
	if _, _, err := PickAccelerator(caps, rpc.StringValue(args.Type)); err != nil {
		return nil, err
	}
	machine, err := PickMachine(caps, "")
	return &xdr.ConnectGetMaxVCPUsRet{MaxVCPUs: int32(machine.MaxCPUs)}, err
}

func connectGetCPUModelNames(ctx context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.ConnectGetCPUModelNamesArgs) (*xdr.ConnectGetCPUModelNamesRet, error) {
	if err := rpc.CheckFlags("CONNECT_GET_CPU_MODEL_NAMES", args.Flags, 0); err != nil {
		return nil, err
	}
	caps, err := h.Emulators.Get(ctx, "")
	if err != nil {
		return nil, err
	}
	if args.Arch != caps.Arch && (!isX86(args.Arch) || !isX86(caps.Arch)) {
		return nil, fault.New(fault.Invalid, fault.Call, "cannot find processor models for architecture '%s': this host runs %s", args.Arch, caps.Arch)
	}
	_, acc, err := PickAccelerator(caps, "")
	if err != nil {
		return nil, err
	}
	var names []string
	for _, m := range namedModels(acc) {
		names = append(names, m.Name)
	}
	ret := &xdr.ConnectGetCPUModelNamesRet{Count: int32(len(names))}
	if args.NeedResults {
		ret.Models = names
	}
	return ret, nil
}

// versionedModel matches the name of one version of a model; the name without the version
// stands for the one that fits the machine type.
var versionedModel = regexp.MustCompile(`-v[0-9]+$`)

// namedModels returns the CPU models that a definition may name.
func namedModels(acc qemucaps.Accelerator) []qemucaps.CPUModel {
	special := []string{"base", "host", "max"}
	return slices.DeleteFunc(slices.Clone(acc.Models), func(m qemucaps.CPUModel) bool {
		return versionedModel.MatchString(m.Name) || slices.Contains(special, m.Name)
	})
}

// CPUVendors maps CPUID's vendor string to libvirt's name of the vendor.
var CPUVendors = map[string]string{"GenuineIntel": "Intel", "AuthenticAMD": "AMD", "HygonGenuine": "Hygon"}

// featureNames are libvirt's names of the few features that have another name
// in QEMU.
var featureNames = map[string]string{
	"cmp-legacy": "cmp_legacy", "ds-cpl": "ds_cpl", "fxsr-opt": "fxsr_opt", "lahf-lm": "lahf_lm", "nodeid-msr": "nodeid_msr",
	"pclmulqdq": "pclmuldq", "perfctr-core": "perfctr_core", "perfctr-nb": "perfctr_nb", "tsc-adjust": "tsc_adjust",
}

// cpuFeatures returns libvirt's names of CPU features. It leaves out those that are not
// of a CPU, but of QEMU or KVM.
func cpuFeatures(qemuNames []string) []string {
	var names []string
	for _, name := range qemuNames {
		switch {
		case strings.HasPrefix(name, "kvm"), strings.HasPrefix(name, "hv-"), strings.HasPrefix(name, "x-"):
		case featureNames[name] != "":
			names = append(names, featureNames[name])
		default:
			names = append(names, name)
		}
	}
	return names
}

func connectGetCapabilities(ctx context.Context, h *rpc.Handlers, _ *rpc.Request, _ *rpc.Void) (*xdr.ConnectGetCapabilitiesRet, error) {
	caps, err := h.Emulators.Get(ctx, "")
	if err != nil {
		return nil, err
	}
	guests := []*qemucaps.Capabilities{caps}
	if other := h.Emulators.Serving("i686"); other != caps.Binary.Path {
		if c, err := h.Emulators.Get(ctx, other); err == nil { // a binary that cannot be probed runs no guest
			guests = append(guests, c)
		}
	}
	doc, err := rpc.RunFair(ctx, func() (string, error) {
		e := appendNodes(element("capabilities"), describeHost(h.Host.Facts(), caps, provision.SecurityModels(h.Guests)))
		for _, c := range guests {
			appendNodes(e, DescribeGuests(c))
		}
		return xmltree.Format(e)
	})
	return &xdr.ConnectGetCapabilitiesRet{Capabilities: doc}, err
}

func describeHost(facts *resources.Facts, caps *qemucaps.Capabilities, models []provision.SecurityModel) *xmltree.Element {
	id := facts.UUID.String()
	if facts.UUID == (uuid.UUID{}) {
		id = ""
	}
	about := appendNodes(element("host"),
		textElement("uuid", id), DescribeHostCPU(facts, caps), element("power_management"), element("iommu", "support", yesNo(facts.IOMMU)),
		appendNodes(element("topology"), DescribeCells(facts.Topology.Cells)), describeCaches(facts.Topology.Caches))
	if len(models) == 0 {
		models = []provision.SecurityModel{{Name: "none", DOI: "0"}}
	}
	for _, m := range models {
		appendNodes(about, describeModel(m))
	}
	return about
}

// describeModel describes a security model that separates guests.
func describeModel(m provision.SecurityModel) *xmltree.Element {
	e := appendNodes(element("secmodel"), textElement("model", m.Name), textElement("doi", m.DOI))
	for _, kind := range slices.Sorted(maps.Keys(m.Base)) {
		appendNodes(e, textElement("baselabel", m.Base[kind], "type", kind))
	}
	return e
}

// yesNo returns a boolean as libvirt's XML has it.
func yesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}

// DescribeHostCPU describes the host's CPU: the nearest model, and the features that
// it has in addition.
func DescribeHostCPU(facts *resources.Facts, caps *qemucaps.Capabilities) *xmltree.Element {
	cpu, shape, p := facts.CPU, facts.Topology.Shape(), HostCPUOf(facts, caps)
	e := appendNodes(element("cpu"), textElement("arch", facts.Arch))
	model, found := CatalogueOf(caps).Nearest(p, true, nil)
	if found {
		appendNodes(e, textElement("model", model.Name))
	}
	appendNodes(e, textElement("vendor", p.Vendor))
	if cpu.Microcode != 0 {
		appendNodes(e, element("microcode", "version", strconv.FormatUint(cpu.Microcode, 10)))
	}
	if cpu.Family >= 0 {
		appendNodes(e, element("signature", "family", strconv.Itoa(cpu.Family), "model", strconv.Itoa(cpu.ModelNumber), "stepping", strconv.Itoa(cpu.Stepping)))
	}
	appendNodes(e, element("topology", "sockets", strconv.Itoa(shape.Packages), "dies", "1",
		"cores", strconv.Itoa(shape.Cores), "threads", strconv.Itoa(shape.Threads)))
	if cpu.PhysicalBits > 0 {
		appendNodes(e, element("maxphysaddr", "mode", "emulate", "bits", strconv.Itoa(cpu.PhysicalBits)))
	}
	if found {
		for _, name := range Difference(p.Features, model.features) {
			appendNodes(e, element("feature", "name", name))
		}
	}
	for _, size := range pageSizes(facts.Topology.Cells) {
		appendNodes(e, element("pages", "unit", "KiB", "size", size))
	}
	return e
}

// pageSizes returns the page sizes of all cells, in KiB.
func pageSizes(cells []topology.Cell) []string {
	var sizes []string
	for _, c := range cells {
		for _, p := range c.Pages {
			if size := kib(p.Size); !slices.Contains(sizes, size) {
				sizes = append(sizes, size)
			}
		}
	}
	return sizes
}

// kib returns a number of bytes in KiB, rounded down.
func kib(bytes uint64) string { return strconv.FormatUint(bytes>>10, 10) }

// DescribeCells describes the host's NUMA cells.
func DescribeCells(cells []topology.Cell) *xmltree.Element {
	all := element("cells", "num", strconv.Itoa(len(cells)))
	for _, c := range cells {
		cell := element("cell", "id", strconv.Itoa(c.ID))
		if c.Memory > 0 {
			appendNodes(cell, textElement("memory", kib(c.Memory), "unit", "KiB"))
		}
		for _, p := range c.Pages {
			appendNodes(cell, textElement("pages", strconv.FormatUint(p.Total, 10), "unit", "KiB", "size", kib(p.Size)))
		}
		if len(c.Distances) > 0 {
			distances := element("distances")
			for _, d := range c.Distances {
				appendNodes(distances, element("sibling", "id", strconv.Itoa(d.Cell), "value", strconv.Itoa(d.Value)))
			}
			appendNodes(cell, distances)
		}
		cpus := element("cpus", "num", strconv.Itoa(len(c.CPUs)))
		for _, cpu := range c.CPUs {
			appendNodes(cpus, element("cpu", "id", strconv.Itoa(cpu.ID), "socket_id", strconv.Itoa(cpu.Package), "die_id", strconv.Itoa(cpu.Die),
				"core_id", strconv.Itoa(cpu.Core), "siblings", cpu.Siblings.String()))
		}
		appendNodes(all, appendNodes(cell, cpus))
	}
	return all
}

// describeCaches describes the last-level caches; nil if there are none.
func describeCaches(caches []topology.Cache) *xmltree.Element {
	e := element("cache")
	for _, c := range caches {
		if c.Level < 3 {
			continue
		}
		size, unit := c.Size>>10, "KiB"
		if size%1024 == 0 {
			size, unit = size/1024, "MiB"
		}
		appendNodes(e, element("bank", "id", strconv.Itoa(c.ID), "level", strconv.Itoa(c.Level), "type", string(c.Kind),
			"size", strconv.FormatUint(size, 10), "unit", unit, "cpus", c.CPUs.String()))
	}
	if e.Children == nil {
		return nil
	}
	return e
}

// DescribeGuests describes the guests that the binary runs.
func DescribeGuests(caps *qemucaps.Capabilities) *xmltree.Element {
	wordSize := "64"
	if caps.GuestArch() == "i686" {
		wordSize = "32"
	}
	arch := appendNodes(element("arch", "name", caps.GuestArch()), textElement("wordsize", wordSize), textElement("emulator", caps.Binary.Path))
	for _, m := range supportedMachines(caps) {
		most := strconv.Itoa(m.MaxCPUs)
		deprecated := ""
		if m.Deprecated {
			deprecated = "yes"
		}
		appendNodes(arch, textElement("machine", m.Name, "maxCpus", most, "deprecated", deprecated))
		if m.Alias != "" {
			appendNodes(arch, textElement("machine", m.Alias, "canonical", m.Name, "maxCpus", most, "deprecated", deprecated))
		}
	}
	for _, t := range slices.Backward(domainTypes) {
		if caps.Accelerator(Accelerators[t]).Usable {
			appendNodes(arch, element("domain", "type", t))
		}
	}
	features := appendNodes(element("features"),
		element("acpi", "default", "on", "toggle", "yes"), element("apic", "default", "on", "toggle", "no"), element("cpuselection"), element("deviceboot"))
	return appendNodes(element("guest"), textElement("os_type", "hvm"), arch, features)
}

// machineFamilies are the supported machine types: full names, or the prefix of
// the names of their versions.
var machineFamilies = []string{"pc-i440fx-", "pc-q35-", "microvm", "isapc"}

// supportedMachines returns QEMU's machine types of these families: the default first,
// then those with an alias.
func supportedMachines(caps *qemucaps.Capabilities) []qemucaps.Machine {
	machines := slices.DeleteFunc(slices.Clone(caps.Machines), func(m qemucaps.Machine) bool {
		return !slices.ContainsFunc(machineFamilies, func(family string) bool { return strings.HasPrefix(m.Name, family) })
	})
	rank := func(m qemucaps.Machine) int {
		switch {
		case m.Default:
			return 0
		case m.Alias != "":
			return 1
		}
		return 2
	}
	slices.SortStableFunc(machines, func(a, b qemucaps.Machine) int { return rank(a) - rank(b) })
	return machines
}

// PickMachine finds a machine type by its name or alias; without a name, the
// default one.
func PickMachine(caps *qemucaps.Capabilities, name string) (qemucaps.Machine, error) {
	machines := supportedMachines(caps)
	i := slices.IndexFunc(machines, func(m qemucaps.Machine) bool {
		return m.Name == name || m.Alias != "" && m.Alias == name || name == "" && m.Default
	})
	if i < 0 {
		return qemucaps.Machine{}, fault.New(fault.Invalid, fault.Call, "the machine '%s' is not supported by emulator '%s'", name, caps.Binary.Path)
	}
	return machines[i], nil
}
