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

// Offer holds the features that guests of one domain type on one machine type may have:
// those that definitions can name, as far as this QEMU and this host support them.
type Offer struct {
	Caps       *qemucaps.Capabilities
	DomainType string
	Acc        qemucaps.Accelerator
	Machine    qemucaps.Machine
	Firmwares  []resources.Firmware
	// Vfio says that PCI devices can be passed through, and swtpm that there is a
	// software TPM.
	Vfio, swtpm bool
}

func connectGetDomainCapabilities(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.ConnectGetDomainCapabilitiesArgs) (*xdr.ConnectGetDomainCapabilitiesRet, error) {
	if err := rpc.CheckFlags("CONNECT_GET_DOMAIN_CAPABILITIES", args.Flags, 0); err != nil {
		return nil, err
	}
	o, err := offer(ctx, h, s, args.EmulatorBinary, args.Arch, args.VirtType, args.Machine)
	if err != nil {
		return nil, err
	}
	// A description of firmware that cannot be understood hides that firmware only.
	firmwares, _ := resources.Firmwares()
	o.Firmwares = slices.DeleteFunc(firmwares, func(f resources.Firmware) bool { return !f.Suits(o.Caps.Arch, o.Machine.Name) })
	_, err = os.Stat("/dev/vfio/vfio")
	o.Vfio = err == nil && h.Host.Facts().IOMMU && o.Caps.HasDevice("vfio-pci")
	_, err = exec.LookPath("swtpm")
	o.swtpm = err == nil
	doc, err := rpc.RunFair(ctx, func() (string, error) { return xmltree.Format(o.describe()) })
	return &xdr.ConnectGetDomainCapabilitiesRet{Capabilities: doc}, err
}

// offer finds the binary, the architecture, the domain type and the machine type that
// a client names. An omitted one defaults to this host's usual one.
func offer(ctx context.Context, h *rpc.Handlers, s *rpc.Request, binary, arch, domainType, machine *string) (*Offer, error) {
	caps, err := emulator(ctx, h, s, cmp.Or(rpc.StringValue(binary), h.Emulators.Serving(rpc.StringValue(arch))))
	if err != nil {
		return nil, err
	}
	if arch := rpc.StringValue(arch); arch != "" && !caps.Runs(arch) {
		return nil, fault.New(fault.Unsupported, fault.Config, "unable to find any emulator to serve '%s' architecture", arch)
	}
	o := &Offer{Caps: caps}
	if o.DomainType, o.Acc, err = Accelerator(caps, rpc.StringValue(domainType)); err != nil {
		return nil, err
	}
	o.Machine, err = PickMachine(caps, rpc.StringValue(machine))
	return o, err
}

// emulator finds the binary that a client names. An unknown binary must be run to be
// probed. So a read-only client may not name one, and a client under rules may name
// only the programs that the rules allow.
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

// describe writes the offer as libvirt's domainCapabilities document.
func (o *Offer) describe() *xmltree.Element {
	return within(tag("domainCapabilities"),
		leaf("path", o.Caps.Binary.Path), leaf("domain", o.DomainType), leaf("machine", o.Machine.Name), leaf("arch", o.Caps.GuestArch()),
		tag("vcpu", "max", strconv.Itoa(o.Machine.MaxCPUs)),
		tag("iothreads", "supported", yesNo(o.Caps.HasObject("iothread"))),
		o.DescribeOS(), o.DescribeCPU(),
		offered("memoryBacking", enum("sourceType", "file", "anonymous", o.object("memory-backend-memfd", "memfd"))),
		o.DescribeDevices(), o.DescribeFeatures())
}

// enum lists values. It leaves out empty ones: they stand for absent features.
func enum(name string, values ...string) *xmltree.Element {
	e := tag("enum", "name", name)
	for _, v := range values {
		within(e, leaf("value", v))
	}
	return e
}

