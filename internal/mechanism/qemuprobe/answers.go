package qemuprobe

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemucaps"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp/schema"
)

// Answers are the answers of one QEMU, by question. A question that it refused has no
// entry. Capabilities are made from them without QEMU, so tests can use recorded
// answers.
type Answers map[string]json.RawMessage

// ReadAnswers reads recorded answers: JSON, packed by gzip.
func ReadAnswers(r io.Reader) (Answers, error) {
	unpacked, err := gzip.NewReader(r)
	if err != nil {
		return nil, err
	}
	var a Answers
	if err := json.NewDecoder(unpacked).Decode(&a); err != nil {
		return nil, err
	}
	return a, nil
}

// ask asks one question. A refusal is no error: the question then has no entry.
func (a Answers) ask(ctx context.Context, s *qmp.Session, command string, args map[string]any) error {
	var answer json.RawMessage
	err := s.Execute(ctx, command, args, &answer)
	var refusal *qmp.Error
	switch {
	case errors.As(err, &refusal):
		return nil
	case err != nil:
		return err
	}
	a[answerKey(command, args)] = answer
	return nil
}

// answerKey is the key of a command's answer: the command with its arguments.
func answerKey(command string, args map[string]any) string {
	if len(args) == 0 {
		return command
	}
	text, err := json.Marshal(args) // of strings and booleans, with sorted keys
	if err != nil {
		panic(err)
	}
	return command + " " + string(text)
}

// get decodes an answer; a missing one leaves into as it is.
func (a Answers) get(into any, command string, args map[string]any) error {
	answer, ok := a[answerKey(command, args)]
	if !ok {
		return nil
	}
	if err := json.Unmarshal(answer, into); err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot understand QEMU's answer to %s", command)
	}
	return nil
}

type arguments = map[string]any

// propertyTypes are the devices and objects whose properties arguments branch on.
var propertyTypes = strings.Fields(`
	virtio-blk-pci virtio-scsi-pci scsi-hd scsi-cd scsi-block ide-hd ide-cd nvme usb-storage floppy ich9-ahci
	virtio-net-pci e1000 e1000e virtio-balloon-pci virtio-rng-pci virtio-serial-pci virtserialport
	virtio-mem-pci virtio-pmem-pci virtio-iommu-pci virtio-gpu-pci virtio-vga VGA qxl-vga qxl
	vhost-vsock-pci vhost-user-fs-pci vhost-user-blk-pci intel-iommu amd-iommu
	pcie-root-port pcie-pci-bridge pci-bridge pxb-pcie qemu-xhci usb-host usb-redir vfio-pci
	pc-dimm nvdimm tpm-tis tpm-crb isa-serial ivshmem-plain ivshmem-doorbell pvpanic pvpanic-pci
	ICH9-LPC PIIX4_PM i6300esb hda-duplex intel-hda
	memory-backend-ram memory-backend-file memory-backend-memfd memory-backend-epc iothread
	sev-guest sev-snp-guest tdx-guest throttle-group tls-creds-x509`)

// The queries for the lists of types. They leave out abstract types.
var (
	deviceTypes  = arguments{"implements": "device", "abstract": false}
	objectTypes  = arguments{"implements": "user-creatable", "abstract": false}
	chardevTypes = arguments{"implements": "chardev", "abstract": false}
	accelTypes   = arguments{"implements": "accel", "abstract": false}
)

// askAll asks everything that does not depend on the accelerator.
func (a Answers) askAll(ctx context.Context, s *qmp.Session) error {
	// Listing types loads QEMU's modules, and some modules add options.
	for _, types := range []arguments{deviceTypes, objectTypes, chardevTypes, accelTypes} {
		if err := a.ask(ctx, s, "qom-list-types", types); err != nil {
			return err
		}
	}
	for _, command := range []string{
		"query-version", "query-target", "query-machines", "query-qmp-schema",
		"query-command-line-options", "query-tpm-models", "query-tpm-types",
	} {
		if err := a.ask(ctx, s, command, nil); err != nil {
			return err
		}
	}
	machines, err := a.machines()
	if err != nil {
		return err
	}
	for _, m := range machines {
		if m.Alias != "" {
			if err := a.ask(ctx, s, "qom-list-properties", arguments{"typename": m.Name + "-machine"}); err != nil {
				return err
			}
		}
	}
	for _, typ := range propertyTypes {
		for _, command := range []string{"device-list-properties", "qom-list-properties"} {
			if err := a.ask(ctx, s, command, arguments{"typename": typ}); err != nil {
				return err
			}
		}
	}
	return nil
}

