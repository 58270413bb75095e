package conformance

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/digitalocean/go-libvirt"

	"github.com/lodge-kvm/lodge/internal/testguest"
	"github.com/lodge-kvm/lodge/internal/testguest/guestimagetest"
)

func needsPython(t *testing.T, d *daemon) {
	t.Helper()
	if err := d.command(t.Context(), "/usr/bin/python3", "-c", "import libvirt").Run(); err != nil {
		t.Skip("needs python3-libvirt, which is not installed here")
	}
}

// script returns the path of a Python program in testdata.
func script(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Promise: G1
func TestPython(t *testing.T) {
	needs(t)
	d := start(t)
	needsPython(t, d)
	d.boot(t, shape{name: "snake"})
	contains(t, "the survey", d.output(t, "/usr/bin/python3", script(t, "survey.py"), d.uri(), "snake"), "surveyed snake")
}

func TestPython_EventOrder(t *testing.T) {
	needs(t)
	d := start(t)
	needsPython(t, d)
	d.define(t, shape{name: "stage"})
	heard := strings.Split(strings.TrimSpace(d.output(t, "/usr/bin/python3", script(t, "events.py"), d.uri(), "stage")), "\n")
	// The numbers are libvirt's for kinds and details: booted 0, paused 0, unpaused 0, destroyed 1. Other events
	// may come in between.
	want := []string{
		"lifecycle stage started 0", "lifecycle stage suspended 0", "lifecycle stage resumed 0", "metadata stage 1", "reboot stage", "lifecycle stage stopped 1",
	}
	for _, line := range heard {
		if len(want) > 0 && line == want[0] {
			want = want[1:]
		}
	}
	if len(want) > 0 {
		t.Errorf("not heard, or not in this order: %q\nheard:\n%s", want, strings.Join(heard, "\n"))
	}
}

// Promise: G1
func TestGoLibvirt(t *testing.T) {
	needs(t)
	d := start(t)
	d.define(t, shape{name: "gopher"})
	l, err := connected(d.socket(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Disconnect() }()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	events, err := l.LifecycleEvents(ctx)
	if err != nil {
		t.Fatal(err)
	}
	dom, err := l.DomainLookupByName("gopher")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.DomainCreate(dom); err != nil {
		t.Fatal(err)
	}
	if err := l.DomainDestroy(dom); err != nil {
		t.Fatal(err)
	}
	for _, want := range []libvirt.DomainEventType{libvirt.DomainEventStarted, libvirt.DomainEventStopped} {
		for got := range events {
			if libvirt.DomainEventType(got.Event) == want {
				break
			}
		}
	}
	if ctx.Err() != nil {
		t.Error("the events that the guest starts and stops do not arrive")
	}
	if _, err := l.DomainLookupByName("nobody"); !libvirt.IsNotFound(err) {
		t.Errorf("looking up a missing domain gives %v", err)
	}
}

// image copies the test guest's disk.
func (d *daemon) image(t *testing.T, name string) string {
	t.Helper()
	from, err := os.Open(filepath.Join(filepath.Dir(guestimagetest.Find(t).Kernel), "disk.raw"))
	if err != nil {
		t.Skip("the guest image was made without its disk: run make guest")
	}
	defer from.Close()
	path := filepath.Join(d.dir, name)
	to, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	if _, err := io.Copy(to, from); err != nil {
		t.Fatal(err)
	}
	return path
}

// install runs virt-install for a guest with an agent.
func (d *daemon) install(t *testing.T, name string, args ...string) *guest {
	t.Helper()
	g := &guest{d: d, name: name, port: filepath.Join(d.dir, name+".port")}
	args = append([]string{
		"HOME=" + d.dir, "virt-install", "--connect", d.uri(), "--name", name, "--memory", "192", "--vcpus", "1", "--osinfo", "generic",
		"--network", "none", "--graphics", "none", "--noautoconsole", "--import",
		"--channel", "unix,source.mode=bind,source.path=" + g.port + ",target.type=virtio,target.name=lodge.guest.0",
	}, args...)
	if d.kind(t) == "qemu" {
		args = append(args, "--virt-type", "qemu", "--xml", "./features/tcg/tb-cache=64", "--xml", "./features/tcg/tb-cache/@unit=MiB")
	}
	t.Log(d.output(t, "env", args...))
	return g
}

// Promise: G1
func TestVirtInstall_ImportThenVirtClone(t *testing.T) {
	onlyInClients(t)
	needs(t, "virt-install", "virt-clone", "virt-xml")
	d := start(t)
	g := d.install(t, "imported", "--disk", "path="+d.image(t, "imported.raw")+",format=raw,bus=virtio")
	if disks := strings.Join(g.waitForAgent(t).Disks, " "); !strings.Contains(disks, "vda1") {
		t.Errorf("the guest sees the disks %s", disks)
	}
	d.virsh(t, "destroy", "imported")

	copied := &guest{d: d, name: "copied", port: filepath.Join(d.dir, "copied.port")}
	d.output(t, "env", "HOME="+d.dir, "virt-clone", "--connect", d.uri(), "--original", "imported", "--name", "copied", "--file", filepath.Join(d.dir, "copied.raw"))
	if d.virsh(t, "domuuid", "copied") == d.virsh(t, "domuuid", "imported") {
		t.Error("the clone has the UUID of its original")
	}
	d.output(t, "env", "HOME="+d.dir, "virt-xml", "--connect", d.uri(), "copied", "--edit", "target.name=lodge.guest.0", "--channel", "source.path="+copied.port)
	d.output(t, "env", "HOME="+d.dir, "virt-xml", "--connect", d.uri(), "copied", "--edit", "--memory", "160")
	contains(t, "dominfo", d.virsh(t, "dominfo", "copied"), "Used memory:    163840 KiB")
	d.virsh(t, "start", "copied")
	copied.waitForAgent(t)
}

func TestVirtInstall_BootsKernel(t *testing.T) {
	needs(t, "virt-install")
	d := start(t)
	image := guestimagetest.Find(t)
	began := time.Now()
	g := d.install(t, "kernel", "--disk", "none", "--boot", "kernel="+image.Kernel+",initrd="+image.Initrd+",kernel_args="+testguest.Arguments+" lodge.name=kernel")
	if host := g.waitForAgent(t).Hostname; host != "kernel" {
		t.Errorf("the guest calls itself %q", host)
	}
	t.Logf("up %v after virt-install began", time.Since(began).Round(time.Millisecond))
}
