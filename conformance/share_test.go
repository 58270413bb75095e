package conformance

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
)

const shareRules = `
version: 1
rules:
  - name: builders
    who: user:4243
    may: [read, start, stop, define, change]
    guests: build-*
    at most: {guests: 3, memory: 1GiB, vcpus: 6}
  - name: others
    who: user:4243
    may: [read, define]
    guests: loose-*
  - name: owners
    who: user:4243
    may: [read, networks, volumes]
    networks: net-*
    pools: mine
    at most: {networks: 1, volumes: 2}
`

// plainDomain is a small guest whose memory can grow while it runs.
func plainDomain(name string, memory, vcpus int) string {
	return fmt.Sprintf(`<domain type='qemu'><name>%s</name><uuid>%s</uuid><maxMemory slots='2' unit='MiB'>4096</maxMemory><memory unit='MiB'>%d</memory>
  <vcpu>%d</vcpu><os><type arch='x86_64' machine='q35'>hvm</type></os><features><acpi/></features>
  <cpu><numa><cell id='0' cpus='0-%d' memory='%d' unit='MiB'/></numa></cpu></domain>`, name, uuid.NewSHA1(uuid.Nil, []byte(name)), memory, vcpus, vcpus-1, memory)
}

// A client creates more and larger guests than its rules allow, in every possible way, by both APIs.
// Promise: A12
func TestRules_QuotaEnforced(t *testing.T) {
	needs(t)
	d, _ := startWithRules(t, shareRules)
	file := func(text string) string {
		name := filepath.Join(d.dir, strconv.Itoa(len(text))+".xml")
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil { //nolint:gosec // another user reads it
			t.Fatal(err)
		}
		return name
	}
	lodge := func(args ...string) string { return d.lodgeAs(t, builder, args...) }

	d.mustSucceedAs(t, builder, "define", file(plainDomain("build-1", 256, 2)))
	d.mustSucceedAs(t, builder, "create", "--paused", file(plainDomain("build-22", 256, 2)))
	contains(t, "a definition that is too large", d.mustBeDeniedAs(t, builder, "define", file(plainDomain("build-333", 640, 1))),
		`rule "builders"`, "at most 1 GiB of memory", "640 MiB of memory", "the others have 512 MiB of memory")
	contains(t, "a transient guest that is too large", d.mustBeDeniedAs(t, builder, "create", file(plainDomain("build-333", 128, 3))), "at most 6 vCPUs")
	contains(t, "a larger definition", d.mustBeDeniedAs(t, builder, "define", file(plainDomain("build-1", 896, 2))), "at most 1 GiB")
	contains(t, "more vCPUs", d.mustBeDeniedAs(t, builder, "setvcpus", "--config", "--maximum", "build-1", "5"), "at most 6 vCPUs")
	module := file(`<memory model='dimm'><target><size unit='MiB'>640</size><node>0</node></target></memory>`)
	contains(t, "a module", d.mustBeDeniedAs(t, builder, "attach-device", "build-22", module, "--live"), "at most 1 GiB", "896 MiB")
	contains(t, "a module in a definition", d.mustBeDeniedAs(t, builder, "attach-device", "build-1", module, "--config"), "at most 1 GiB")
	contains(t, "a larger one by the API", lodge("define", file(plainDomain("build-4444", 640, 1))), "at most 1 GiB")
	contains(t, "one that would be defined", lodge("define", "--dry-run", file(plainDomain("build-4444", 640, 1))), "at most 1 GiB")
	plain := `<domain type='qemu'><name>build-55</name><memory unit='MiB'>64</memory><os><type arch='x86_64' machine='q35'>hvm</type></os></domain>`
	d.mustSucceedAs(t, builder, "define", file(plain))
	contains(t, "a larger maximum", d.mustBeDeniedAs(t, builder, "setmaxmem", "--config", "build-55", "600M"), "at most 1 GiB")
	contains(t, "a setting", lodge("set", "build-55", "memory=600MiB"), "at most 1 GiB")
	d.mustSucceedAs(t, builder, "setmaxmem", "--config", "build-55", "512M")
	d.mustSucceedAs(t, builder, "define", file(plainDomain("loose-1", 64, 1)))
	contains(t, "another name", d.mustBeDeniedAs(t, builder, "domrename", "loose-1", "build-6"), "at most 3 guests", "the others have 3 guests")
	contains(t, "one more by the API", lodge("define", file(plainDomain("build-77", 1, 1))), "at most 3 guests")

	d.boundObjects(t, file)

	d.virsh(t, "destroy", "build-22") // nothing is left of it
	d.virsh(t, "undefine", "build-55")
	d.virsh(t, "undefine", "build-1")
	var made sync.WaitGroup
	for i := range 4 {
		document := filepath.Join(d.dir, fmt.Sprint(i))
		for _, by := range []string{"virsh", "lodge"} {
			text := plainDomain(fmt.Sprintf("build-%s-%d", by, i), 16, 1)
			if err := os.WriteFile(document+by, []byte(text), 0o644); err != nil { //nolint:gosec // another user reads it
				t.Fatal(err)
			}
		}
		made.Go(func() { _, _ = d.virshAs(t, builder, "define", document+"virsh") })
		made.Go(func() { lodge("define", document+"lodge") })
	}
	made.Wait()
	if there := strings.Fields(d.mustSucceedAs(t, builder, "list", "--all", "--name")); len(there) != 4 { // with loose-1
		t.Errorf("eight at once: there are %q", there)
	}
}

// boundObjects creates more networks and volumes than the client may have.
func (d *daemon) boundObjects(t *testing.T, file func(string) string) {
	t.Helper()
	net := func(name string) string { return file("<network><name>" + name + "</name></network>") }
	d.mustSucceedAs(t, builder, "net-define", net("net-1"))
	contains(t, "a second network", d.mustBeDeniedAs(t, builder, "net-define", net("net-22")), "at most 1 network", "the others have 1 network")
	contains(t, "a second network that is started", d.mustBeDeniedAs(t, builder, "net-create", net("net-333")), "at most 1 network")
	d.virsh(t, "net-undefine", "net-1")

	dir := filepath.Join(d.dir, "mine")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	d.virsh(t, "pool-define-as", "mine", "dir", "--target", dir)
	d.virsh(t, "pool-start", "mine")
	defer d.virsh(t, "pool-undefine", "mine")
	defer d.virsh(t, "pool-destroy", "mine")
	d.mustSucceedAs(t, builder, "vol-create-as", "mine", "one", "1M")
	d.mustSucceedAs(t, builder, "vol-clone", "--pool", "mine", "one", "two")
	contains(t, "a third volume", d.mustBeDeniedAs(t, builder, "vol-create-as", "mine", "three", "1M"), "at most 2 volumes", "the others have 2 volumes")
	contains(t, "a third by a copy", d.mustBeDeniedAs(t, builder, "vol-clone", "--pool", "mine", "one", "three"), "at most 2 volumes")
}

// lodgeAs runs lodge as another user, and returns its output regardless of the exit status.
func (d *daemon) lodgeAs(t *testing.T, uid int, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	id := strconv.Itoa(uid)
	c := exec.CommandContext(ctx, "setpriv", append([]string{"--reuid", id, "--regid", id, "--clear-groups", program(t, "lodge")}, args...)...)
	c.Env = append(os.Environ(), "LODGE_SOCKET="+filepath.Join(d.run, "lodge.sock"))
	out, _ := c.CombinedOutput()
	return string(out)
}
