package fleet

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/host/volume"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// golden is a guest with everything that two guests cannot share. DIR stands for the folder of its disks.
const golden = `<domain type='qemu'><name>golden</name><genid>7f3c1a5e-6f0d-4a57-9a8e-3c1b5d9e0a11</genid>
  <metadata><own xmlns='urn:own'>kept</own><l:guest xmlns:l='https://lodge-kvm.github.io/xmlns/guest/1.0' priority='3'>
    <l:label name='app' value='web'/><l:label name='tile' value='lab/1'/><l:volume pool='default' name='golden.qcow2'/></l:guest></metadata>
  <memory unit='MiB'>64</memory><vcpu>1</vcpu>
  <sysinfo type='smbios'><system><entry name='manufacturer'>Lodge</entry><entry name='serial'>S-1</entry></system></sysinfo>
  <os><type arch='x86_64' machine='q35'>hvm</type><smbios mode='sysinfo'/></os>
  <features><acpi/><tcg><tb-cache unit='MiB'>32</tb-cache></tcg></features>
  <devices>
    <disk type='file' device='disk'><driver name='qemu' type='qcow2'/><source file='DIR/golden.qcow2'/><target dev='vda' bus='virtio'/></disk>
    <disk type='volume' device='disk'><driver name='qemu' type='raw'/><source pool='default' volume='golden.data'/><target dev='vdb' bus='virtio'/></disk>
    <disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='DIR/common.raw'/><target dev='vdc' bus='virtio'/><readonly/></disk>
    <interface type='user'><mac address='52:54:00:00:00:01'/></interface>
    <interface type='user'><mac address='52:54:00:00:00:02'/></interface>
    <serial type='pty'/>
    <graphics type='vnc' port='5931' autoport='no'/>
    <vsock><cid auto='no' address='77'/></vsock>
  </devices></domain>`

// goldenGuest defines that guest and its disks.
func (h *herd) goldenGuest() (dir string) {
	h.t.Helper()
	dir = h.withPool()
	p, err := h.pools.ByName("default")
	ok(h.t, err)
	_, err = p.CreateVolume(h.t.Context(), scope.Daemon("a test"), "<volume><name>golden.qcow2</name><capacity unit='MiB'>1</capacity><target><format type='qcow2'/></target></volume>", volume.CreateOptions{})
	ok(h.t, err)
	for _, name := range []string{"golden.data", "common.raw"} {
		_, err = p.FillVolume(h.t.Context(), scope.Daemon("a test"), name, bytes.Repeat([]byte(name), 512))
		ok(h.t, err)
	}
	h.define(strings.ReplaceAll(golden, "DIR", dir))
	return dir
}

// clone makes clones and returns "name outcome" for each, sorted, and the errors.
func (h *herd) clone(q CloneRequest) ([]string, error) {
	h.t.Helper()
	var told []string
	var failures []error
	_, err := h.Clone(h.t.Context(), scope.Daemon("a test"), q, func(Plan) {}, func(r Result) {
		told = append(told, r.Name+" "+string(r.Outcome))
		failures = append(failures, r.Error)
	})
	slices.Sort(told)
	return told, errors.Join(append(failures, err)...)
}

func (h *herd) document(name string) string {
	h.t.Helper()
	doc, err := domainxml.Format(h.view(name).Inactive, domainxml.Style{Secure: true})
	ok(h.t, err)
	return doc
}

