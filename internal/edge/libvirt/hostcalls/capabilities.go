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

// CapabilityCalls report the parts and features that guests may have.
func CapabilityCalls(g rpc.Group) {
	rpc.On(g, xdr.ProcConnectGetVersion, connectGetVersion)
	rpc.On(g, xdr.ProcConnectGetCapabilities, connectGetCapabilities)
	rpc.On(g, xdr.ProcConnectGetDomainCapabilities, connectGetDomainCapabilities)
	rpc.On(g, xdr.ProcConnectGetMaxVCPUs, connectGetMaxVCPUs)
	rpc.On(g, xdr.ProcConnectGetCPUModelNames, connectGetCPUModelNames)
}

// connectGetVersion gives QEMU's version, counted as libvirt counts its own.
func connectGetVersion(ctx context.Context, h *rpc.Handlers, _ *rpc.Request, _ *rpc.Void) (*xdr.ConnectGetVersionRet, error) {
	caps, err := h.Emulators.Get(ctx, "")
	if err != nil {
		return nil, err
	}
	v := caps.Version
	return &xdr.ConnectGetVersionRet{Version: uint64(v.Major)*1_000_000 + uint64(v.Minor)*1000 + uint64(v.Micro)}, nil
}

// Accelerators gives QEMU's word for a domain type.
var Accelerators = map[string]string{"kvm": "kvm", "qemu": "tcg"}

// domainTypes are the domain types, best first.
var domainTypes = []string{"kvm", "qemu"}

