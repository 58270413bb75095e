package libvirt

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/hostcalls"
	"github.com/lodge-kvm/lodge/internal/host/resources"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel/kerneltest"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemucaps"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// aQEMU returns the result of a probe on a host with or without KVM.
func aQEMU(kvm bool) *qemucaps.Capabilities {
	models := []qemucaps.CPUModel{
		{Name: "EPYC", AliasOf: "EPYC-v1", Missing: []string{"fxsr-opt", "npt"}},
		{Name: "EPYC-v1", Missing: []string{"npt"}},
		{Name: "Haswell", Usable: true, Features: []string{"fpu", "hypervisor", "rtm"}},
		{Name: "base", Usable: true},
		{Name: "host", Usable: true},
		{Name: "max", Usable: true},
	}
	hostModel := qemucaps.HostModel{
		Vendor: "GenuineIntel", Base: "Haswell", Features: []string{"fpu", "kvm-asyncpf", "rdctl-no", "tsc-adjust", "vmx"},
	}
	c := &qemucaps.Capabilities{
		Binary: qemucaps.Identity{Path: "/usr/bin/qemu-system-x86_64"}, Arch: "x86_64",
		Machines: []qemucaps.Machine{
			{Name: "isapc", MaxCPUs: 1},
			{Name: "pc-i440fx-7.1", MaxCPUs: 255, Deprecated: true},
			{Name: "pc-i440fx-7.2", Alias: "pc", Default: true, MaxCPUs: 255},
			{Name: "pc-q35-7.2", Alias: "q35", MaxCPUs: 288},
			{Name: "xenfv", MaxCPUs: 128},
		},
		Accelerators: []qemucaps.Accelerator{
			{Name: "kvm", Present: true, Usable: kvm, Reason: "the trial guest never wrote", HostCPU: kvm},
			{Name: "tcg", Present: true, Usable: true, Models: models},
		},
		Devices: []string{"VGA", "ich9-ahci", "usb-host", "vfio-pci", "virtio-blk-pci"},
		Objects: []string{"iothread", "rng-random"},
		Options: map[string][]string{"vnc": nil},
	}
	names := []string{"fpu", "hypervisor", "rdctl-no", "rtm", "tsc-adjust", "vmx"}
	c.Accelerators[1].Features = names
	if kvm {
		c.Accelerators[0].Models, c.Accelerators[0].Features, c.Accelerators[0].HostModel = models, names, hostModel
	}
	return c
}