// Promise: H1
func TestClone_IdentitiesDiffer(t *testing.T) {
	h := newHerd(t)
	dir := h.goldenGuest()
	before, there := h.document("golden"), files(t, dir)
	got, err := h.clone(CloneRequest{Source: "golden", Names: []string{"one", "two"}, DryRun: true})
	ok(t, err)
	h.wants("dry run", got, "one would", "two would")
	h.wants("files of a dry run", files(t, dir), there...)

	got, err = h.clone(CloneRequest{Source: "golden", Names: []string{"one", "two"}})
	ok(t, err)
	h.wants("clone", got, "one done", "two done")
	h.wants("files", files(t, dir), "common.raw", "golden.data", "golden.qcow2", "one-vda.qcow2", "one-vdb.data", "two-vda.qcow2", "two-vdb.data")
	if after := h.document("golden"); after != before {
		t.Errorf("the source was\n%s\nand is\n%s", before, after)
	}
	if left := h.guests.Clashes(h.view("golden"), nil); len(left) > 0 {
		t.Errorf("after cloning, golden %q", left)
	}
	seen := map[string]string{}
	for _, name := range []string{"golden", "one", "two"} {
		d := h.view(name).Inactive
		for what, value := range map[string]string{
			"uuid": d.UUID, "genid": d.GenID, "serial": d.SysInfo.System[1].Value, "first MAC": d.Devices.NICs[0].MAC, "second MAC": d.Devices.NICs[1].MAC,
			"first disk": d.Devices.Disks[0].Source.Path(), "second disk": d.Devices.Disks[1].Source.Volume.Volume,
		} {
			if who, twice := seen[what+value]; twice || value == "" {
				t.Errorf("%s has the %s of %s: %q", name, what, who, value)
			}
			seen[what+value] = name
		}
		if name == "golden" {
			continue
		}
		if v := d.Devices.VSock; v.CID != 0 || v.Auto != device.On {
			t.Errorf("%s: vsock %+v", name, v)
		}
		if g := d.Devices.Graphics[0]; g.Port != -1 || g.AutoPort != device.On {
			t.Errorf("%s: display %+v", name, g)
		}
		if r := d.Devices.RNGs; len(r) != 1 || r[0].Model != "virtio" || r[0].Path != "/dev/urandom" {
			t.Errorf("%s: random numbers from %+v", name, r)
		}
		if d.Devices.Disks[2].Source.Path() != filepath.Join(dir, "common.raw") {
			t.Errorf("%s does not share what is read-only", name)
		}
		data, err := os.ReadFile(filepath.Join(dir, name+"-vdb.data"))
		if ok(t, err); !bytes.Equal(data, bytes.Repeat([]byte("golden.data"), 512)) {
			t.Errorf("%s has %d other bytes", name, len(data))
		}
		if !strings.Contains(d.Metadata, "kept") || strings.Contains(d.Metadata, "lab/1") {
			t.Errorf("%s is marked %s", name, d.Metadata)
		}
	}
	h.wants("labelled", h.chosen("label=app:web"), "golden", "one", "two")
	h.wants("in the tile", h.chosen("tile=lab/1"), "golden")

	// A clone of a clone; its address in the guest is kept.
	got, err = h.clone(CloneRequest{Source: "one", Names: []string{"three"}, NoRNG: true})
	ok(t, err)
	h.wants("clone again", got, "three done")
	if a, b := h.view("one").Inactive, h.view("three").Inactive; a.Devices.NICs[0].Address != b.Devices.NICs[0].Address || len(b.Devices.RNGs) != 1 {
		t.Errorf("%+v is not %+v", b.Devices.NICs[0], a.Devices.NICs[0])
	}
}

