package conformance

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/testguest/line"
)

var (
	portPath   = regexp.MustCompile(`<source mode='bind' path='([^']+)'/>\s*<target type='virtio' name='` + regexp.QuoteMeta(line.Port) + `'`)
	macAddress = regexp.MustCompile(`<mac address='([^']+)'/>`)
	uuidOf     = regexp.MustCompile(`<uuid>([^<]+)</uuid>`)
)

// The test clones a guest, boots two clones and asks them for their identities. It also compares these with the
// seed that their cloud-init would find.
// Promise: H1, H3, H6
func TestClone_OwnIdentity(t *testing.T) {
	needs(t, "blkid")
	d := start(t)
	seeds := filepath.Join(d.dir, "seeds")
	d.virsh(t, "pool-create-as", "seeds", "dir", "--target", seeds, "--build")
	d.virsh(t, "vol-create-as", "seeds", "golden.raw", "1M", "--format", "raw")
	source, xml := shape{name: "golden", devices: "<disk type='volume' device='disk'><driver name='qemu' type='raw'/><source pool='seeds' volume='golden.raw'/><target dev='vda' bus='virtio'/></disk>" +
		"<interface type='user'><mac address='52:54:00:00:00:99'/><model type='virtio'/></interface>"}.xml(t, d)
	d.file(t, "golden.xml", xml)
	d.virsh(t, "define", filepath.Join(d.dir, "golden.xml"))
	d.set(t, 1, "clone", "golden", "one") // two guests cannot listen on one socket
	xml = strings.Replace(xml, "<source mode='bind' path='"+source.port+"'/>", "", 1)
	xml = strings.Replace(xml, "<rng model='virtio'><backend model='random'>/dev/urandom</backend></rng>", "", 1)
	xml = strings.Replace(xml, "<devices>", "<metadata><l:guest xmlns:l='https://lodge-kvm.github.io/xmlns/guest/1.0' rng='no'/></metadata><devices>", 1)
	d.virsh(t, "undefine", "golden")
	d.virsh(t, "define", d.file(t, "golden.xml", xml))
	user := d.file(t, "user-data", "#cloud-config\nusers: [ann]\n")
	told := lines[step](t, d.set(t, 0, "clone", "golden", "one", "two", "--seed", "--user-data", user, "--pool", "seeds", "--json"))
	if last := told[len(told)-1].Summary; last == nil || last.Done != 2 {
		t.Fatalf("cloning ends in %+v", last)
	}
	d.set(t, 0, "start", "one", "two")
	seen := map[string]string{"52:54:00:00:00:99": "golden"}
	for _, name := range []string{"one", "two"} {
		for _, own := range d.readIdentity(t, name) {
			if who, twice := seen[own]; twice || own == "" {
				t.Errorf("%s has %q, as %s", name, own, who)
			}
			seen[own] = name
		}
		contains(t, "blkid", d.output(t, "blkid", "-p", filepath.Join(seeds, name+"-seed.iso")), `LABEL="cidata"`, `TYPE="iso9660"`)
	}

	// A guest that was made by copying a definition by hand shares a MAC address. Both guests are shown as
	// tainted.
	d.set(t, 0, "check", "one", "two")
	twin := d.virsh(t, "dumpxml", "one", "--inactive")
	twin = strings.Replace(uuidOf.ReplaceAllString(twin, ""), "<name>one</name>", "<name>twin</name>", 1)
	d.virsh(t, "define", d.file(t, "twin.xml", twin))
	address := macAddress.FindStringSubmatch(twin)[1]
	contains(t, "dominfo", d.virsh(t, "dominfo", "one"), "tainted: shares MAC address "+address+` with domain "twin"`)
	contains(t, "check", d.set(t, 1, "check"), "one: tainted: shares MAC address "+address, "twin: tainted: shares MAC address "+address)
	d.virsh(t, "undefine", "twin")
	d.set(t, 0, "check", "one", "two")
	d.set(t, 0, "destroy", "all")
}

// readIdentity returns what a booted clone reports about its identity. The report must match its definition and its
// seed.
func (d *daemon) readIdentity(t *testing.T, name string) []string {
	t.Helper()
	live := d.virsh(t, "dumpxml", name)
	uuid, mac, port := uuidOf.FindStringSubmatch(live), macAddress.FindStringSubmatch(live), portPath.FindStringSubmatch(live)
	if uuid == nil || mac == nil || port == nil {
		t.Fatalf("%s is\n%s", name, live)
	}
	g := &guest{d: d, name: name, port: port[1]}
	g.waitForAgent(t)
	if says := g.shell(t, "cat /sys/class/dmi/id/product_uuid"); !strings.EqualFold(says, uuid[1]) {
		t.Errorf("%s shows its guest the UUID %s, not %s", name, says, uuid[1])
	}
	contains(t, "addresses in "+name, g.shell(t, "cat /sys/class/net/*/address"), mac[1])
	contains(t, "random numbers in "+name, g.shell(t, "cat /sys/class/misc/hw_random/rng_current"), "virtio")
	seed := g.shell(t, "mkdir -p /cd && mount -t iso9660 -o ro /dev/vdb /cd && cat /cd/meta-data /cd/user-data /cd/vendor-data && umount /cd")
	contains(t, "the seed of "+name, seed, `"instance-id": "`+uuid[1]+`"`, `"local-hostname": "`+name+`"`, "users: [ann]", "ssh_deletekeys: true")
	_, random, _ := strings.Cut(seed, `"random_seed": "`)
	return []string{uuid[1], mac[1], random[:min(len(random), 64)]}
}

// A definition without an RNG device gets one, and the daemon says why. A guest that is exported and imported
// again does not change, with or without an RNG.
// Promise: H7
func TestDefine_AddsRNG(t *testing.T) {
	onlyInClients(t)
	needs(t)
	d := start(t)
	g, xml := shape{name: "fresh"}.xml(t, d)
	xml = strings.Replace(xml, "<rng model='virtio'><backend model='random'>/dev/urandom</backend></rng>", "", 1)
	d.virsh(t, "define", d.file(t, "fresh.xml", xml))
	contains(t, "the definition", d.virsh(t, "dumpxml", "fresh"), "<rng model='virtio'>", "<backend model='random'>/dev/urandom</backend>", "ua-lodge-rng")
	contains(t, "lodge why", d.set(t, 0, "why"), "fresh: a virtio-rng", "virsh detach-device-alias fresh ua-lodge-rng --config")
	d.set(t, 0, "check")
	d.virsh(t, "start", "fresh")
	g.waitForAgent(t)
	contains(t, "random numbers", g.shell(t, "cat /sys/class/misc/hw_random/rng_current"), "virtio")
	d.virsh(t, "destroy", "fresh")

	d.virsh(t, "define", d.spin(t, "bare"))
	d.virsh(t, "detach-device-alias", "bare", "ua-lodge-rng", "--config")
	tree := filepath.Join(d.dir, "tree")
	d.set(t, 0, "store", "export", tree, "--data="+d.data)
	before := d.virsh(t, "dumpxml", "fresh") + d.virsh(t, "dumpxml", "bare")
	d.virsh(t, "undefine", "fresh")
	d.virsh(t, "undefine", "bare")
	d.set(t, 0, "import", tree)
	if after := d.virsh(t, "dumpxml", "fresh") + d.virsh(t, "dumpxml", "bare"); !sameLines(after, before) {
		t.Errorf("imported again, the guests are\n%s\nthey were\n%s", after, before)
	}
	if why := d.set(t, 0, "why", "bare"); why != "" {
		t.Errorf("of a guest without random numbers lodge why says %s", why)
	}
}