// offered is an element that is supported if its first list has any value. If it is
// unsupported, it has no content.
func offered(name string, enums ...*xmltree.Element) *xmltree.Element {
	if len(enums[0].Children) == 0 {
		return tag(name, "supported", "no")
	}
	e := tag(name, "supported", "yes")
	for _, list := range enums {
		within(e, list)
	}
	return e
}

// device gives the value if QEMU has any of the devices, or "".
func (o *Offer) device(value string, types ...string) string {
	if slices.ContainsFunc(types, o.Caps.HasDevice) {
		return value
	}
	return ""
}

// object gives the value if QEMU has the object type, or "".
func (o *Offer) object(typ, value string) string {
	if o.Caps.HasObject(typ) {
		return value
	}
	return ""
}

// option gives the value if QEMU's command line has the option, or "".
func (o *Offer) option(option, value string) string {
	if o.Caps.HasOption(option, "") {
		return value
	}
	return ""
}

// chipset says whether the machine type is one of a family.
func (o *Offer) chipset(family string) bool { return strings.HasPrefix(o.Machine.Name, family) }

// when gives the value if the condition holds, or "".
func when(condition bool, value string) string {
	if condition {
		return value
	}
	return ""
}

// DescribeOS gives the firmware and loaders on offer.
func (o *Offer) DescribeOS() *xmltree.Element {
	flash := slices.ContainsFunc(o.Firmwares, func(f resources.Firmware) bool { return f.Flash })
	secure := slices.ContainsFunc(o.Firmwares, func(f resources.Firmware) bool { return f.Has("secure-boot") })
	loader := tag("loader", "supported", "yes")
	var images []string
	for _, f := range o.Firmwares {
		if !slices.Contains(images, f.Code) {
			images = append(images, f.Code)
			within(loader, leaf("value", f.Code))
		}
	}
	within(loader, enum("type", "rom", "pflash"), enum("readonly", "yes", "no"), enum("secure", when(secure, "yes"), "no"))
	return within(tag("os", "supported", "yes"), enum("firmware", when(flash, "efi")), loader)
}

// mode is one way to say which processor a guest sees.
func mode(name string, supported bool, nodes ...xmltree.Node) *xmltree.Element {
	e := tag("mode", "name", name, "supported", yesNo(supported))
	if supported {
		within(e, nodes...)
	}
	return e
}

// DescribeCPU gives the CPU modes and models on offer.
func (o *Offer) DescribeCPU() *xmltree.Element {
	_, maximum := o.Acc.Model("max")
	custom := mode("custom", true)
	for _, m := range namedModels(o.Acc) {
		within(custom, leaf("model", m.Name, "usable", yesNo(m.Usable), "vendor", modelVendor(m.Name), "deprecated", when(m.Deprecated, "yes")))
		if blocking := cpuFeatures(m.Missing); len(blocking) > 0 {
			blockers := tag("blockers", "model", m.Name)
			for _, name := range blocking {
				within(blockers, tag("feature", "name", name))
			}
			within(custom, blockers)
		}
	}
	return within(tag("cpu"),
		mode("host-passthrough", o.Acc.HostCPU, enum("hostPassthroughMigratable", "on", "off")),
		mode("maximum", maximum, enum("maximumMigratable", "on", "off")),
		o.describeHostModel(), custom)
}

// describeHostModel gives the meaning of host-model: the named model that is nearest
// to the accelerator's processor, and the difference.
func (o *Offer) describeHostModel() *xmltree.Element {
	m, require, disable, found := CatalogueOf(o.Caps).HostModel(o.Acc)
	e := mode("host-model", found, leaf("model", m.Name, "fallback", "forbid"), leaf("vendor", CPUVendors[o.Acc.HostModel.Vendor]))
	if !found {
		return e
	}
	for _, name := range require {
		within(e, tag("feature", "policy", "require", "name", name))
	}
	for _, name := range disable {
		within(e, tag("feature", "policy", "disable", "name", name))
	}
	return e
}

// modelVendors maps prefixes of the names of processor models to the maker;
// the first prefix that fits counts.
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

