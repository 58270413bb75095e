package guest_test

import (
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// newGenerous makes a daemon that gives new guests a source of random numbers.
func newGenerous(t *testing.T) *daemon {
	t.Helper()
	d := newDaemon(t)
	d.close()
	d.gives = true
	d.open()
	return d
}

func (d *daemon) wantRNGs(g *guest.Guest, want int) {
	d.t.Helper()
	v := g.View()
	if got := len(v.Current().Devices.RNGs); got != want {
		d.t.Errorf("%s has %d sources of random numbers, want %d", v.Name, got, want)
	}
	if told := provision.Decisions(v); len(told) != want {
		d.t.Errorf("%s: %d decisions are told: %v", v.Name, len(told), told)
	}
}

func inactive(t *testing.T, g *guest.Guest) string {
	t.Helper()
	text, err := domainxml.Format(g.View().Inactive, domainxml.Style{Secure: true})
	ok(t, err)
	return text
}

func without(t *testing.T, doc string) string {
	t.Helper()
	before, rest, found := strings.Cut(doc, "<rng ")
	_, after, _ := strings.Cut(rest, "</rng>")
	if !found {
		t.Fatalf("no <rng> is in\n%s", doc)
	}
	return before + after
}

// A new machine gets a random number source, and its messages say why and how to undo it. Nothing else of the
// machine differs, and it starts. The guest keeps the source while its user defines the same document.
// Promise: H7
func TestRNG_AddedToNewMachine(t *testing.T) {
	d := newGenerous(t)
	for _, machine := range []string{"q35", "pc"} {
		doc := strings.Replace(small("new-"+machine, "<controller type='scsi' model='virtio-scsi'/>"), "'q35'", "'"+machine+"'", 1)
		g := d.define(doc)
		d.wantRNGs(g, 1)
		rng := g.View().Inactive.Devices.RNGs[0]
		if _, placed := rng.Address.(device.PCI); !placed || rng.Model != "virtio" || rng.Backend != "random" || rng.Path != "/dev/urandom" {
			t.Errorf("%s: the source is %+v", machine, rng)
		}
		told := provision.Decisions(g.View())[0].String()
		for _, word := range []string{"virtio-rng", "/dev/urandom", "named no <rng>", machine, "virsh detach-device-alias new-" + machine + " " + rng.Alias + " --config"} {
			if !strings.Contains(told, word) {
				t.Errorf("the message does not contain %q: %s", word, told)
			}
		}
		id := strings.Replace(doc, "<memory", "<uuid>"+g.UUID+"</uuid><memory", 1)
		d.define(id)
		d.wantRNGs(g, 1)
		d.define(inactive(t, g))
		d.wantRNGs(g, 1)
		ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
		d.want(g, domain.Running, domain.ReasonBooted)
		d.wantRNGs(g, 1)
		ok(t, guest.Destroy(d.ctx(), g, scope.Daemon("a test"), false))
		// The others are where they would be without.
		bare := d.define(strings.NewReplacer("new-"+machine, "bare-"+machine, "<vcpu>", declines+"<vcpu>").Replace(doc))
		for n, dev := range bare.View().Inactive.Devices.All() {
			if with := g.View().Inactive.Devices.All()[n]; with.Kind() == dev.Kind() && with.Common().Address != dev.Common().Address {
				t.Errorf("%s: the %s is at %v, and at %v without a source", machine, dev.Kind(), with.Common().Address, dev.Common().Address)
			}
			if dev.Kind() == "rng" {
				break
			}
		}
	}
	transient, err := guest.Create(d.ctx(), d.Registry, scope.Daemon("a test"), small("transient"), launch.StartOptions{Paused: true})
	ok(t, err)
	d.wantRNGs(transient, 1)
	ok(t, guest.Destroy(d.ctx(), transient, scope.Daemon("a test"), false))
}

const declines = `<metadata><l:guest xmlns:l='` + provision.MarksNamespace + `' rng='no'/></metadata>`

// A random number source that a user removes stays removed, no matter how it was removed.
// Promise: H7
func TestRNG_RemovedStaysRemoved(t *testing.T) {
	d := newGenerous(t)
	for name, remove := range map[string]func(*guest.Guest){
		"alias": func(g *guest.Guest) {
			ok(t, hotplug.DetachAlias(d.ctx(), g, scope.Daemon("a test"), "ua-lodge-rng", machine.Affect{Config: true}))
		},
		"device": func(g *guest.Guest) {
			ok(t, hotplug.Detach(d.ctx(), g, scope.Daemon("a test"), "<rng model='virtio'><backend model='random'>/dev/urandom</backend></rng>", machine.Affect{Config: true}))
		},
		"edit": func(g *guest.Guest) { d.define(without(t, inactive(t, g))) },
	} {
		doc := small(name)
		g := d.define(doc)
		d.wantRNGs(g, 1)
		remove(g)
		d.wantRNGs(g, 0)
		d.define(strings.Replace(doc, "<memory", "<uuid>"+g.UUID+"</uuid><memory", 1))
		d.wantRNGs(g, 0)
		run, err := guest.Create(d.ctx(), d.Registry, scope.Daemon("a test"), strings.Replace(doc, "<memory", "<uuid>"+g.UUID+"</uuid><memory", 1), launch.StartOptions{Paused: true})
		ok(t, err)
		d.wantRNGs(run, 0)
		ok(t, guest.Destroy(d.ctx(), run, scope.Daemon("a test"), false))
		edited := inactive(t, g)
		ok(t, guest.Undefine(d.ctx(), g, scope.Daemon("a test"), guest.UndefineOptions{}))
		d.wantRNGs(d.define(edited), 0)
	}
}

// A machine that is not new keeps its hardware. No source is added if one is declined or present, or if there
// is no free slot.
// Promise: H7
func TestRNG_NotAddedToExistingMachine(t *testing.T) {
	d := newGenerous(t)
	own := d.define(small("own", "<rng model='virtio'><backend model='random'>/dev/random</backend></rng>"))
	if rngs := own.View().Inactive.Devices.RNGs; len(rngs) != 1 || rngs[0].Path != "/dev/random" || len(provision.Decisions(own.View())) > 0 {
		t.Errorf("a source of the user's own becomes %+v, told as %v", rngs, provision.Decisions(own.View()))
	}
	for name, doc := range map[string]string{
		"declined":   strings.Replace(small("declined"), "<vcpu>", declines+"<vcpu>", 1),
		"microvm":    `<domain type='qemu'><name>microvm</name><memory unit='MiB'>64</memory><os><type machine='microvm'>hvm</type></os></domain>`,
		"an address": small("placed", "<memballoon model='virtio'><address type='pci' bus='0' slot='5'/></memballoon>"),
		"a root":     small("rooted", "<controller type='pci' index='0' model='pcie-root'/>"),
	} {
		g := d.define(doc)
		if len(g.View().Inactive.Devices.RNGs) > 0 {
			t.Errorf("%s: a source was given", name)
		}
	}
	// A daemon of before, or one that is told not to, gave none: its guests stay so,
	// run or not, whatever the next one would do.
	d.close()
	d.gives = false
	d.open()
	old := d.define(small("old"))
	_, err := guest.Create(d.ctx(), d.Registry, scope.Daemon("a test"), small("runs"), launch.StartOptions{Paused: true})
	ok(t, err)
	saved := inactive(t, old)
	d.close()
	d.gives = true
	d.open()
	for _, name := range []string{"old", "runs"} {
		g, err := d.ByName(name)
		ok(t, err)
		d.wantRNGs(g, 0)
		d.define(strings.Replace(small(name), "<memory", "<uuid>"+g.UUID+"</uuid><memory", 1))
		if len(g.View().Inactive.Devices.RNGs) > 0 {
			t.Errorf("%s is given a source when it is defined again", name)
		}
	}
	again, err := d.ByName("old")
	ok(t, err)
	ok(t, guest.Undefine(d.ctx(), again, scope.Daemon("a test"), guest.UndefineOptions{}))
	d.wantRNGs(d.define(saved), 0)
}