// Promise: H3
func TestSeed_NewCloudInitInstance(t *testing.T) {
	h := newHerd(t)
	dir := h.withPool()
	h.define(small("golden"))
	seed := &Seed{UserData: "#cloud-config\nusers: [ann]\n", NetworkConfig: "version: 2\n"}
	got, err := h.clone(CloneRequest{Source: "golden", Names: []string{"Web_1", "web-2"}, Seed: seed})
	ok(t, err)
	h.wants("clone", got, "Web_1 done", "web-2 done")
	h.wants("files", files(t, dir), "Web_1-seed.iso", "web-2-seed.iso")
	var random []string
	for name, host := range map[string]string{"Web_1": "web-1", "web-2": "web-2"} {
		v := h.view(name)
		disc, err := os.ReadFile(filepath.Join(dir, name+"-seed.iso"))
		ok(t, err)
		for _, part := range []string{
			`"instance-id": "` + v.UUID + `"`, `"local-hostname": "` + host + `"`, seed.UserData, seed.NetworkConfig, "cidata", "machine-id",
		} {
			if !bytes.Contains(disc, []byte(part)) {
				t.Errorf("%q is not on the seed of %s", part, name)
			}
		}
		_, rest, _ := strings.Cut(string(disc), `"random_seed": "`)
		value, _, _ := strings.Cut(rest, `"`)
		if random = append(random, value); len(value) < 4*randomBytes/3 {
			t.Errorf("%s has the random bytes %q", name, value)
		}
		drive := v.Inactive.Devices.Disks[0]
		if drive.Device != "cdrom" || !drive.ReadOnly || drive.Source.Volume.Volume != name+"-seed.iso" {
			t.Errorf("%s has %+v", name, drive)
		}
	}
	if random[0] == random[1] {
		t.Error("two clones have the same random bytes")
	}
	h.wants("start", h.run(Request{Verb: Start, Options: Options{Paused: true}}, "web-2"), "web-2 done 1")
	h.run(Request{Verb: Destroy}, "web-2")

	// The seed of a clone's clone replaces the clone's seed.
	_, err = h.clone(CloneRequest{Source: "web-2", Names: []string{"web-3"}, Seed: &Seed{}})
	ok(t, err)
	if disks := h.view("web-3").Inactive.Devices.Disks; len(disks) != 1 || disks[0].Source.Volume.Volume != "web-3-seed.iso" {
		t.Errorf("web-3 has %d drives", len(disks))
	}
	_, err = h.clone(CloneRequest{Source: "golden", Names: []string{"web-4"}, Seed: &Seed{UserData: strings.Repeat("x", maxUserData+1)}})
	refused(t, err, fault.Invalid, "1048577 bytes")
}

func TestClone_VariablesOnDevice(t *testing.T) {
	h := newHerd(t)
	for name, text := range map[string]string{"code.fd": "code", "golden_VARS.fd": "of golden"} {
		ok(t, os.WriteFile(filepath.Join(h.dir, name), []byte(text), 0o600))
	}
	uefi := strings.ReplaceAll("<loader readonly='yes' type='pflash'>DIR/code.fd</loader><nvram type='block'><source dev='DIR/golden_VARS.fd'>"+
		"<seclabel model='dac' relabel='no'/></source></nvram></os>", "DIR", h.dir)
	h.define(strings.Replace(small("golden"), "</os>", uefi, 1))
	_, err := h.clone(CloneRequest{Source: "golden", Names: []string{"one"}})
	ok(t, err)
	v := h.view("one").Inactive.OS.NVRAM
	if text, err := os.ReadFile(v.Path); err != nil || string(text) != "of golden" || v.Type != "" || len(v.SecLabels) > 0 {
		t.Errorf("%+v holds %q, %v", v, text, err)
	}
	ok(t, os.Truncate(filepath.Join(h.dir, "golden_VARS.fd"), 64<<20+1))
	_, err = h.clone(CloneRequest{Source: "golden", Names: []string{"two"}})
	refused(t, err, fault.Invalid, "larger than the 64 MiB")
}

