package domainxml

import (
	"bufio"
	"cmp"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// verdict is a definition and what libvirt 9.0 says of it: 0, or the number of its
// error. Where libvirt speaks of an internal error, it is the number of Lodge's.
type verdict struct {
	code, name, doc string
}

// verdicts reads testdata/verdicts.tsv: the code, a name, the machine, and the contents
// of os, of the domain, the memory, the vcpus and the devices.
func verdicts(t *testing.T) (all []verdict) {
	f, err := os.Open("testdata/verdicts.tsv")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		v := strings.Split(lines.Text(), "\t")
		if len(v) != 8 {
			t.Fatalf("a line of %d fields: %s", len(v), lines.Text())
		}
		all = append(all, verdict{v[0], v[1], fmt.Sprintf(
			"<domain type='qemu'><name>a</name>%s%s<os><type arch='x86_64' machine='%s'>hvm</type>%s</os>%s<devices>%s</devices></domain>",
			cmp.Or(v[5], "<memory unit='MiB'>64</memory>"), cmp.Or(v[6], "<vcpu>1</vcpu>"), v[2], v[3], v[4], v[7])})
	}
	return all
}

// submit runs all checks of a definition that need no QEMU.
func submit(doc string) error {
	def, err := Parse(doc, Options{Submitted: true, Host: testHost()})
	if err != nil {
		return err
	}
	return def.Check()
}

// codes are libvirt's numbers for the kinds of error that a definition has.
func codes(err error) string {
	switch subject := fault.About(err); {
	case err == nil:
		return "0"
	case subject == fault.XML:
		return "27"
	case subject == fault.XMLDetail:
		return "35"
	case subject == fault.Call:
		return "8"
	default:
		return "67"
	}
}

// constant is how the protocol names a call, which no user knows.
var constant = regexp.MustCompile(`[A-Z]{3,}_[A-Z]`)

// Promise: G10
func TestParse_VerdictsOfLibvirt(t *testing.T) {
	for _, v := range verdicts(t) {
		err := submit(v.doc)
		if codes(err) != v.code {
			t.Errorf("%s: %s, want %s: %v", v.name, codes(err), v.code, err)
		}
		if err != nil && (len(err.Error()) > 300 || constant.MatchString(err.Error())) {
			t.Errorf("%s: nobody can read %v", v.name, err)
		}
	}
}

// Definitions that an earlier Lodge accepted can still be read: new rules apply to submitted ones only.
// Promise: G10
func TestParse_StoredBeforeNewRules(t *testing.T) {
	for _, v := range verdicts(t) {
		def, err := Parse(v.doc, Options{})
		if err != nil {
			continue // by a rule that there has always been
		}
		text, err := Format(def, Style{Secure: true})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Parse(text, Options{}); err != nil {
			t.Errorf("%s is lost once it is stored: %v", v.name, err)
		}
	}
}

func TestUnbuilt_FullPathAndAlternative(t *testing.T) {
	for doc, want := range map[string]string{
		in("", "<features><xen><e820_host state='on'/></xen></features>"):                          "not supported: features/xen; leave it out",
		in("<interface type='user'><vlan><tag id='4'/></vlan></interface>", ""):                    "devices/interface/vlan; use a bridge that is tagged already",
		in("<filesystem><source dir='/a'/><target dir='b'/></filesystem>", ""):                     "devices/filesystem; share files over the network",
		in("<disk type='network'><source protocol='nbd' name='x'/><target dev='vda'/></disk>", ""): `devices/disk/@type "network" is not supported; attach the storage on the host (`,
		in("", "<vcpus><vcpu id='0' enabled='yes'/></vcpus>"):                                      "vcpus; use vcpu/@current",
		in("<memory model='nvdimm'><target><size>1024</size><node>0</node></target></memory>", ""): `"nvdimm" is not supported; use model dimm`,
	} {
		if _, err := Parse(doc, Options{}); !fault.Is(err, fault.Unsupported) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	_, err := ParseDevice("<disk type='nvme'><source/><target dev='vda'/></disk>", Options{})
	if err == nil || !strings.HasPrefix(err.Error(), `disk/@type "nvme" is not supported; leave the drive to the host's nvme driver`) {
		t.Errorf("of a device by itself: %v", err)
	}
}

// A definition of a thousand devices costs no more than a blink to refuse or take.
func TestCheck_ManyDevices(t *testing.T) {
	cost := func(count int) time.Duration {
		var devices strings.Builder
		for i := range count {
			fmt.Fprintf(&devices, "<interface type='user'><model type='virtio'/></interface><hostdev mode='subsystem' type='usb'><source><vendor id='0x%x'/><product id='1'/></source></hostdev>", i+1)
		}
		def, err := Parse(in(devices.String(), ""), Options{Submitted: true, Host: &Host{}})
		if err != nil {
			t.Fatal(err)
		}
		best := time.Hour
		for range 5 {
			began := time.Now()
			if err := def.Check(); err != nil {
				t.Fatal(err)
			}
			best = min(best, time.Since(began))
		}
		return best
	}
	if thousand := cost(500); thousand > 20*time.Millisecond {
		t.Errorf("a thousand devices took %v", thousand)
	}
}

// One more device is held to the same rules as those of a whole definition, and the
// others are left in peace.
func TestCheckDevice_LooksAtTheNewOneOnly(t *testing.T) {
	twoTPMs := `<tpm model='tpm-tis'><backend type='emulator' version='2.0'/></tpm>`
	def, err := Parse(in(twoTPMs+twoTPMs, ""), Options{Host: testHost()})
	if err != nil {
		t.Fatal(err)
	}
	if def.Check() == nil {
		t.Error("a guest has two TPMs")
	}
	for doc, refused := range map[string]bool{
		"<rng model='virtio'><backend model='random'>/dev/urandom</backend></rng>": false,
		twoTPMs:                                 true,
		"<redirdev bus='usb' type='spicevmc'/>": true,
		"<disk type='file' device='disk'><source file='/a'/><target dev='sda' bus='sata'/><readonly/></disk>": true,
	} {
		dev, err := ParseDevice(doc, Options{Submitted: true})
		if err == nil {
			err = CompleteDevice(dev, def.OS.Machine, testHost())
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := def.CheckDevice(dev); (err != nil) != refused {
			t.Errorf("%s: %v", doc, err)
		}
	}
}

func TestAutoPlacement_SubmittedAndStored(t *testing.T) {
	for _, doc := range []string{
		in("", "<vcpu placement='auto'>1</vcpu>"),
		in("", "<numatune><memory mode='strict' placement='auto'/></numatune>"),
	} {
		err := submit(doc)
		if !fault.Is(err, fault.Unsupported) || !strings.Contains(err.Error(), `vcpu/@placement`) || !strings.Contains(err.Error(), "vcpu/@cpuset") {
			t.Errorf("%v", err)
		}
		var def *domain.Definition
		if def, err = Parse(doc, Options{}); err != nil || def == nil {
			t.Errorf("a stored one is lost: %v", err)
		}
	}
}

// A refusal names a handful of parts, however many there are.
func TestUnbuilt_ManyParts(t *testing.T) {
	_, err := Parse(in(strings.Repeat("<filesystem><source dir='/a'/><target dir='b'/></filesystem>", 500), ""), Options{})
	if err == nil || len(err.Error()) > 500 || !strings.Contains(err.Error(), " and others; share files") {
		t.Errorf("%v", err)
	}
}