func printed(t *testing.T, e *xmltree.Element) string {
	t.Helper()
	doc, err := xmltree.Format(e)
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

const guestDocument = `<guest>
  <os_type>hvm</os_type>
  <arch name='x86_64'>
    <wordsize>64</wordsize>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <machine maxCpus='255'>pc-i440fx-7.2</machine>
    <machine canonical='pc-i440fx-7.2' maxCpus='255'>pc</machine>
    <machine maxCpus='288'>pc-q35-7.2</machine>
    <machine canonical='pc-q35-7.2' maxCpus='288'>q35</machine>
    <machine maxCpus='1'>isapc</machine>
    <machine maxCpus='255' deprecated='yes'>pc-i440fx-7.1</machine>
    <domain type='qemu'/>
    <domain type='kvm'/>
  </arch>
  <features>
    <acpi default='on' toggle='yes'/>
    <apic default='on' toggle='no'/>
    <cpuselection/>
    <deviceboot/>
  </features>
</guest>
`

// Capabilities have only supported machine types, and KVM only if the probe ran a guest
// under it.
func TestCapabilities_Guests(t *testing.T) {
	if diff := cmp.Diff(guestDocument, printed(t, hostcalls.DescribeGuests(aQEMU(true)))); diff != "" {
		t.Error(diff)
	}
	without := strings.Replace(guestDocument, "    <domain type='kvm'/>\n", "", 1)
	if diff := cmp.Diff(without, printed(t, hostcalls.DescribeGuests(aQEMU(false)))); diff != "" {
		t.Error(diff)
	}
}

// The host's processor is read from CPUID. KVM adds features that CPUID does not report. A feature without a name
// in QEMU is left out.
func TestHostCPU_Features(t *testing.T) {
	inventory, err := resources.NewInventory(kerneltest.Host(t, kerneltest.Server))
	if err != nil {
		t.Fatal(err)
	}
	facts := *inventory.Facts()
	facts.CPU.CPUID = []kernel.CPUIDLeaf{
		{Leaf: 1, EDX: 1, ECX: 1<<5 | 1<<27},          // fpu, vmx, osxsave
		{Leaf: 7, EBX: 1<<1 | 1<<11},                  // tsc-adjust, rtm
		{Leaf: 7, Part: 1, EAX: 1 << 10},              // fzrm, which this QEMU does not know
		{Leaf: 0x8000_0001, EAX: 0xffff, EDX: 1 << 1}, // numbers, and what leaf 1 says as well
	}
	const described = `<cpu>
  <arch>x86_64</arch>
  <model>Haswell</model>
  <vendor>Intel</vendor>
  <microcode version='721421409'/>
  <signature family='6' model='143' stepping='8'/>
  <topology sockets='1' dies='1' cores='2' threads='2'/>
  <maxphysaddr mode='emulate' bits='46'/>
  <feature name='osxsave'/>
  <feature name='rdctl-no'/>
  <feature name='tsc_adjust'/>
  <feature name='vmx'/>
  <pages unit='KiB' size='4'/>
  <pages unit='KiB' size='2048'/>
  <pages unit='KiB' size='1048576'/>
</cpu>
`
	if diff := cmp.Diff(described, printed(t, hostcalls.DescribeHostCPU(&facts, aQEMU(true)))); diff != "" {
		t.Error(diff)
	}
	emulated := strings.Replace(described, "  <feature name='rdctl-no'/>\n", "", 1)
	if diff := cmp.Diff(emulated, printed(t, hostcalls.DescribeHostCPU(&facts, aQEMU(false)))); diff != "" {
		t.Errorf("without KVM: %s", diff)
	}
	// The reported processor has a baseline, and can run here.
	c := hostcalls.CatalogueOf(aQEMU(true))
	if ret, err := c.CompareDocument(hostcalls.HostCPUOf(&facts, aQEMU(true)), described, hostcalls.CompareFail); err != nil || ret.Result != hostcalls.CPUIdentical {
		t.Errorf("the host compares to itself as %v, %v", ret, err)
	}
	if _, err := (hostcalls.BaselineRequest{Catalogue: c, Kind: hostcalls.HostCPU, Available: nil, Flags: 0}).Answer([]string{described}); err != nil {
		t.Errorf("the host has no baseline of itself: %v", err)
	}
	facts.CPU.CPUID = nil
	unknown := printed(t, hostcalls.DescribeHostCPU(&facts, aQEMU(false)))
	if strings.Contains(unknown, "<model>") || strings.Contains(unknown, "<feature") || !strings.Contains(unknown, "<vendor>Intel</vendor>") {
		t.Errorf("a processor that tells nothing is\n%s", unknown)
	}
}

// TSX of the first Haswell CPUs is broken, even if CPUID has it.
func TestHostCPU_BrokenTSX(t *testing.T) {
	inventory, err := resources.NewInventory(kerneltest.Host(t, kerneltest.Server))
	if err != nil {
		t.Fatal(err)
	}
	facts := *inventory.Facts()
	facts.CPU.CPUID = []kernel.CPUIDLeaf{{Leaf: 7, EBX: 1 << 11}}
	for _, c := range []struct {
		model, stepping int
		has             bool
	}{{60, 3, false}, {63, 2, false}, {63, 4, true}, {143, 8, true}} {
		facts.CPU.Family, facts.CPU.ModelNumber, facts.CPU.Stepping = 6, c.model, c.stepping
		if has := hostcalls.HostCPUOf(&facts, aQEMU(false)).Features["rtm"]; has != c.has {
			t.Errorf("that a processor of model %d, stepping %d has rtm is %v", c.model, c.stepping, has)
		}
	}
}

func TestPickAccelerator_ByDomainType(t *testing.T) {
	for _, c := range []struct {
		kvm          bool
		asked, given string
		refusal      string
	}{
		{true, "", "kvm", ""},
		{true, "qemu", "qemu", ""},
		{false, "", "qemu", ""},
		{false, "kvm", "", "the accel 'kvm' is not supported by '/usr/bin/qemu-system-x86_64' on this host: the trial guest never wrote"},
		{true, "xen", "", "unknown type 'xen'"},
	} {
		given, _, err := hostcalls.PickAccelerator(aQEMU(c.kvm), c.asked)
		if given != c.given || c.refusal == "" && err != nil || c.refusal != "" && (err == nil || err.Error() != c.refusal) {
			t.Errorf("%+v gives %q, %v", c, given, err)
		}
	}
	nothing := aQEMU(false)
	nothing.Accelerators[1].Usable = false
	if _, _, err := hostcalls.PickAccelerator(nothing, ""); !fault.Is(err, fault.Unsupported) {
		t.Errorf("a QEMU that runs nothing gives %v", err)
	}
}

const cpuDocument = `<cpu>
  <mode name='host-passthrough' supported='yes'>
    <enum name='hostPassthroughMigratable'>
      <value>on</value>
      <value>off</value>
    </enum>
  </mode>
  <mode name='maximum' supported='yes'>
    <enum name='maximumMigratable'>
      <value>on</value>
      <value>off</value>
    </enum>
  </mode>
  <mode name='host-model' supported='yes'>
    <model fallback='forbid'>Haswell</model>
    <vendor>Intel</vendor>
    <feature policy='require' name='rdctl-no'/>
    <feature policy='require' name='tsc_adjust'/>
    <feature policy='require' name='vmx'/>
    <feature policy='disable' name='rtm'/>
  </mode>
  <mode name='custom' supported='yes'>
    <model usable='no' vendor='AMD'>EPYC</model>
    <blockers model='EPYC'>
      <feature name='fxsr_opt'/>
      <feature name='npt'/>
    </blockers>
    <model usable='yes' vendor='Intel'>Haswell</model>
  </mode>
</cpu>
`

func offerOf(t *testing.T, caps *qemucaps.Capabilities, domainType, machine string) *hostcalls.DomainCaps {
	t.Helper()
	o := &hostcalls.DomainCaps{Caps: caps}
	var err error
	if o.DomainType, o.Acc, err = hostcalls.PickAccelerator(caps, domainType); err != nil {
		t.Fatal(err)
	}
	if o.Machine, err = hostcalls.PickMachine(caps, machine); err != nil {
		t.Fatal(err)
	}
	return o
}

func TestDomainCaps_CPUs(t *testing.T) {
	if diff := cmp.Diff(cpuDocument, printed(t, offerOf(t, aQEMU(true), "kvm", "q35").DescribeCPU())); diff != "" {
		t.Error(diff)
	}
	tcg := printed(t, offerOf(t, aQEMU(true), "qemu", "q35").DescribeCPU())
	for _, want := range []string{"name='host-passthrough' supported='no'/>", "name='host-model' supported='no'/>", "name='maximum' supported='yes'>"} {
		if !strings.Contains(tcg, want) {
			t.Errorf("%q is missing in\n%s", want, tcg)
		}
	}
}

// The offered devices depend on the machine type, on QEMU and on the host.
func TestDomainCaps_Devices(t *testing.T) {
	o := offerOf(t, aQEMU(true), "", "pc")
	for _, c := range []struct {
		about string
		doc   func() *xmltree.Element
		want  []string
		not   []string
	}{
		{"pc", o.DescribeDevices, []string{"<value>ide</value>", "<value>fdc</value>", "<value>vnc</value>", "<redirdev supported='no'/>", "<filesystem supported='no'/>", "<tpm supported='no'/>", "<enum name='pciBackend'/>", "<value>random</value>"}, []string{"<value>spice</value>", "<value>qxl</value>", "<value>pci</value>", "<value>egd</value>", "spicevmc"}},
		{"features", o.DescribeFeatures, []string{"<hyperv supported='yes'>", "<value>relaxed</value>", "<genid supported='no'/>"}, nil},
		{"no firmware", o.DescribeOS, []string{"<enum name='firmware'/>"}, []string{"<value>/"}},
		{"q35", offerOf(t, aQEMU(true), "", "q35").DescribeDevices, []string{"<value>sata</value>", "<value>fdc</value>"}, []string{"<value>ide</value>"}},
		{"tcg", offerOf(t, aQEMU(false), "", "q35").DescribeFeatures, []string{"<hyperv supported='no'/>"}, nil},
		{"host with vfio", (&hostcalls.DomainCaps{Caps: o.Caps, Machine: o.Machine, VFIO: true}).DescribeDevices, []string{"<value>pci</value>", "<value>vfio</value>"}, nil},
		{
			"host with UEFI", (&hostcalls.DomainCaps{Caps: o.Caps, Machine: o.Machine, Firmwares: []resources.Firmware{{Code: "/fw/CODE.fd", Flash: true}, {Code: "/fw/CODE.fd", Flash: true, Features: []string{"secure-boot"}}}}).DescribeOS,
			[]string{"<enum name='firmware'>\n    <value>efi</value>", "<loader supported='yes'>\n    <value>/fw/CODE.fd</value>\n    <enum name='type'>", "<enum name='secure'>\n      <value>yes</value>"},
			nil,
		},
	} {
		doc := printed(t, c.doc())
		for _, want := range c.want {
			if !strings.Contains(doc, want) {
				t.Errorf("%s: %q is missing in\n%s", c.about, want, doc)
			}
		}
		for _, not := range c.not {
			if strings.Contains(doc, not) {
				t.Errorf("%s: %q is offered in\n%s", c.about, not, doc)
			}
		}
	}
}

// A device chooses its own name freely. Its document must still be well-formed.
func TestNodeDevice_HostileNames(t *testing.T) {
	doc, err := hostcalls.DescribeDevice(&resources.Device{
		Name: "usb_1_1", Kinds: []resources.Kind{resources.USB}, ProductName: "a\x01b\xff</product>", VendorName: "\x00",
		USB: &kernel.USBDevice{},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := xmltree.Parse(doc); err != nil || !strings.Contains(doc, "ab\ufffd&lt;/product&gt;") {
		t.Errorf("%v\n%s", err, doc)
	}
}
