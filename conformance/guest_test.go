package conformance

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/testguest"
	"github.com/lodge-kvm/lodge/internal/testguest/guestimagetest"
	"github.com/lodge-kvm/lodge/internal/testguest/line"
)

// guest is a domain that boots Lodge's test image.
type guest struct {
	d    *daemon
	name string
	port string // the agent's socket
}

// shape holds the properties of a guest that tests vary.
type shape struct {
	name    string
	memory  int // MiB; 0: 160
	vcpus   string
	devices string // XML
	more    string // XML at the level of the domain
	kernel  string // further arguments of the guest's kernel
}

// xml writes the definition. Guests without KVM get a small translation cache, or they would need ten times their
// memory. With hot-plugged processors it is 256 MiB, because QEMU 7.2 aborts there with a small one.
func (s shape) xml(t *testing.T, d *daemon) (*guest, string) {
	t.Helper()
	image := guestimagetest.Find(t)
	g := &guest{d: d, name: s.name, port: filepath.Join(d.dir, s.name+".port")}
	if s.memory == 0 {
		s.memory = 160
	}
	cache := 64
	if s.vcpus == "" {
		s.vcpus = "<vcpu>1</vcpu>"
	} else {
		cache = 256
	}
	return g, fmt.Sprintf(`<domain type='%s'>
  <name>%s</name>
  <memory unit='MiB'>%d</memory>
  %s
  <os>
    <type arch='x86_64' machine='q35'>hvm</type>
    <kernel>%s</kernel>
    <initrd>%s</initrd>
    <cmdline>%s lodge.name=%s %s</cmdline>
  </os>
  <features><acpi/><apic/>%s</features>
  %s
  <devices>
    <serial type='pty'><target port='0'/></serial>
    <console type='pty'><target type='serial' port='0'/></console>
    <channel type='unix'><source mode='bind' path='%s'/><target type='virtio' name='%s'/></channel>
    <channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel>
    <rng model='virtio'><backend model='random'>/dev/urandom</backend></rng>
    %s
  </devices>
</domain>
`, d.kind(t), s.name, s.memory, s.vcpus, image.Kernel, image.Initrd, testguest.Arguments, s.name, s.kernel, d.translation(t, cache), s.more, g.port, line.Port, s.devices)
}

var kindPattern = regexp.MustCompile(`<domain type='(\w+)'`)

// kind is the domain type that works on this host: kvm, or else qemu.
func (d *daemon) kind(t *testing.T) string {
	t.Helper()
	// Other emulators, for 32 bits, may support more than this one.
	_, capabilities, _ := strings.Cut(d.virsh(t, "capabilities"), "<arch name='x86_64'>")
	capabilities, _, _ = strings.Cut(capabilities, "</arch>")
	best := "qemu"
	for _, found := range kindPattern.FindAllStringSubmatch(capabilities, -1) {
		if found[1] == "kvm" {
			best = "kvm"
		}
	}
	return best
}

func (d *daemon) translation(t *testing.T, mebibytes int) string {
	t.Helper()
	if d.kind(t) == "kvm" {
		return ""
	}
	return fmt.Sprintf("<tcg><tb-cache unit='MiB'>%d</tb-cache></tcg>", mebibytes)
}

// file writes a document where virsh can read it.
func (d *daemon) file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(d.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// define defines a guest.
func (d *daemon) define(t *testing.T, s shape) *guest {
	t.Helper()
	g, xml := s.xml(t, d)
	d.virsh(t, "define", d.file(t, s.name+".xml", xml))
	return g
}

// boot defines a guest, starts it and waits for its user space.
func (d *daemon) boot(t *testing.T, s shape) *guest {
	t.Helper()
	g := d.define(t, s)
	d.virsh(t, "start", g.name)
	g.waitForAgent(t)
	return g
}

// waitForAgent waits until the guest's user space answers, and returns its facts.
func (g *guest) waitForAgent(t *testing.T) line.Facts {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), patience, fmt.Errorf("not up within %v", patience))
	defer cancel()
	facts, err := g.ask(ctx, line.Request{Do: line.Ping})
	if err != nil {
		t.Fatalf("guest %s: %v", g.name, err)
	}
	return *facts.Facts
}

// ask sends one request to the guest's agent. The port takes one peer at a time, so the connection is not kept.
func (g *guest) ask(ctx context.Context, q line.Request) (line.Reply, error) {
	host, err := line.Dial(ctx, g.port)
	if err != nil {
		return line.Reply{}, err
	}
	defer host.Close()
	return host.Ask(ctx, q)
}

// shell runs a shell command in the guest and returns its output.
func (g *guest) shell(t *testing.T, command string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := g.ask(ctx, line.Request{Do: line.Exec, Argv: []string{"sh", "-c", command}})
	if err != nil {
		t.Fatalf("guest %s: %v", g.name, err)
	}
	if r.Exit.Code != 0 {
		t.Fatalf("guest %s: %s: exit %d\n%s%s", g.name, command, r.Exit.Code, r.Exit.Stdout, r.Exit.Stderr)
	}
	return strings.TrimSpace(string(r.Exit.Stdout))
}

// state is the output of virsh domstate.
func (g *guest) state(t *testing.T) string {
	t.Helper()
	return g.d.virsh(t, "domstate", g.name, "--reason")
}

// eventually repeats a check, a few times a second, until it succeeds. It is for states that have no event, such
// as a guest's own view of a plugged disk.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%s: not within %v", what, patience)
		}
	}
}

func guestKernel(t *testing.T) string {
	t.Helper()
	return guestimagetest.Find(t).Kernel
}