// modelVendor gives the maker of a processor model; Intel if no prefix fits.
func modelVendor(model string) string {
	i := slices.IndexFunc(modelVendors, func(v struct{ prefix, vendor string }) bool { return strings.HasPrefix(model, v.prefix) })
	return modelVendors[i].vendor
}

// DescribeDevices gives the devices on offer.
func (o *Offer) DescribeDevices() *xmltree.Element {
	pc, q35 := o.chipset("pc-i440fx-"), o.chipset("pc-q35-")
	virtio := []string{"virtio", when(pc || q35, "virtio-transitional"), when(pc || q35, "virtio-non-transitional")}
	software := o.swtpm && slices.Contains(o.Caps.TPMBackends, "emulator")
	return within(tag("devices"),
		offered("disk",
			enum("diskDevice", "disk", "cdrom", when(pc || q35, "floppy"), "lun"),
			enum("bus", when(pc, "ide"), when(pc || q35, "fdc"), o.device("scsi", "virtio-scsi-pci"), o.device("virtio", "virtio-blk-pci"),
				o.device("usb", "usb-storage"), o.device("sata", "ich9-ahci")),
			enum("model", virtio...)),
		offered("graphics", enum("type", o.option("vnc", "vnc"), o.option("spice", "spice"))),
		offered("video", enum("modelType",
			o.device("vga", "VGA"), o.device("cirrus", "cirrus-vga"), o.device("vmvga", "vmware-svga"), o.device("qxl", "qxl-vga"),
			o.device("virtio", "virtio-vga", "virtio-gpu-pci"), "none", o.device("bochs", "bochs-display"), o.device("ramfb", "ramfb"))),
		offered("hostdev",
			enum("mode", "subsystem"), enum("startupPolicy", "default", "mandatory", "requisite", "optional"),
			enum("subsysType", o.device("usb", "usb-host"), when(o.Vfio, "pci")),
			enum("capsType"), enum("pciBackend", when(o.Vfio, "vfio"))),
		offered("rng",
			enum("model", virtio...), enum("backendModel",
				o.object("rng-random", "random"), o.object("rng-egd", "egd"), o.object("rng-builtin", "builtin"))),
		tag("filesystem", "supported", "no"),
		offered("tpm",
			enum("model", o.tpm("tpm-tis"), o.tpm("tpm-crb")),
			enum("backendModel", when(slices.Contains(o.Caps.TPMBackends, "passthrough"), "passthrough"), when(software, "emulator")),
			enum("backendVersion", when(software, "1.2"), when(software, "2.0"))),
		offered("redirdev", enum("bus", o.device("usb", "usb-redir"))),
		offered("channel", enum("type", "pty", "unix", when(slices.Contains(o.Caps.Chardevs, "spicevmc"), "spicevmc"))))
}

func (o *Offer) tpm(model string) string {
	return when(slices.Contains(o.Caps.TPMModels, model), model)
}

// enlightenments are the Hyper-V features that KVM gives and definitions name.
var enlightenments = []string{
	"relaxed", "vapic", "spinlocks", "vpindex", "runtime", "synic", "stimer", "reset", "vendor_id", "frequencies", "tlbflush", "ipi",
}

// DescribeFeatures gives the features on offer.
func (o *Offer) DescribeFeatures() *xmltree.Element {
	supported := func(name string, yes bool) *xmltree.Element { return tag(name, "supported", yesNo(yes)) }
	hyperv := enum("features")
	if o.DomainType == "kvm" {
		hyperv = enum("features", enlightenments...)
	}
	return within(tag("features"),
		supported("gic", false),
		supported("vmcoreinfo", o.Caps.HasDevice("vmcoreinfo")),
		supported("genid", o.Caps.HasDevice("vmgenid")),
		supported("backingStoreInput", true),
		supported("backup", false),
		supported("sev", false),
		supported("sgx", false),
		offered("hyperv", hyperv))
}
