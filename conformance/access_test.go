package conformance

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Users of the tests of access rules. The host's list of users needs no entry for them.
const (
	operator = 4242
	builder  = 4243
	stranger = 4244
)

// accessRules are the rules of these tests. @DIR@ stands for the test's folder.
const accessRules = `
version: 1
rules:
  - name: operators
    who: user:4242
    may: [read, start, stop, console]
    guests: ["web-*", "label=team:web"]
  - name: makers
    who: user:4242
    may: [read, define]
    guests: made-*
    images: @DIR@/images
  - name: builders
    who: user:4243
    may: [read, start, stop, define, change]
    guests: build-*
    images: @DIR@/images
`

// startWithRules starts a daemon with these rules. It returns the daemon and a function that changes the rules.
func startWithRules(t *testing.T, rules string) (d *daemon, change func(rules string)) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "access.yaml")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("version: 1\nrules: []\n")
	d = start(t, "--access", file, "--audit", filepath.Join(dir, "audit"))
	if err := os.Chmod(d.dir, 0o711); err != nil { // others may pass to the sockets
		t.Fatal(err)
	}
	change = func(rules string) {
		t.Helper()
		write(strings.ReplaceAll(rules, "@DIR@", d.dir))
		before := d.countLogLines("access rules")
		d.output(t, "kill", "-HUP", d.pid)
		eventually(t, "the daemon to take notice of its rules", func() bool { return d.countLogLines("access rules") > before })
	}
	change(rules)
	return d, change
}

// countLogLines counts the lines of the daemon's log that contain these words.
func (d *daemon) countLogLines(words string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := 0
	for _, line := range d.log {
		if strings.Contains(line, words) {
			n++
		}
	}
	return n
}

// as prepares a program that runs as another user.
func (d *daemon) as(ctx context.Context, uid int, name string, args ...string) *exec.Cmd {
	id := strconv.Itoa(uid)
	return d.command(ctx, "setpriv", append([]string{"--reuid", id, "--regid", id, "--clear-groups", "env", "HOME=/nonexistent", name}, args...)...)
}