func TestClone_CopiesUEFIVariables(t *testing.T) {
	h := newHerd(t)
	for name, text := range map[string]string{"code.fd": "code", "vars.fd": "fresh", "golden_VARS.fd": "of golden"} {
		ok(t, os.WriteFile(filepath.Join(h.dir, name), []byte(text), 0o600))
	}
	uefi := strings.ReplaceAll("<loader readonly='yes' type='pflash'>DIR/code.fd</loader><nvram template='DIR/vars.fd'>DIR/golden_VARS.fd</nvram></os>", "DIR", h.dir)
	h.define(strings.Replace(small("golden"), "</os>", uefi, 1))
	_, err := h.clone(CloneRequest{Source: "golden", Names: []string{"one"}})
	ok(t, err)
	path := h.view("one").Inactive.OS.NVRAM.Path
	text, err := os.ReadFile(path)
	if ok(t, err); string(text) != "of golden" || path == h.view("golden").Inactive.OS.NVRAM.Path {
		t.Errorf("%s holds %q", path, text)
	}
	if got := h.guests.Clashes(h.view("one"), nil); len(got) > 0 {
		t.Error(got)
	}
	h.run(Request{Verb: Undefine, Options: Options{NVRAM: true}}, "one")
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the variables of a clone that has gone: %v", err)
	}

	// The copied variables of a clone that fails are removed too.
	before := files(t, filepath.Dir(path))
	def, release, err := toClone(t, h).KeepShutOff(t.Context(), scope.Daemon("a test"))
	ok(t, err)
	defer release()
	c, err := h.planClone(def, CloneRequest{Source: "golden", Names: []string{"two"}})
	ok(t, err)
	c.source = def.Clone()
	c.source.OS.Machine = "no-such-machine"
	if r := c.cloneOne(t.Context(), scope.Daemon("a test"), "two", uuid.NewString()); r.Outcome != Failed || !strings.Contains(r.Error.Error(), "no-such-machine") {
		t.Errorf("got %+v", r)
	}
	h.wants("files", files(t, filepath.Dir(path)), before...)
}

// Promise: H5
func TestClone_ThinMakesTemplate(t *testing.T) {
	h := newHerd(t)
	dir := h.goldenGuest()
	got, err := h.clone(CloneRequest{Source: "golden", Names: []string{"one"}, Thin: true})
	ok(t, err)
	h.wants("clone", got, "one done")
	p, err := h.pools.ByName("default")
	ok(t, err)
	for name, below := range map[string]string{"one-vda.qcow2": "golden.qcow2", "one-vdb.qcow2": "golden.data"} {
		v, err := p.Volume(name)
		ok(t, err)
		if v.Backing == nil || v.Backing.Name != filepath.Join(dir, below) {
			t.Errorf("%s lies on %+v", name, v.Backing)
		}
	}
	g, err := h.guests.ByName("golden")
	ok(t, err)
	refused(t, launch.Start(t.Context(), g, scope.Daemon("a test"), launch.StartOptions{}), fault.WrongState, "lodge set golden template=no")
	_, err = h.clone(CloneRequest{Source: "golden", Names: []string{"two"}, Thin: true})
	ok(t, err)

	// It stays a template while clones use its disks; clients who can see a clone are told its name.
	free := Request{Verb: Set, Options: Options{Settings: map[string]string{"template": "no"}}}
	for sees, want := range map[bool]string{true: `"one", "two"`, false: ": 4 more;"} {
		held := free
		if held.KeepGoing = true; !sees {
			held.Sees = func(m Member) bool { return m.View.Name == "golden" }
		}
		_, results, err := h.try(held, "golden")
		if ok(t, err); len(results) != 1 || !fault.Is(results[0].Error, fault.Busy) || !strings.Contains(results[0].Error.Error(), want) || !h.view("golden").Template {
			t.Errorf("set: %+v, want %s", results, want)
		}
	}
	g, err = h.guests.ByName("one")
	ok(t, err)
	ok(t, guest.Undefine(t.Context(), g, scope.Daemon("a test"), guest.UndefineOptions{}))
	for _, name := range []string{"one-vda.qcow2", "one-vdb.qcow2", "two-vda.qcow2"} {
		ok(t, p.DeleteVolume(t.Context(), scope.Daemon("a test"), name))
	}
	ok(t, os.Rename(filepath.Join(dir, "two-vdb.qcow2"), filepath.Join(dir, "loose")))
	g, err = h.guests.ByName("two")
	ok(t, errors.Join(err, guest.Undefine(t.Context(), g, scope.Daemon("a test"), guest.UndefineOptions{}), p.Refresh(t.Context(), scope.Daemon("a test"))))
	_, results, err := h.try(free, "golden")
	if ok(t, err); len(results) != 1 || !fault.Is(results[0].Error, fault.Busy) || !strings.Contains(results[0].Error.Error(), "default/loose") {
		t.Errorf("set above what no guest has: %+v", results)
	}
	ok(t, os.Remove(filepath.Join(dir, "loose")))
	if got := h.run(free, "golden"); !slices.Equal(got, []string{"golden done 1"}) || h.view("golden").Template {
		t.Errorf("set: %v", got)
	}
	// If no clone was made, the source is unchanged.
	h.define(small("plain"))
	_, err = h.clone(CloneRequest{Source: "plain", Names: []string{"golden"}, Thin: true})
	if refused(t, err, fault.Exists, "golden"); h.view("plain").Template {
		t.Error("a guest without clones is a template")
	}
}

