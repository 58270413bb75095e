package qemu

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// spoken is a guest with one user's string in every place that takes one.
func spoken(s string) *domain.Definition {
	d := &domain.Definition{
		Virt: "qemu", Name: s, UUID: "00000000-1111-4222-8333-444444440001", Memory: 64 << 20, CurrentMemory: 64 << 20,
		VCPUs: domain.VCPUs{Max: 1, Current: 1},
		OS: domain.OS{
			Arch: "x86_64", Machine: "pc-q35-7.2", SMBIOSMode: "sysinfo", Kernel: s, Initrd: "i" + strings.ReplaceAll(s, ",", ""), Cmdline: s,
			Loader: domain.Loader{Path: s, Type: "pflash"}, NVRAM: domain.NVRAM{Path: s},
		},
		SysInfo: &domain.SysInfo{
			System:     []domain.SysInfoEntry{{Name: "manufacturer", Value: s}, {Name: "serial", Value: s}},
			OEMStrings: []string{s}, FWCfg: []domain.FWCfgEntry{{Name: "opt/" + s, Value: s}, {Name: "opt/f", File: s}},
		},
		GenID: s,
		Clock: domain.Clock{Offset: "timezone", Timezone: s},
	}
	v := &d.Devices
	v.Controllers = []*device.Controller{
		{Type: "pci", Model: "pcie-root"}, {Type: "virtio-serial"}, {Type: "scsi", Model: "virtio-scsi"}, {Type: "usb", Model: "qemu-xhci"},
	}
	v.Disks = []*device.Disk{{
		Device: "disk", Bus: "scsi", Target: "sda", Source: &device.DiskSource{File: s}, Format: "raw",
		Serial: s, Vendor: s, Product: s,
	}}
	v.Disks[0].Address = device.Drive{}
	v.NICs = []*device.NIC{{Type: "user", Model: "virtio", MAC: s, Info: device.Info{ROM: &device.ROM{File: s}}}}
	for i, back := range []device.Backend{
		{Type: "unix", Path: s},
		{Type: "file", Path: "/" + s, LogFile: s},
		{Type: "tcp", Host: s, Service: s},
		{Type: "udp", Host: s, Service: s, BindHost: s, BindService: s},
		{Type: "spiceport", Channel: s},
		{Type: "pipe", Path: "/" + s},
	} {
		v.Channels = append(v.Channels, &device.Char{
			Role: device.Channel, TargetType: "virtio", Name: s, Backend: back, Info: device.Info{Address: device.VirtioSerial{Port: uint(i + 1)}},
		})
	}
	v.Serials = []*device.Char{{Role: device.Serial, TargetType: "isa-serial", Backend: device.Backend{Type: "dev", Path: "/" + s}}}
	v.RNGs = []*device.RNG{{Model: "virtio", Backend: "random", Path: s}}
	v.TPMs = []*device.TPM{{Model: "tpm-crb", Type: "passthrough", Path: s}}
	v.Inputs = []*device.Input{{Type: "evdev", Source: s}, {Type: "passthrough", Bus: "virtio", Source: s}}
	v.Graphics = []*device.Graphics{
		{Type: "vnc", Port: 5900, Listens: []device.Listen{{Type: "address", Address: s}}},
		{
			Type: "spice", Port: 5901, Listens: []device.Listen{{Type: "address", Address: s}}, RenderNode: s, GL: device.On,
			Spice: device.SpiceOptions{ImageCompression: s, Channels: []device.SpiceChannel{{Name: s, Mode: "insecure"}}},
		},
	}
	return d
}

// shape is a command without its values.
func shape(t interface{ Fatalf(string, ...any) }, args []string) []string {
	var all []string
	for i, a := range args {
		switch {
		case i > 0 && slices.Contains([]string{"-kernel", "-initrd", "-append", "-bios", "-uuid"}, args[i-1]):
			all = append(all, "value")
		case strings.HasPrefix(a, "{"):
			var value any
			if err := json.Unmarshal([]byte(a), &value); err != nil {
				t.Fatalf("%s: %v", a, err)
			}
			all = append(all, shapeOf(value))
		case strings.Contains(a, "="):
			all = append(all, strings.Join(keys(a), ","))
		default:
			all = append(all, a)
		}
	}
	return all
}

func shapeOf(value any) string {
	switch v := value.(type) {
	case map[string]any:
		var members []string
		for name, inner := range v {
			members = append(members, name+":"+shapeOf(inner))
		}
		slices.Sort(members)
		return "{" + strings.Join(members, ",") + "}"
	case []any:
		var members []string
		for _, inner := range v {
			members = append(members, shapeOf(inner))
		}
		return "[" + strings.Join(members, ",") + "]"
	}
	return reflect.TypeOf(value).String()
}

// keys reads a list of options as QEMU does: a comma ends a value unless it is
// doubled.
func keys(options string) []string {
	var found []string
	rest := options
	for rest != "" {
		end := 0
		for end < len(rest) {
			if rest[end] == ',' {
				if end+1 >= len(rest) || rest[end+1] != ',' {
					break
				}
				end++
			}
			end++
		}
		name, _, _ := strings.Cut(rest[:min(end, len(rest))], "=")
		found = append(found, name)
		rest = rest[min(end+1, len(rest)):]
	}
	return found
}

// A user's string can never become more than a value, whatever it contains.
func TestArguments_NoInjection(t *testing.T) {
	c := testCapabilities(t)
	arguments := func(s string) ([]string, error) {
		def := spoken(s)
		AssignAliases(def)
		p := testPlan(def, c, "/run/g")
		command, err := Arguments(p)
		if err != nil {
			return nil, err
		}
		return command.Args, nil
	}
	plain, err := arguments("x")
	if err != nil {
		t.Fatal(err)
	}
	want := shape(t, plain)
	pieces := []string{",", ",,", "=", "\n", `"`, `\`, "{", "}", "x", "server=off", "-device", "readonly=on", "é", " ", "'", "$(id)", ":", "[", "]"}
	rapid.Check(t, func(t *rapid.T) {
		s := strings.Join(rapid.SliceOfN(rapid.SampledFrom(pieces), 1, 8).Draw(t, "pieces"), "")
		args, err := arguments(s)
		if err != nil {
			if !fault.Is(err, fault.Invalid) {
				t.Fatal(err)
			}
			return
		}
		if got := shape(t, args); !slices.Equal(got, want) {
			for i := range min(len(got), len(want)) {
				if got[i] != want[i] {
					t.Fatalf("%q makes %s of %s:\n%s", s, got[i], want[i], args[i])
				}
			}
			t.Fatalf("%q makes %d words of %d", s, len(got), len(want))
		}
	})
}

// FuzzArguments gives documents of any kind. A refused document gets an error;
// an accepted one has well-formed arguments.
func FuzzArguments(f *testing.F) {
	for _, g := range goldens(f) {
		f.Add(g.doc)
	}
	c := testCapabilities(f)
	f.Fuzz(func(t *testing.T, doc string) {
		def, err := understand(doc, c)
		if err != nil {
			if fault.Is(err, fault.Internal) {
				t.Fatal(err)
			}
			return
		}
		AssignAliases(def)
		command, err := Arguments(testPlan(def, c, "/run/g"))
		if err != nil {
			if fault.Is(err, fault.Internal) {
				t.Fatal(err)
			}
			return
		}
		for i, a := range command.Args {
			if strings.HasPrefix(a, "{") && slices.Contains([]string{"-device", "-blockdev", "-object", "-netdev", "-audiodev"}, command.Args[i-1]) && !json.Valid([]byte(a)) {
				t.Fatalf("%s", a)
			}
		}
	})
}