// Accelerator finds the accelerator for a domain type. Without a type, it is the best
// that works on this host.
func Accelerator(caps *qemucaps.Capabilities, domainType string) (string, qemucaps.Accelerator, error) {
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
	if _, _, err := Accelerator(caps, rpc.StringValue(args.Type)); err != nil {
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
	_, acc, err := Accelerator(caps, "")
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

// versionedModel is the name of one version of a model; the name without it
// stands for the version that fits the machine type.
var versionedModel = regexp.MustCompile(`-v[0-9]+$`)

// namedModels are the processor models that a definition names.
func namedModels(acc qemucaps.Accelerator) []qemucaps.CPUModel {
	special := []string{"base", "host", "max"}
	return slices.DeleteFunc(slices.Clone(acc.Models), func(m qemucaps.CPUModel) bool {
		return versionedModel.MatchString(m.Name) || slices.Contains(special, m.Name)
	})
}

// CPUVendors maps the vendor string of a processor to libvirt's name for the vendor.
var CPUVendors = map[string]string{"GenuineIntel": "Intel", "AuthenticAMD": "AMD", "HygonGenuine": "Hygon"}

// featureNames gives libvirt's name for the few features that QEMU calls
// otherwise.
var featureNames = map[string]string{
	"cmp-legacy": "cmp_legacy", "ds-cpl": "ds_cpl", "fxsr-opt": "fxsr_opt", "lahf-lm": "lahf_lm", "nodeid-msr": "nodeid_msr",
	"pclmulqdq": "pclmuldq", "perfctr-core": "perfctr_core", "perfctr-nb": "perfctr_nb", "tsc-adjust": "tsc_adjust",
}

// cpuFeatures gives libvirt's names for features of the processor, leaving out
// those that QEMU and KVM make up.
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
	if also := h.Emulators.Serving("i686"); also != caps.Binary.Path {
		if c, err := h.Emulators.Get(ctx, also); err == nil { // else it serves no guest
			guests = append(guests, c)
		}
	}
	doc, err := rpc.RunFair(ctx, func() (string, error) {
		e := within(tag("capabilities"), describeHost(h.Host.Facts(), caps, provision.SecurityModels(h.Guests)))
		for _, c := range guests {
			within(e, DescribeGuests(c))
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
	about := within(tag("host"),
		leaf("uuid", id), DescribeProcessor(facts, caps), tag("power_management"), tag("iommu", "support", yesNo(facts.IOMMU)),
		within(tag("topology"), DescribeCells(facts.Topology.Cells)), describeCaches(facts.Topology.Caches))
	if len(models) == 0 {
		models = []provision.SecurityModel{{Name: "none", DOI: "0"}}
	}
	for _, m := range models {
		within(about, describeModel(m))
	}
	return about
}

// describeModel describes one of the security models that separate guests.
func describeModel(m provision.SecurityModel) *xmltree.Element {
	e := within(tag("secmodel"), leaf("model", m.Name), leaf("doi", m.DOI))
	for _, kind := range slices.Sorted(maps.Keys(m.Base)) {
		within(e, leaf("baselabel", m.Base[kind], "type", kind))
	}
	return e
}

// yesNo gives "yes" or "no", as libvirt's XML spells booleans.
func yesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}

// DescribeProcessor describes the host's processor: the nearest model, and the
// features beyond that model.
func DescribeProcessor(facts *resources.Facts, caps *qemucaps.Capabilities) *xmltree.Element {
	cpu, shape, p := facts.CPU, facts.Topology.Shape(), HostProcessorOf(facts, caps)
	e := within(tag("cpu"), leaf("arch", facts.Arch))
	model, found := CatalogueOf(caps).Nearest(p, true, nil)
	if found {
		within(e, leaf("model", model.Name))
	}
	within(e, leaf("vendor", p.Vendor))
	if cpu.Microcode != 0 {
		within(e, tag("microcode", "version", strconv.FormatUint(cpu.Microcode, 10)))
	}
	if cpu.Family >= 0 {
		within(e, tag("signature", "family", strconv.Itoa(cpu.Family), "model", strconv.Itoa(cpu.ModelNumber), "stepping", strconv.Itoa(cpu.Stepping)))
	}
	within(e, tag("topology", "sockets", strconv.Itoa(shape.Packages), "dies", "1",
		"cores", strconv.Itoa(shape.Cores), "threads", strconv.Itoa(shape.Threads)))
	if cpu.PhysicalBits > 0 {
		within(e, tag("maxphysaddr", "mode", "emulate", "bits", strconv.Itoa(cpu.PhysicalBits)))
	}
	if found {
		for _, name := range Lacking(p.Features, model.features) {
			within(e, tag("feature", "name", name))
		}
	}
	for _, size := range pageSizes(facts.Topology.Cells) {
		within(e, tag("pages", "unit", "KiB", "size", size))
	}
	return e
}

// pageSizes are the sizes of pages on any cell, in KiB.
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

// kib gives a number of bytes in whole KiB, rounded down.
func kib(bytes uint64) string { return strconv.FormatUint(bytes>>10, 10) }

// DescribeCells gives the host's NUMA cells as XML.
func DescribeCells(cells []topology.Cell) *xmltree.Element {
	all := tag("cells", "num", strconv.Itoa(len(cells)))
	for _, c := range cells {
		cell := tag("cell", "id", strconv.Itoa(c.ID))
		if c.Memory > 0 {
			within(cell, leaf("memory", kib(c.Memory), "unit", "KiB"))
		}
		for _, p := range c.Pages {
			within(cell, leaf("pages", strconv.FormatUint(p.Total, 10), "unit", "KiB", "size", kib(p.Size)))
		}
		if len(c.Distances) > 0 {
			distances := tag("distances")
			for _, d := range c.Distances {
				within(distances, tag("sibling", "id", strconv.Itoa(d.Cell), "value", strconv.Itoa(d.Value)))
			}
			within(cell, distances)
		}
		cpus := tag("cpus", "num", strconv.Itoa(len(c.CPUs)))
		for _, cpu := range c.CPUs {
			within(cpus, tag("cpu", "id", strconv.Itoa(cpu.ID), "socket_id", strconv.Itoa(cpu.Package), "die_id", strconv.Itoa(cpu.Die),
				"core_id", strconv.Itoa(cpu.Core), "siblings", cpu.Siblings.String()))
		}
		within(all, within(cell, cpus))
	}
	return all
}

// describeCaches describes the last-level caches; nil if there are none.
func describeCaches(caches []topology.Cache) *xmltree.Element {
	e := tag("cache")
	for _, c := range caches {
		if c.Level < 3 {
			continue
		}
		size, unit := c.Size>>10, "KiB"
		if size%1024 == 0 {
			size, unit = size/1024, "MiB"
		}
		within(e, tag("bank", "id", strconv.Itoa(c.ID), "level", strconv.Itoa(c.Level), "type", string(c.Kind),
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
	arch := within(tag("arch", "name", caps.GuestArch()), leaf("wordsize", wordSize), leaf("emulator", caps.Binary.Path))
	for _, m := range builtMachines(caps) {
		most := strconv.Itoa(m.MaxCPUs)
		deprecated := ""
		if m.Deprecated {
			deprecated = "yes"
		}
		within(arch, leaf("machine", m.Name, "maxCpus", most, "deprecated", deprecated))
		if m.Alias != "" {
			within(arch, leaf("machine", m.Alias, "canonical", m.Name, "maxCpus", most, "deprecated", deprecated))
		}
	}
	for _, t := range slices.Backward(domainTypes) {
		if caps.Accelerator(Accelerators[t]).Usable {
			within(arch, tag("domain", "type", t))
		}
	}
	features := within(tag("features"),
		tag("acpi", "default", "on", "toggle", "yes"), tag("apic", "default", "on", "toggle", "no"), tag("cpuselection"), tag("deviceboot"))
	return within(tag("guest"), leaf("os_type", "hvm"), arch, features)
}

// machineFamilies are the machine types that guests can be built on: by full
// name, or by the start of the names of their versions.
var machineFamilies = []string{"pc-i440fx-", "pc-q35-", "microvm", "isapc"}

// builtMachines are QEMU's machine types of these families, the default first,
// then those with a short name.
func builtMachines(caps *qemucaps.Capabilities) []qemucaps.Machine {
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

// PickMachine finds a machine type by its full or short name; without a name,
// the default one.
func PickMachine(caps *qemucaps.Capabilities, name string) (qemucaps.Machine, error) {
	machines := builtMachines(caps)
	i := slices.IndexFunc(machines, func(m qemucaps.Machine) bool {
		return m.Name == name || m.Alias != "" && m.Alias == name || name == "" && m.Default
	})
	if i < 0 {
		return qemucaps.Machine{}, fault.New(fault.Invalid, fault.Call, "the machine '%s' is not supported by emulator '%s'", name, caps.Binary.Path)
	}
	return machines[i], nil
}