// Promise: H2
func TestClone_FailureLeavesNothing(t *testing.T) {
	h := newHerd(t)
	dir := h.goldenGuest()
	there := files(t, dir)
	ok(t, os.WriteFile(filepath.Join(dir, "two-vdb.data"), nil, 0o600))
	p, err := h.pools.ByName("default")
	ok(t, err)
	ok(t, p.Refresh(t.Context(), scope.Daemon("a test")))
	got, err := h.clone(CloneRequest{Source: "golden", Names: []string{"one", "two", "golden"}})
	if err == nil || !strings.Contains(err.Error(), `already has a volume "two-vdb.data"`) || !strings.Contains(err.Error(), `"golden" already exists`) {
		t.Errorf("got %v", err)
	}
	h.wants("clone", got, "golden failed", "one done", "two failed")
	h.run(Request{Verb: Undefine}, "one")
	for _, name := range []string{"one-vda.qcow2", "one-vdb.data", "two-vdb.data"} {
		ok(t, p.DeleteVolume(t.Context(), scope.Daemon("a test"), name))
	}
	h.wants("files", files(t, dir), there...)

	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the client has gone"))
	sum, err := h.Clone(ctx, scope.Daemon("a test"), CloneRequest{Source: "golden", Names: []string{"one"}}, func(Plan) {}, func(Result) {})
	if err == nil || sum.Cancelled+sum.Done+sum.Failed > 0 {
		t.Errorf("for a client that has gone: %+v, %v", sum, err)
	}

	// The copy of the second disk fails after the first was copied.
	ok(t, os.Remove(filepath.Join(dir, "golden.data")))
	got, err = h.clone(CloneRequest{Source: "golden", Names: []string{"one"}})
	if err == nil {
		t.Error("a disk was copied that has gone")
	}
	h.wants("clone", got, "one failed")
	h.wants("files", files(t, dir), "common.raw", "golden.qcow2")
	h.wants("guests", h.chosen("all"), "golden")
}

// Promise: H2
func TestRecover_RemovesUnfinishedClone(t *testing.T) {
	h := newHerd(t)
	dir := h.withPool()
	h.define(small("golden"))
	before := files(t, dir)
	// The daemon is killed when everything is made and nothing is acknowledged.
	def, release, err := toClone(t, h).KeepShutOff(t.Context(), scope.Daemon("a test"))
	ok(t, err)
	defer release()
	c, err := h.planClone(def, CloneRequest{Source: "golden", Names: []string{"one"}, Seed: &Seed{}})
	ok(t, err)
	c.cutOff(h, "one")
	if len(files(t, dir)) == len(before) || len(h.chosen("one")) != 1 {
		t.Fatal("nothing was made")
	}
	h.Recover(t.Context())
	h.wants("guests", h.chosen("all"), "golden")
	h.wants("files", files(t, dir), before...)
	h.tidied()
}

