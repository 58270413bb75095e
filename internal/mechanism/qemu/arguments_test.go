package qemu

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemucaps"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemuprobe"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/topology"
)

var update = flag.Bool("update", false, "write the expected arguments anew")

// separator stands between a document and its expected arguments.
const separator = "----\n"

// testCapabilities are those of QEMU 7.2, on a host where both accelerators
// work.
func testCapabilities(t testing.TB) *qemucaps.Capabilities {
	t.Helper()
	said := recordedAnswers(t)
	c, err := said.Capabilities()
	if err != nil {
		t.Fatal(err)
	}
	c.Binary.Path = "/usr/bin/qemu-system-x86_64"
	for _, name := range []string{"kvm", "tcg"} {
		acc := qemucaps.Accelerator{Name: "tcg", Present: true, Usable: true}
		if err := said.FillCPUs(&acc); err != nil {
			t.Fatal(err)
		}
		acc.Name, acc.HostCPU = name, name == "kvm"
		c.Accelerators = append(c.Accelerators, acc)
	}
	return c
}

// recordedAnswers are those of QEMU 7.2 under TCG.
func recordedAnswers(t testing.TB) qemuprobe.Answers {
	t.Helper()
	file, err := os.Open("../qemuprobe/testdata/qemu-7.2-answers.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	said, err := qemuprobe.ReadAnswers(file)
	if err != nil {
		t.Fatal(err)
	}
	return said
}

// understand turns a document into a complete definition.
func understand(doc string, c *qemucaps.Capabilities) (*domain.Definition, error) {
	def, err := domainxml.Parse(doc, domainxml.Options{
		Host:     &domainxml.Host{Canonical: c.Canonical, Emulator: c.Binary.Path, Random: zeros{}},
		Validate: true,
	})
	if err != nil {
		return nil, err
	}
	if err := Complete(def, c); err != nil {
		return def, err
	}
	return def, settled(def)
}

// define turns a document into the definition that is stored, as the daemon does.
func define(doc string, c *qemucaps.Capabilities) error {
	def, err := domainxml.Parse(doc, domainxml.Options{Submitted: true})
	if err != nil {
		return err
	}
	host := &domainxml.Host{Canonical: c.Canonical, Emulator: c.Binary.Path, Random: zeros{}}
	if err := domainxml.Complete(def, host); err != nil {
		return err
	}
	if err := def.Check(); err != nil {
		return err
	}
	if err := Complete(def, c); err != nil {
		return err
	}
	_, err = domainxml.Format(def, domainxml.Style{Secure: true, Settled: true})
	return err
}

// settled checks that a completed definition has none of the values that only a running guest
// has: the code that stores it does not check again.
func settled(def *domain.Definition) error {
	as, err := domainxml.Format(def, domainxml.Style{Secure: true, Settled: true})
	if err != nil {
		return err
	}
	if settling, err := domainxml.Format(def, domainxml.Style{Secure: true}); err != nil || as != settling {
		return fmt.Errorf("a completed definition is not settled: %s", cmp.Diff(settling, as))
	}
	return nil
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// testPlan gives a guest everything that the host provides, with the images of a
// directory: each disk gets the chain that its definition describes.
func testPlan(def *domain.Definition, c *qemucaps.Capabilities, dir string) *Plan {
	p := &Plan{
		Definition: def, Capabilities: c, Dir: dir, Now: time.Date(2024, 2, 29, 12, 0, 0, 0, time.UTC),
		Disks: map[string]device.DiskAttachment{}, NICs: map[string]*device.NICAttachment{}, TPMSockets: map[string]string{},
	}
	for _, d := range def.Devices.Disks {
		if d.Source != nil {
			p.Disks[d.Alias] = attachment(d)
		}
	}
	for _, n := range def.Devices.NICs {
		if n.Type != "user" {
			a := &device.NICAttachment{IfName: "vnet0"}
			for range max(n.Queues, 1) {
				a.Tap = append(a.Tap, os.Stdin)
				if n.Backend == "vhost" {
					a.VHost = append(a.VHost, os.Stdin)
				}
			}
			p.NICs[n.Alias] = a
		}
	}
	for i, g := range def.Devices.Graphics {
		if g.AutoPort == device.On {
			g.Port = 5900 + i
		}
	}
	for _, t := range def.Devices.TPMs {
		p.TPMSockets[t.Alias] = filepath.Join(dir, t.Alias+".sock")
	}
	return p
}

func attachment(d *device.Disk) device.DiskAttachment {
	top := device.Layer{Path: d.Source.Path(), Format: d.Format, Block: d.Source.Block != ""}
	a := device.DiskAttachment{Layers: []device.Layer{top}, Size: 1440 << 10}
	for _, l := range d.Backing {
		if l.Source != nil {
			a.Layers = append(a.Layers, device.Layer{Path: l.Source.Path(), Format: l.Format, Block: l.Source.Block != ""})
		}
	}
	return a
}

// lines writes a command with one option on each line.
func lines(c *Command) string {
	var b strings.Builder
	for _, e := range c.Env {
		fmt.Fprintf(&b, "env %s\n", e)
	}
	for i, a := range c.Args {
		switch {
		case strings.HasPrefix(a, "-") && i > 0:
			b.WriteByte('\n')
		case i > 0:
			b.WriteByte(' ')
		}
		b.WriteString(a)
	}
	return b.String() + "\n"
}

type golden struct{ path, doc, want string }

func goldens(t testing.TB) map[string]golden {
	t.Helper()
	paths, err := filepath.Glob("testdata/arguments/*.txt")
	if err != nil || len(paths) == 0 {
		t.Fatal("no documents", err)
	}
	all := map[string]golden{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		doc, want, _ := strings.Cut(string(text), separator)
		all[strings.TrimSuffix(filepath.Base(path), ".txt")] = golden{path, doc, want}
	}
	return all
}

// Every document results in the arguments that stand below it.
func TestArguments(t *testing.T) {
	c := testCapabilities(t)
	for name, g := range goldens(t) {
		t.Run(name, func(t *testing.T) {
			got := argumentsOf(g.doc, c)
			if *update {
				if err := os.WriteFile(g.path, []byte(g.doc+separator+got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(g.want, got); diff != "" {
				t.Errorf("arguments (-want +got):\n%s", diff)
			}
		})
	}
}

// argumentsOf returns the arguments of a document, or the reason why there are none.
func argumentsOf(doc string, c *qemucaps.Capabilities) string {
	def, err := understand(doc, c)
	if err != nil {
		return "error: " + err.Error() + "\n"
	}
	AssignAliases(def)
	command, err := Arguments(testPlan(def, c, "/run/lodge/guest"))
	if err != nil {
		return "error: " + err.Error() + "\n"
	}
	return lines(command)
}

// A second Complete changes nothing, and neither does giving aliases to devices that
// have them.
func TestCompleteTwice(t *testing.T) {
	c := testCapabilities(t)
	for name, g := range goldens(t) {
		def, err := understand(g.doc, c)
		if err != nil {
			continue
		}
		once := def.Clone()
		if err := Complete(def, c); err != nil || !reflect.DeepEqual(def, once) {
			t.Errorf("%s: completed twice: %v %s", name, err, cmp.Diff(once, def, cmp.Comparer(topology.CPUSet.Equal)))
		}
		AssignAliases(def)
		once = def.Clone()
		AssignAliases(def)
		if !reflect.DeepEqual(def, once) {
			t.Errorf("%s: named twice", name)
		}
	}
}