// Capabilities makes capabilities from the answers, without identities and accelerators.
func (a Answers) Capabilities() (*qemucaps.Capabilities, error) {
	c := &qemucaps.Capabilities{Format: qemucaps.Format, Options: make(map[string][]string)}
	var version qmp.Version
	var target struct{ Arch string }
	var options []struct {
		Option     string
		Parameters []struct{ Name string }
	}
	chardevs, err := a.types(chardevTypes)
	err = errors.Join(err,
		a.get(&version, "query-version", nil),
		a.get(&target, "query-target", nil),
		a.get(&options, "query-command-line-options", nil),
		a.get(&c.TPMModels, "query-tpm-models", nil),
		a.get(&c.TPMBackends, "query-tpm-types", nil),
	)
	c.Arch = target.Arch
	c.Version = qemucaps.Version{
		Major: version.QEMU.Major, Minor: version.QEMU.Minor, Micro: version.QEMU.Micro, Package: version.Package,
	}
	for _, o := range options {
		c.Options[o.Option] = []string{}
		for _, p := range o.Parameters {
			c.Options[o.Option] = append(c.Options[o.Option], p.Name)
		}
		slices.Sort(c.Options[o.Option])
		c.Options[o.Option] = slices.Compact(c.Options[o.Option])
	}
	for _, name := range chardevs {
		c.Chardevs = append(c.Chardevs, strings.TrimPrefix(name, "chardev-"))
	}
	steps := []func(*qemucaps.Capabilities) error{a.fillTypes, a.fillProperties, a.fillSchema}
	for _, fill := range steps {
		err = errors.Join(err, fill(c))
	}
	if err == nil && (c.Arch == "" || len(c.Machines) == 0) {
		err = fault.New(fault.Failed, fault.Host, "QEMU told neither its architecture nor its machines")
	}
	for _, list := range [][]string{c.TPMModels, c.TPMBackends, c.Chardevs, c.Netdevs, c.Displays} {
		slices.Sort(list)
	}
	return c, err
}

func (a Answers) fillTypes(c *qemucaps.Capabilities) error {
	var err [3]error
	c.Machines, err[0] = a.machines()
	c.Devices, err[1] = a.types(deviceTypes)
	c.Objects, err[2] = a.types(objectTypes)
	// Distributions ship these apart from the device that they contain, and a QEMU
	// that is asked for one without the other aborts.
	if !c.HasDevice("virtio-gpu-gl-device") {
		c.Devices = slices.DeleteFunc(c.Devices, func(typ string) bool {
			return typ == "virtio-gpu-gl-pci" || typ == "virtio-vga-gl"
		})
	}
	return errors.Join(err[:]...)
}

// types lists the names of types, sorted.
func (a Answers) types(which arguments) ([]string, error) {
	var list []struct{ Name string }
	err := a.get(&list, "qom-list-types", which)
	names := make([]string, 0, len(list))
	for _, t := range list {
		names = append(names, t.Name)
	}
	slices.Sort(names)
	return names, err
}

func (a Answers) machines() ([]qemucaps.Machine, error) {
	var list []struct {
		Name       string
		Alias      string
		IsDefault  bool   `json:"is-default"`
		Deprecated bool   `json:"deprecated"`
		MaxCPUs    int    `json:"cpu-max"`
		Hotplug    bool   `json:"hotpluggable-cpus"`
		NUMAMemory bool   `json:"numa-mem-supported"`
		CPUType    string `json:"default-cpu-type"`
		RAMID      string `json:"default-ram-id"`
	}
	err := a.get(&list, "query-machines", nil)
	machines := make([]qemucaps.Machine, 0, len(list))
	for _, m := range list {
		machines = append(machines, qemucaps.Machine{
			Name: m.Name, Alias: m.Alias, Default: m.IsDefault, Deprecated: m.Deprecated, MaxCPUs: m.MaxCPUs,
			HotplugCPUs: m.Hotplug, NUMAMemory: m.NUMAMemory, DefaultCPUType: m.CPUType, DefaultRAMID: m.RAMID,
		})
	}
	slices.SortFunc(machines, func(a, b qemucaps.Machine) int { return strings.Compare(a.Name, b.Name) })
	return machines, err
}

func (a Answers) fillProperties(c *qemucaps.Capabilities) error {
	c.Properties = make(map[string][]string)
	var all error
	for _, typ := range propertyTypes {
		all = errors.Join(all, a.fillProperty(c, typ, typ))
	}
	for _, m := range c.Machines {
		if m.Alias != "" {
			all = errors.Join(all, a.fillProperty(c, m.Name, m.Name+"-machine"))
		}
	}
	return all
}

// fillProperty collects the answers of both commands: one knows about the properties
// of buses, the other about those of objects.
func (a Answers) fillProperty(c *qemucaps.Capabilities, name, typ string) error {
	var names []string
	for _, command := range []string{"device-list-properties", "qom-list-properties"} {
		var list []struct{ Name string }
		if err := a.get(&list, command, arguments{"typename": typ}); err != nil {
			return err
		}
		for _, p := range list {
			names = append(names, p.Name)
		}
	}
	if len(names) > 0 {
		slices.Sort(names)
		c.Properties[name] = slices.Compact(names)
	}
	return nil
}

func (a Answers) fillSchema(c *qemucaps.Capabilities) error {
	s, err := schema.Parse(a["query-qmp-schema"])
	if err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot probe QEMU")
	}
	c.Netdevs = s.Values("netdev_add/type")
	c.Displays = s.AnswerValues("query-display-options/type")
	c.Commands = s.Commands()
	for _, f := range qemucaps.Facts() {
		if s.Has(string(f)) {
			c.Facts = append(c.Facts, f)
		}
	}
	slices.Sort(c.Facts)
	return nil
}