// cutOff makes a clone except for the last step of the operation.
func (c *clonePlan) cutOff(h *herd, name string) {
	h.t.Helper()
	id, d := uuid.NewString(), c.source.Clone()
	ok(h.t, newIdentity(d, name, id, h.newMAC))
	w := newCloneOperation(c, name, d)
	h.cutOff(cloneKind.Name, w, &w.operationObjects)
}

// Undoing the only thin clone of a guest also removes the mark that keeps the guest from starting.
func TestRecover_ReleasesTemplateOfUnfinishedClone(t *testing.T) {
	h := newHerd(t)
	h.goldenGuest()
	g := toClone(t, h)
	def, release, err := g.KeepShutOff(t.Context(), scope.Daemon("a test"))
	ok(t, err)
	c, err := h.planClone(def, CloneRequest{Source: "golden", Names: []string{"one"}, Thin: true})
	ok(t, err)
	_, err = h.begin(scope.Daemon("a test"), templateKind.Name, &templateOperation{Source: g.UUID, fleet: h.Fleet}, nil)
	ok(t, err)
	ok(t, g.MakeTemplate(t.Context(), scope.Daemon("a test")))
	c.cutOff(h, "one")
	release() // as the end of its daemon does
	h.Recover(t.Context())
	h.wants("guests", h.chosen("all"), "golden")
	if g.View().Template {
		t.Error("it is a template of nothing")
	}
}

// The source stays a template while a pool that may hold another clone is inactive: starting it would destroy
// that clone.
//
// Promise: H5
func TestRecover_KeepsTemplateWhilePoolInactive(t *testing.T) {
	h := newHerd(t)
	h.goldenGuest()
	g := toClone(t, h)
	dir := filepath.Join(h.dir, "other")
	ok(t, os.Mkdir(dir, 0o700))
	other, err := h.pools.Define(t.Context(), scope.Daemon("a test"), "<pool type='dir'><name>other</name><target><path>"+dir+"</path></target></pool>", false)
	ok(t, err)
	ok(t, other.Start(t.Context(), scope.Daemon("a test"), volume.NoBuild))
	_, err = h.begin(scope.Daemon("a test"), templateKind.Name, &templateOperation{Source: g.UUID, fleet: h.Fleet}, nil)
	ok(t, err)
	ok(t, g.MakeTemplate(t.Context(), scope.Daemon("a test")))
	_, err = h.clone(CloneRequest{Source: "golden", Names: []string{"two"}, Thin: true, Pool: "other"})
	ok(t, err)
	ok(t, other.Stop(t.Context(), scope.Daemon("a test")))
	h.nextDaemon()
	h.Recover(t.Context())
	h.left(0)
	if !g.View().Template {
		t.Error("it is a template no more")
	}
	ok(t, other.Start(t.Context(), scope.Daemon("a test"), volume.NoBuild))
	refused(t, h.endTemplate(t.Context(), scope.Daemon("a test"), g, nil), fault.Busy, `"two"`)
}

func toClone(t *testing.T, h *herd) *guest.Guest {
	t.Helper()
	g, err := h.guests.ByName("golden")
	ok(t, err)
	return g
}