// begin starts a program and returns its output.
func begin(t *testing.T, c *exec.Cmd) io.Reader {
	t.Helper()
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// virshAs is try, run as another user.
func (d *daemon) virshAs(t *testing.T, uid int, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	out, err := d.as(ctx, uid, "virsh", append([]string{"-q", "-c", d.uri()}, args...)...).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func (d *daemon) mustSucceedAs(t *testing.T, uid int, args ...string) string {
	t.Helper()
	out, err := d.virshAs(t, uid, args...)
	if err != nil {
		t.Errorf("user %d may not %s: %s", uid, strings.Join(args, " "), out)
	}
	return out
}

func (d *daemon) mustBeDeniedAs(t *testing.T, uid int, args ...string) string {
	t.Helper()
	out, err := d.virshAs(t, uid, args...)
	if err == nil {
		t.Errorf("user %d may %s", uid, strings.Join(args, " "))
	}
	return out
}

// Users with rights to some guests try to see, change and hear more. They use libvirt's protocol and Lodge's API.
// Promise: A1, A4, A5
func TestRules_HoldClients(t *testing.T) {
	needs(t)
	d, change := startWithRules(t, accessRules)
	for _, name := range []string{"web-1", "db-1"} {
		d.define(t, shape{name: name})
	}
	d.virsh(t, "start", "--paused", "web-1")

	if seen := d.mustSucceedAs(t, operator, "list", "--all", "--name"); seen != "web-1" {
		t.Errorf("the operator sees %q", seen)
	}
	d.mustBeDeniedAs(t, operator, "dominfo", "db-1")
	contains(t, "the refusal", d.mustBeDeniedAs(t, operator, "undefine", "web-1"), "access denied", `"define"`, "user 4242", "domain 'web-1'", "operators")
	contains(t, "the refusal", d.mustBeDeniedAs(t, operator, "dumpxml", "--security-info", "web-1"), "access denied")
	contains(t, "the refusal", d.mustBeDeniedAs(t, operator, "metadata", "web-1", "https://lodge-kvm.github.io/xmlns/guest/1.0", "--key", "lodge", "--set", "<guest/>"), "access denied")
	contains(t, "the refusal", d.mustBeDeniedAs(t, operator, "qemu-monitor-command", "web-1", "--hmp", "info version"), "access denied")
	contains(t, "the refusal", d.mustBeDeniedAs(t, operator, "net-dumpxml", "default"), "access denied")
	contains(t, "the refusal", d.mustBeDeniedAs(t, operator, "domcapabilities", "--emulatorbin", "/bin/true"), "access denied", "/bin/true")
	d.mustSucceedAs(t, operator, "domcapabilities")
	const link = "net_lo_00_00_00_00_00_00" // as those of others' guests are
	contains(t, "the devices", d.virsh(t, "nodedev-list"), link)
	if seen := d.mustSucceedAs(t, operator, "nodedev-list"); strings.Contains(seen, link) || !strings.Contains(seen, "computer") {
		t.Errorf("the operator sees the devices %q", seen)
	}
	contains(t, "the refusal", d.mustBeDeniedAs(t, operator, "nodedev-dumpxml", link), "access denied")
	contains(t, "the refusal", d.mustBeDeniedAs(t, stranger, "list"), "authentication failed", "user 4244")
	d.mustSucceedAs(t, operator, "resume", "web-1")
	// A user with the right to start a guest starts it with the disks that others gave it.
	disk := d.raw(t, filepath.Join(d.dir, "web.raw"))
	d.define(t, shape{name: "web-2", devices: "<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='" + disk + "'/><target dev='vda' bus='virtio'/></disk>"})
	d.mustSucceedAs(t, operator, "start", "--paused", "web-2")
	d.virsh(t, "destroy", "web-2")
	d.virsh(t, "undefine", "web-2")

	// The right to define or change guests includes neither access to their inside nor changes of running guests.
	d.virsh(t, "start", "--paused", d.define(t, shape{name: "made-2"}).name)
	d.virsh(t, "start", "--paused", d.define(t, shape{name: "build-2"}).name)
	contains(t, "the refusal", d.lodgeAs(t, operator, "set", "made-2", "memory=100MiB", "label.a=b"), `"change"`)
	contains(t, "the refusal", d.lodgeAs(t, operator, "set", "made-2", "priority=-1"), "priority below 0")
	contains(t, "the refusal", d.mustBeDeniedAs(t, operator, "metadata", "made-2", "https://lodge-kvm.github.io/xmlns/guest/1.0", "--key", "lodge", "--set", "<guest priority='-1'/>"), "priority below 0")
	contains(t, "the refusal", d.mustBeDeniedAs(t, operator, "metadata", "made-2", "https://lodge-kvm.github.io/xmlns/guest/1.0", "--key", "k", "--set", "<guest xmlns:lodge='urn:x' priority='-1'/>"), "priority below 0")
	d.lodgeAs(t, operator, "set", "made-2", "label.a=c", "priority=7")
	contains(t, "the labels", d.virsh(t, "dumpxml", "made-2"), `value="c"`)
	contains(t, "the refusal", d.mustBeDeniedAs(t, builder, "setvcpus", "build-2", "1", "--guest"), "access denied", `"agent"`)
	line := "<channel type='unix'><source mode='connect' path='" + d.dir + "/images/line'/><target type='virtio' name='org.qemu.guest_agent.0'/></channel>"
	contains(t, "the refusal", d.mustBeDeniedAs(t, builder, "attach-device", "build-2", d.file(t, "line.xml", line)), "access denied", `"agent"`)
	for _, name := range []string{"made-2", "build-2"} {
		d.virsh(t, "destroy", name)
		d.virsh(t, "undefine", name)
	}

	t.Run("the API", func(t *testing.T) { d.checkRulesByAPI(t) })
	t.Run("what is open of a guest that is called otherwise", func(t *testing.T) { d.checkConsoleAfterLabelChange(t) })
	t.Run("what is open", func(t *testing.T) { d.checkConsoleAfterRuleChange(t, change) })
	t.Run("the audit", func(t *testing.T) {
		d.mustFail(t, "define", d.file(t, "half.xml", "<domain type='qemu'><name>half-1</name><memory>x</memory><vcpu>1</vcpu><os><type>hvm</type></os></domain>"))
		for _, words := range []string{
			`msg=audit api=libvirt uid=4242`, `verb=define object="domain 'web-1'" result=denied`, "uid=4244",
			`call=DOMAIN_DEFINE_XML verb=define object="domain 'half-1'" result=invalid`,
			`call=Act verb=start object="guests db-1" result=`, // the API answers that the guest does not exist
		} {
			eventually(t, "the log to say "+words, func() bool { return d.countLogLines(words) > 0 }) // the test reads it beside
		}
	})
}

// checkRulesByAPI makes the same requests by Lodge's own API.
func (d *daemon) checkRulesByAPI(t *testing.T) {
	lodge := func(uid int, args ...string) string { return d.lodgeAs(t, uid, args...) }
	if out := lodge(operator, "ps"); !strings.Contains(out, "web-1") || strings.Contains(out, "db-1") {
		t.Errorf("the operator sees\n%s", out)
	}
	contains(t, "the refusal", lodge(operator, "undefine", "web-1"), `"define"`)
	if out := lodge(operator, "start", "db-1"); strings.Contains(d.virsh(t, "domstate", "db-1"), "running") {
		t.Errorf("the operator has started a guest of others:\n%s", out)
	}
	contains(t, "the refusal", lodge(stranger, "ps"), "is not admitted")
}

// watchAsOperator opens a guest's console as the operator and listens to events. The returned function waits for a line
// with the given beginning and returns all lines before it.
func (d *daemon) watchAsOperator(t *testing.T, guest string) (until func(line string) []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	c := d.as(ctx, operator, "/usr/bin/python3", script(t, "bystander.py"), d.uri(), guest)
	c.Stderr = os.Stderr
	out := begin(t, c)
	t.Cleanup(func() { cancel(); _ = c.Wait() })
	var heard []string
	lines := bufio.NewScanner(out)
	return func(line string) []string {
		t.Helper()
		for lines.Scan() {
			if heard = append(heard, lines.Text()); strings.HasPrefix(lines.Text(), line) {
				return heard
			}
		}
		t.Fatalf("waited for %q and heard %q", line, heard)
		return nil
	}
}

// checkConsoleAfterLabelChange keeps a guest's console open while the guest's label changes to another team's.
func (d *daemon) checkConsoleAfterLabelChange(t *testing.T) {
	const marks = "https://lodge-kvm.github.io/xmlns/guest/1.0"
	d.virsh(t, "start", "--paused", d.define(t, shape{name: "lab-1"}).name)
	label := func(team string) {
		d.virsh(t, "metadata", "lab-1", marks, "--key", "lodge", "--set", "<guest><label name='team' value='"+team+"'/></guest>", "--live", "--config")
	}
	label("web")
	until := d.watchAsOperator(t, "lab-1")
	until("counts 2 2")
	label("db")
	until("console ended 88")
	d.virsh(t, "destroy", "lab-1")
	d.virsh(t, "undefine", "lab-1")
}

// checkConsoleAfterRuleChange keeps a console and an event registration open while the rules change.
func (d *daemon) checkConsoleAfterRuleChange(t *testing.T, change func(string)) {
	until := d.watchAsOperator(t, "web-1")
	heard := until("counts 1 1")
	if !slices.Contains(heard, "sees web-1") {
		t.Errorf("heard %q", heard)
	}
	d.virsh(t, "start", "--paused", "db-1")
	d.virsh(t, "destroy", "db-1")
	d.virsh(t, "suspend", "web-1")
	heard = until("event web-1 3")
	if slices.ContainsFunc(heard, func(line string) bool { return strings.Contains(line, "db-1") }) {
		t.Errorf("the operator gets events of a guest of others: %q", heard)
	}
	change("this is no file of rules") // an invalid file leaves the old rules in force
	d.mustSucceedAs(t, operator, "domstate", "web-1")
	change(strings.ReplaceAll(accessRules, ", console]", "]"))
	until("console ended 88")
}

// A user with the right to define guests tries to read files of the host through the disks of those guests.
// Promise: A3
func TestRules_DefinitionsCannotBypass(t *testing.T) {
	needs(t)
	d, _ := startWithRules(t, accessRules)
	images := filepath.Join(d.dir, "images")
	if err := os.Mkdir(images, 0o755); err != nil {
		t.Fatal(err)
	}
	secret := d.file(t, "secret", strings.Repeat("secret", 1<<12))
	own := filepath.Join(images, "own.qcow2")
	d.output(t, "qemu-img", "create", "-q", "-f", "qcow2", own, "1M")
	link := filepath.Join(images, "link.raw")
	if err := os.Symlink(secret, link); err != nil {
		t.Fatal(err)
	}
	disk := func(kind, path string) string {
		return "<disk type='file' device='disk'><driver name='qemu' type='" + kind + "'/><source file='" + path + "'/><target dev='vda' bus='virtio'/></disk>"
	}
	define := func(name, more string) string {
		return d.file(t, name+".xml", "<domain type='qemu'><name>"+name+"</name><memory unit='MiB'>32</memory><vcpu>1</vcpu>"+
			"<os><type arch='x86_64' machine='q35'>hvm</type></os><devices>"+more+"</devices></domain>")
	}
	for what, devices := range map[string]string{
		"another's file":      disk("raw", secret),
		"a way up":            disk("raw", images+"/../secret"),
		"a relative path":     disk("raw", "secret"),
		"a host's device":     "<hostdev mode='subsystem' type='pci'><source><address domain='0' bus='0' slot='1' function='0'/></source></hostdev>",
		"a file to write":     "<serial type='file'><source path='" + secret + "'/></serial>",
		"the host's QEMU":     "<serial type='file'><source path='/usr/bin/qemu-system-x86_64'/></serial>",
		"a log from nowhere":  "<serial type='pty'><log file='etc/passwd'/></serial>",
		"a port to listen":    "<serial type='tcp'><source mode='bind' host='0.0.0.0' service='4'/></serial>",
		"the host's bridge":   "<interface type='bridge'><source bridge='br0'/></interface>",
		"a network of others": "<interface type='network'><source network='default'/></interface>",
		"another emulator":    "<emulator>" + secret + "</emulator>",
		"another's key": "<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='" + images + "/copied.raw'><encryption format='luks'>" +
			"<secret type='passphrase' uuid='c0ffee00-0000-4000-8000-00000000000a'/></encryption></source><target dev='vda' bus='virtio'/></disk>",
	} {
		said := d.mustBeDeniedAs(t, builder, "define", define("build-1", devices))
		if !strings.Contains(said, "access denied") {
			t.Errorf("%s: the refusal is %q", what, said)
		}
	}
	contains(t, "the refusal", d.mustBeDeniedAs(t, builder, "define", define("web-1", "")), "access denied", "domain 'web-1'")
	contains(t, "the refusal", d.mustBeDeniedAs(t, builder, "create", define("web-1", "")), "access denied")
	contains(t, "the refusal", d.mustBeDeniedAs(t, operator, "create", define("made-1", "")), "access denied", `"start"`, "domain 'made-1'")
	d.mustSucceedAs(t, operator, "define", define("made-1", ""))

	// A path in an allowed folder may still lead elsewhere, now or later.
	d.mustSucceedAs(t, builder, "define", define("build-link", disk("raw", link)))
	contains(t, "the refusal", d.mustBeDeniedAs(t, builder, "start", "build-link"), "access denied", secret)
	contains(t, "the refusal", d.mustFail(t, "start", "build-link"), "access denied", secret)
	d.mustSucceedAs(t, builder, "define", define("build-1", disk("qcow2", own)))
	d.output(t, "qemu-img", "rebase", "-u", "-f", "qcow2", "-b", secret, "-F", "raw", own)
	contains(t, "the refusal", d.mustBeDeniedAs(t, builder, "start", "build-1"), "access denied", secret)
	d.virsh(t, "start", "--paused", d.define(t, shape{name: "build-2"}).name)
	contains(t, "the refusal", d.mustBeDeniedAs(t, builder, "attach-disk", "build-2", own, "vdb", "--subdriver", "qcow2"), "access denied", secret)
	d.output(t, "qemu-img", "rebase", "-u", "-f", "qcow2", "-b", "", own)
	d.mustSucceedAs(t, builder, "start", "--paused", "build-1")
	d.mustSucceedAs(t, builder, "attach-disk", "build-2", d.raw(t, filepath.Join(images, "more.raw")), "vdb")
	contains(t, "the refusal", d.mustBeDeniedAs(t, builder, "attach-disk", "build-2", secret, "vdc"), "access denied", secret)
}

// The audit records a client's call as done, even if the rules hide its result from the client.
// Promise: A5
func TestAudit_ResultHiddenFromClient(t *testing.T) {
	needs(t)
	d, _ := startWithRules(t, "version: 1\nrules:\n  - {name: blind, who: user:4242, may: [define], guests: made-*}\n")
	doc := d.file(t, "made.xml", "<domain type='qemu'><name>made-1</name><memory unit='MiB'>32</memory><vcpu>1</vcpu><os><type arch='x86_64' machine='q35'>hvm</type></os></domain>")
	contains(t, "the answer", d.mustBeDeniedAs(t, operator, "define", doc), "access denied", `"read"`)
	d.virsh(t, "undefine", "made-1")
	eventually(t, "a line of the audit", func() bool { return d.countLogLines(`object="domain 'made-1'" rule=blind result=ok`) > 0 })
}

// raw makes a raw image.
func (d *daemon) raw(t *testing.T, path string) string {
	t.Helper()
	d.output(t, "qemu-img", "create", "-q", "-f", "raw", path, "1M")
	return path
}

// A client can define its own guest again from the XML that the daemon gave it, running or saved. Paths and the
// user that the daemon chose for a run are not judged as files or users of others.
// Promise: A1
func TestRules_OwnDefinitionRedefined(t *testing.T) {
	needs(t)
	d, _ := startWithRules(t, "version: 1\nrules:\n  - {name: savers, who: user:4243, may: [read, start, define, save], guests: build-*, images: /nowhere}\n"+
		"  - {name: nightly, who: user:4242, may: [read, start, save], guests: build-*, images: @DIR@}\n")
	doc := d.file(t, "build.xml", "<domain type='qemu'><name>build-1</name><memory unit='MiB'>64</memory><vcpu>1</vcpu>"+
		"<os><type arch='x86_64' machine='q35'>hvm</type></os><devices><channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel>"+
		"<serial type='pty'/><graphics type='vnc'><listen type='socket'/></graphics></devices></domain>")
	d.mustSucceedAs(t, builder, "define", doc)
	d.mustSucceedAs(t, builder, "start", "build-1")
	d.mustSucceedAs(t, builder, "define", d.file(t, "live.xml", d.mustSucceedAs(t, builder, "dumpxml", "--security-info", "build-1")))
	// The right to save and start a guest does not include giving it another definition on the way.
	live := d.file(t, "told.xml", d.mustSucceedAs(t, builder, "dumpxml", "--security-info", "build-1"))
	contains(t, "the refusal", d.mustBeDeniedAs(t, operator, "save", "build-1", filepath.Join(d.dir, "image"), "--xml", live), "access denied", `"define"`)
	d.mustSucceedAs(t, operator, "managedsave", "build-1")
	contains(t, "the refusal", d.mustBeDeniedAs(t, operator, "managedsave-define", "build-1", live), "access denied", `"define"`)
	d.mustSucceedAs(t, builder, "managedsave-define", "build-1", d.file(t, "saved.xml", d.mustSucceedAs(t, builder, "managedsave-dumpxml", "--security-info", "build-1")))
	d.mustSucceedAs(t, builder, "start", "build-1")
	static := d.file(t, "static.xml", strings.Replace(d.mustSucceedAs(t, builder, "dumpxml", "--inactive", "build-1"), "<devices>", "<seclabel type='static' model='dac'><label>0:0</label></seclabel><devices>", 1))
	contains(t, "the refusal", d.mustBeDeniedAs(t, builder, "define", static), "access denied", "seclabel")
}
