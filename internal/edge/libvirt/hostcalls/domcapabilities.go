package hostcalls

import (
	"cmp"
	"context"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/host/resources"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemucaps"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// DomainCaps has the features that domains of one type on one machine type may have: those
// that a definition can name, and that this QEMU and this host support.
type DomainCaps struct {
	Caps       *qemucaps.Capabilities
	DomainType string
	Acc        qemucaps.Accelerator
	Machine    qemucaps.Machine
	Firmwares  []resources.Firmware
	// VFIO: PCI devices can be passed through; swtpm: there is a software TPM.
	VFIO, swtpm bool
}

func connectGetDomainCapabilities(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.ConnectGetDomainCapabilitiesArgs) (*xdr.ConnectGetDomainCapabilitiesRet, error) {
	if err := rpc.CheckFlags("CONNECT_GET_DOMAIN_CAPABILITIES", args.Flags, 0); err != nil {
		return nil, err
	}
	o, err := resolveDomainCaps(ctx, h, s, args.EmulatorBinary, args.Arch, args.VirtType, args.Machine)
	if err != nil {
		return nil, err
	}
	// A firmware descriptor that cannot be parsed hides that firmware only.
	firmwares, _ := resources.Firmwares()
	o.Firmwares = slices.DeleteFunc(firmwares, func(f resources.Firmware) bool { return !f.Suits(o.Caps.Arch, o.Machine.Name) })
	_, err = os.Stat("/dev/vfio/vfio")
	o.VFIO = err == nil && h.Host.Facts().IOMMU && o.Caps.HasDevice("vfio-pci")
	_, err = exec.LookPath("swtpm")
	o.swtpm = err == nil
	doc, err := rpc.RunFair(ctx, func() (string, error) { return xmltree.Format(o.describe()) })
	return &xdr.ConnectGetDomainCapabilitiesRet{Capabilities: doc}, err
}

// resolveDomainCaps finds the binary, the architecture, the domain type and the machine type that
// a client names. Omitted ones have the host's defaults.
func resolveDomainCaps(ctx context.Context, h *rpc.Handlers, s *rpc.Request, binary, arch, domainType, machine *string) (*DomainCaps, error) {
	caps, err := emulator(ctx, h, s, cmp.Or(rpc.StringValue(binary), h.Emulators.Serving(rpc.StringValue(arch))))
	if err != nil {
		return nil, err
	}
	if arch := rpc.StringValue(arch); arch != "" && !caps.Runs(arch) {
		return nil, fault.New(fault.Unsupported, fault.Config, "unable to find any emulator to serve '%s' architecture", arch)
	}
	o := &DomainCaps{Caps: caps}
	if o.DomainType, o.Acc, err = PickAccelerator(caps, rpc.StringValue(domainType)); err != nil {
		return nil, err
	}
	o.Machine, err = PickMachine(caps, rpc.StringValue(machine))
	return o, err
}

// emulator finds the binary that a client names. The probe of an unknown binary runs it.
// So a read-only client may not name one, and a restricted client may name only the
// programs that the rules allow.
func emulator(ctx context.Context, h *rpc.Handlers, s *rpc.Request, binary string) (*qemucaps.Capabilities, error) {
	if binary != "" && binary != h.Emulators.Usual() && binary != h.Emulators.Serving("i686") {
		if _, err := h.Emulators.Known(binary); err != nil {
			if err := s.DenyReadOnly("CONNECT_GET_DOMAIN_CAPABILITIES", "the probe of "+binary); err != nil {
				return nil, err
			}
			if err := s.Authorizer().CheckProgram(s.Principal(), binary); err != nil {
				return nil, err
			}
		}
	}
	return h.Emulators.Get(ctx, binary)
}

// describe writes libvirt's domainCapabilities document.
func (o *DomainCaps) describe() *xmltree.Element {
	return appendNodes(element("domainCapabilities"),
		textElement("path", o.Caps.Binary.Path), textElement("domain", o.DomainType), textElement("machine", o.Machine.Name), textElement("arch", o.Caps.GuestArch()),
		element("vcpu", "max", strconv.Itoa(o.Machine.MaxCPUs)),
		element("iothreads", "supported", yesNo(o.Caps.HasObject("iothread"))),
		o.DescribeOS(), o.DescribeCPU(),
		supportedIf("memoryBacking", enum("sourceType", "file", "anonymous", o.object("memory-backend-memfd", "memfd"))),
		o.DescribeDevices(), o.DescribeFeatures())
}

// enum makes an <enum> of values. It leaves out empty ones, which stand for unsupported features.
func enum(name string, values ...string) *xmltree.Element {
	e := element("enum", "name", name)
	for _, v := range values {
		appendNodes(e, textElement("value", v))
	}
	return e
}

// supportedIf makes an element that is supported if its first enum has a value. An
// unsupported one has no content.
func supportedIf(name string, enums ...*xmltree.Element) *xmltree.Element {
	if len(enums[0].Children) == 0 {
		return element(name, "supported", "no")
	}
	e := element(name, "supported", "yes")
	for _, list := range enums {
		appendNodes(e, list)
	}
	return e
}

// device returns the value if QEMU has any of the devices, or "".
func (o *DomainCaps) device(value string, types ...string) string {
	if slices.ContainsFunc(types, o.Caps.HasDevice) {
		return value
	}
	return ""
}

// object returns the value if QEMU has the object type, or "".
func (o *DomainCaps) object(typ, value string) string {
	if o.Caps.HasObject(typ) {
		return value
	}
	return ""
}

// option returns the value if QEMU's command line has the option, or "".
func (o *DomainCaps) option(option, value string) string {
	if o.Caps.HasOption(option, "") {
		return value
	}
	return ""
}

// chipset reports whether the machine type is of a family.
func (o *DomainCaps) chipset(family string) bool { return strings.HasPrefix(o.Machine.Name, family) }

// valueIf returns the value if the condition holds, or "".
func valueIf(condition bool, value string) string {
	if condition {
		return value
	}
	return ""
}

// DescribeOS describes the supported firmware and loaders.
func (o *DomainCaps) DescribeOS() *xmltree.Element {
	flash := slices.ContainsFunc(o.Firmwares, func(f resources.Firmware) bool { return f.Flash })
	secure := slices.ContainsFunc(o.Firmwares, func(f resources.Firmware) bool { return f.Has("secure-boot") })
	loader := element("loader", "supported", "yes")
	var images []string
	for _, f := range o.Firmwares {
		if !slices.Contains(images, f.Code) {
			images = append(images, f.Code)
			appendNodes(loader, textElement("value", f.Code))
		}
	}
	appendNodes(loader, enum("type", "rom", "pflash"), enum("readonly", "yes", "no"), enum("secure", valueIf(secure, "yes"), "no"))
	return appendNodes(element("os", "supported", "yes"), enum("firmware", valueIf(flash, "efi")), loader)
}

// cpuMode makes the element of a CPU mode.
func cpuMode(name string, supported bool, nodes ...xmltree.Node) *xmltree.Element {
	e := element("mode", "name", name, "supported", yesNo(supported))
	if supported {
		appendNodes(e, nodes...)
	}
	return e
}

// DescribeCPU describes the supported CPU modes and models.
func (o *DomainCaps) DescribeCPU() *xmltree.Element {
	_, maximum := o.Acc.Model("max")
	custom := cpuMode("custom", true)
	for _, m := range namedModels(o.Acc) {
		appendNodes(custom, textElement("model", m.Name, "usable", yesNo(m.Usable), "vendor", modelVendor(m.Name), "deprecated", valueIf(m.Deprecated, "yes")))
		if missing := cpuFeatures(m.Missing); len(missing) > 0 {
			blockers := element("blockers", "model", m.Name)
			for _, name := range missing {
				appendNodes(blockers, element("feature", "name", name))
			}
			appendNodes(custom, blockers)
		}
	}
	return appendNodes(element("cpu"),
		cpuMode("host-passthrough", o.Acc.HostCPU, enum("hostPassthroughMigratable", "on", "off")),
		cpuMode("maximum", maximum, enum("maximumMigratable", "on", "off")),
		o.describeHostModel(), custom)
}

// describeHostModel describes host-model expanded: the named model that is nearest to the
// accelerator's CPU, and the difference.
func (o *DomainCaps) describeHostModel() *xmltree.Element {
	m, require, disable, found := CatalogueOf(o.Caps).HostModel(o.Acc)
	e := cpuMode("host-model", found, textElement("model", m.Name, "fallback", "forbid"), textElement("vendor", CPUVendors[o.Acc.HostModel.Vendor]))
	if !found {
		return e
	}
	for _, name := range require {
		appendNodes(e, element("feature", "policy", "require", "name", name))
	}
	for _, name := range disable {
		appendNodes(e, element("feature", "policy", "disable", "name", name))
	}
	return e
}

// modelVendors maps prefixes of the names of CPU models to vendors; the first prefix
// that matches counts.
var modelVendors = []struct{ prefix, vendor string }{
	{"486", "unknown"},
	{"pentium", "unknown"},
	{"qemu", "unknown"},
	{"kvm", "unknown"},
	{"Dhyana", "Hygon"},
	{"EPYC", "AMD"},
	{"Opteron", "AMD"},
	{"athlon", "AMD"},
	{"phenom", "AMD"},
	{"YongFeng", "Zhaoxin"},
	{"", "Intel"},
}

// modelVendor returns the vendor of a CPU model.
func modelVendor(model string) string {
	i := slices.IndexFunc(modelVendors, func(v struct{ prefix, vendor string }) bool { return strings.HasPrefix(model, v.prefix) })
	return modelVendors[i].vendor
}

// DescribeDevices describes the supported devices.
func (o *DomainCaps) DescribeDevices() *xmltree.Element {
	pc, q35 := o.chipset("pc-i440fx-"), o.chipset("pc-q35-")
	virtio := []string{"virtio", valueIf(pc || q35, "virtio-transitional"), valueIf(pc || q35, "virtio-non-transitional")}
	software := o.swtpm && slices.Contains(o.Caps.TPMBackends, "emulator")
	return appendNodes(element("devices"),
		supportedIf("disk",
			enum("diskDevice", "disk", "cdrom", valueIf(pc || q35, "floppy"), "lun"),
			enum("bus", valueIf(pc, "ide"), valueIf(pc || q35, "fdc"), o.device("scsi", "virtio-scsi-pci"), o.device("virtio", "virtio-blk-pci"),
				o.device("usb", "usb-storage"), o.device("sata", "ich9-ahci")),
			enum("model", virtio...)),
		supportedIf("graphics", enum("type", o.option("vnc", "vnc"), o.option("spice", "spice"))),
		supportedIf("video", enum("modelType",
			o.device("vga", "VGA"), o.device("cirrus", "cirrus-vga"), o.device("vmvga", "vmware-svga"), o.device("qxl", "qxl-vga"),
			o.device("virtio", "virtio-vga", "virtio-gpu-pci"), "none", o.device("bochs", "bochs-display"), o.device("ramfb", "ramfb"))),
		supportedIf("hostdev",
			enum("mode", "subsystem"), enum("startupPolicy", "default", "mandatory", "requisite", "optional"),
			enum("subsysType", o.device("usb", "usb-host"), valueIf(o.VFIO, "pci")),
			enum("capsType"), enum("pciBackend", valueIf(o.VFIO, "vfio"))),
		supportedIf("rng",
			enum("model", virtio...), enum("backendModel",
				o.object("rng-random", "random"), o.object("rng-egd", "egd"), o.object("rng-builtin", "builtin"))),
		element("filesystem", "supported", "no"),
		supportedIf("tpm",
			enum("model", o.tpm("tpm-tis"), o.tpm("tpm-crb")),
			enum("backendModel", valueIf(slices.Contains(o.Caps.TPMBackends, "passthrough"), "passthrough"), valueIf(software, "emulator")),
			enum("backendVersion", valueIf(software, "1.2"), valueIf(software, "2.0"))),
		supportedIf("redirdev", enum("bus", o.device("usb", "usb-redir"))),
		supportedIf("channel", enum("type", "pty", "unix", valueIf(slices.Contains(o.Caps.Chardevs, "spicevmc"), "spicevmc"))))
}

func (o *DomainCaps) tpm(model string) string {
	return valueIf(slices.Contains(o.Caps.TPMModels, model), model)
}

// hypervFeatures are the Hyper-V features that KVM has and definitions may name.
var hypervFeatures = []string{
	"relaxed", "vapic", "spinlocks", "vpindex", "runtime", "synic", "stimer", "reset", "vendor_id", "frequencies", "tlbflush", "ipi",
}

// DescribeFeatures describes the supported features.
func (o *DomainCaps) DescribeFeatures() *xmltree.Element {
	supported := func(name string, yes bool) *xmltree.Element { return element(name, "supported", yesNo(yes)) }
	hyperv := enum("features")
	if o.DomainType == "kvm" {
		hyperv = enum("features", hypervFeatures...)
	}
	return appendNodes(element("features"),
		supported("gic", false),
		supported("vmcoreinfo", o.Caps.HasDevice("vmcoreinfo")),
		supported("genid", o.Caps.HasDevice("vmgenid")),
		supported("backingStoreInput", true),
		supported("backup", false),
		supported("sev", false),
		supported("sgx", false),
		supportedIf("hyperv", hyperv))
}