// Promise: H4
func TestClone_RefusedDevices(t *testing.T) {
	h := newHerd(t)
	dir := h.withPool()
	ok(t, os.WriteFile(filepath.Join(h.dir, "stray.raw"), make([]byte, 512), 0o600))
	ok(t, os.WriteFile(filepath.Join(dir, "odd.raw"), append([]byte("QFI\xfb\x00\x00\x00\x03"), make([]byte, 504)...), 0o600))
	p, err := h.pools.ByName("default")
	ok(t, err)
	ok(t, p.Refresh(t.Context(), scope.Daemon("a test")))
	disk := func(path string) string {
		return "<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='" + path + "'/><target dev='vda' bus='virtio'/></disk>"
	}
	for says, devices := range map[string]string{
		"pci device of the host":               "<hostdev mode='subsystem' type='pci'><source><address domain='0' bus='9' slot='0' function='0'/></source></hostdev>",
		"serial uses /tmp/out":                 "<serial type='file'><source path='/tmp/out'/></serial>",
		"channel listens on /tmp/sock":         "<channel type='unix'><source mode='bind' path='/tmp/sock'/><target type='virtio' name='org.x.0'/></channel>",
		"virsh pool-create-as NAME dir":        disk(filepath.Join(h.dir, "stray.raw")),
		"format raw in the guest's definition": disk(filepath.Join(dir, "odd.raw")),
		"no storage pool with name":            "<disk type='volume' device='disk'><source pool='nowhere' volume='x'/><target dev='vda' bus='virtio'/></disk>",
		"\"golden\" is running":                "",
		"from 1 to 4096 clones can be made in": "",
	} {
		t.Run(says, func(t *testing.T) {
			h.define(strings.Replace(small("golden"), "<serial type='pty'/>", devices, 1))
			q := CloneRequest{Source: "golden", Names: []string{"one"}}
			switch {
			case strings.Contains(says, "running"):
				h.run(Request{Verb: Start, Options: Options{Paused: true}}, "golden")
			case strings.Contains(says, "4096"):
				q.Names = nil
			}
			if got, err := h.clone(q); err == nil || !strings.Contains(err.Error(), says) || len(got) > 0 {
				t.Errorf("got %v, %v", got, err)
			}
			h.run(Request{Verb: Destroy}, "golden")
			h.run(Request{Verb: Undefine}, "golden")
		})
	}
}

// Promise: H5
func TestClone_SourceCannotStart(t *testing.T) {
	h := newHerd(t)
	h.define(small("golden"))
	g := toClone(t, h)
	_, release, err := g.KeepShutOff(t.Context(), scope.Daemon("a test"))
	ok(t, err)
	refused(t, launch.Start(t.Context(), g, scope.Daemon("a test"), launch.StartOptions{Paused: true}), fault.Busy, "is being cloned")
	release()
	gone, leave := context.WithCancelCause(t.Context())
	leave(errors.New("the client has gone"))
	if _, _, err := g.KeepShutOff(gone, scope.Daemon("a test")); err == nil { // and the guest is released
		t.Error("it was kept still for a client that has gone")
	}
	ok(t, launch.Start(t.Context(), g, scope.Daemon("a test"), launch.StartOptions{Paused: true}))
	_, _, err = g.KeepShutOff(t.Context(), scope.Daemon("a test"))
	refused(t, err, fault.WrongState, "shut it down first")
}

func TestClone_WaitsForReleaseOfTemplate(t *testing.T) {
	h := newHerd(t)
	h.define(small("golden"))
	g := toClone(t, h)
	ok(t, g.MakeTemplate(t.Context(), scope.Daemon("a test")))
	ok(t, g.EndTemplate(t.Context(), scope.Daemon("a test"), func(ctx context.Context) error {
		soon, stop := context.WithTimeout(ctx, 50*time.Millisecond)
		defer stop()
		if err := g.MakeTemplate(soon, scope.Daemon("a test")); !errors.Is(err, context.DeadlineExceeded) { // begins as a thin clone does
			t.Errorf("amid the look: %v", err)
		}
		return nil
	}))
	if h.view("golden").Template {
		t.Error("it is a template still")
	}
}

func TestSeed_HostNames(t *testing.T) {
	for name, want := range map[string]string{
		"web-1": "web-1", "Web_1.example": "web-1-example", "--": "guest", "größe": "gr--e", strings.Repeat("a", 70): strings.Repeat("a", 63),
	} {
		if got := hostName(name); got != want {
			t.Errorf("%q becomes %q, not %q", name, got, want)
		}
	}
	if disc, err := (&Seed{}).disc("x", "y", time.Now()); err != nil || !bytes.Contains(disc, []byte("#cloud-config")) {
		t.Error(err)
	}
}

// A seed is on a bus for which the guest has a driver, so that cloud-init finds it.
//
// Promise: H3
func TestSeed_BusWithDriver(t *testing.T) {
	for _, c := range []struct{ machine, bus, target, device, at string }{
		{"pc-q35-7.2", "virtio", "vda", "disk", "virtio vdb"},
		{"pc-q35-7.2", "scsi", "sda", "cdrom", "scsi sdb"},
		{"pc-q35-7.2", "sata", "sda", "cdrom", "sata sdb"},
		{"pc-q35-7.2", "usb", "sda", "cdrom", "sata sdb"},
		{"pc-i440fx-7.2", "ide", "hda", "cdrom", "ide hdb"},
		{"pc-i440fx-7.2", "virtio", "vda", "disk", "virtio vdb"},
		{"microvm", "virtio", "vda", "disk", "virtio vdb"},
	} {
		d := &domain.Definition{OS: domain.OS{Machine: c.machine}}
		d.Devices.Disks = []*device.Disk{
			{Info: device.Info{Alias: seedAlias}, Device: "cdrom", Bus: "sata", Target: "sdc"}, // from the source, which is a clone itself
			{Device: "disk", Bus: c.bus, Target: c.target},
		}
		if drive := seedDrive(d); drive.Device != c.device || drive.Bus+" "+drive.Target != c.at || !drive.ReadOnly || len(d.Devices.Disks) != 2 {
			t.Errorf("%s on %s: %+v, of %d", c.bus, c.machine, drive, len(d.Devices.Disks))
		}
	}
}

// A clone's disks keep the path limits of the source, no matter which client makes the clone. A client that may write
// to the disks' folder can neither redirect them nor have another file copied through them.
//
// Promise: A3
func TestClone_KeepsPathLimits(t *testing.T) {
	h := newHerd(t)
	dir := h.withPool()
	secret, disk := filepath.Join(h.dir, "secret"), filepath.Join(dir, "golden.qcow2")
	ok(t, os.WriteFile(secret, make([]byte, 1<<20), 0o600))
	p, err := h.pools.ByName("default")
	ok(t, err)
	_, err = p.CreateVolume(t.Context(), scope.Daemon("a test"), "<volume><name>golden.qcow2</name><capacity unit='MiB'>1</capacity><target><format type='qcow2'/></target></volume>", volume.CreateOptions{})
	ok(t, err)
	doc := strings.Replace(small("golden"), "</devices>", "<disk type='file' device='disk'><driver name='qemu' type='qcow2'/><source file='"+disk+"'/><target dev='vda' bus='virtio'/></disk></devices>", 1)
	_, err = guest.Define(t.Context(), h.guests, scope.Daemon("a test").Within([]string{dir}), doc, false)
	ok(t, err)
	_, err = h.clone(CloneRequest{Source: "golden", Names: []string{"one"}})
	ok(t, err)

	refused := func(name, says string) {
		t.Helper()
		g, err := h.guests.ByName(name)
		ok(t, err)
		if err := launch.Start(t.Context(), g, scope.Daemon("a test"), launch.StartOptions{Paused: true}); !fault.Is(err, fault.Denied) || !strings.Contains(err.Error(), says) {
			t.Errorf("the start of %s: %v", name, err)
		}
	}
	rebase := func(path string) {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), "qemu-img", "rebase", "-u", "-f", "qcow2", "-b", secret, "-F", "raw", path).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	rebase(filepath.Join(dir, "one-vda.qcow2"))
	refused("one", secret)
	rebase(disk)
	ok(t, p.Refresh(t.Context(), scope.Daemon("a test")))
	if _, err := h.clone(CloneRequest{Source: "golden", Names: []string{"three"}}); !fault.Is(err, fault.Denied) || !strings.Contains(err.Error(), secret) {
		t.Errorf("a copy of what the disk leads to: %v", err)
	}
}
