package conformance

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
)

// busConfig is a system bus without any restriction.
const busConfig = `<busconfig><type>system</type><listen>unix:path=@PATH@</listen><auth>EXTERNAL</auth>
<policy context="default"><allow user="*"/><allow own="*"/><allow send_destination="*"/><allow receive_sender="*"/></policy></busconfig>`

// polkitName is polkit's name on the bus, and the prefix of its only interface.
const polkitName = "org.freedesktop.PolicyKit1"

// policy is the test's own polkit, on the test's own system bus.
type policy struct {
	bus *exec.Cmd

	mu    sync.Mutex
	says  map[int32]string        // by user: yes, no or who
	holds map[int32]chan struct{} // by user: the answer waits until the channel is closed
	asked []string                // users and actions
}

// polkitSubject and polkitVerdict are types of polkit's interface.
type polkitSubject struct {
	Kind    string
	Details map[string]dbus.Variant
}

type polkitVerdict struct {
	Authorized, Challenge bool
	Details               map[string]string
}

// polkit runs a bus with a polkit. Daemons that start later find it.
func polkit(t *testing.T, says map[int32]string) *policy {
	t.Helper()
	dir, err := os.MkdirTemp("", "bus-") //nolint:usetesting // t.TempDir may be too long for the path of a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path, config := filepath.Join(dir, "bus"), filepath.Join(dir, "conf")
	if err := os.WriteFile(config, []byte(strings.ReplaceAll(busConfig, "@PATH@", path)), 0o600); err != nil {
		t.Fatal(err)
	}
	said, say, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = said.Close() }()
	p := &policy{says: says, holds: map[int32]chan struct{}{}}
	p.bus = exec.CommandContext(context.WithoutCancel(t.Context()), "dbus-daemon", "--nofork", "--nopidfile", "--config-file="+config, "--print-address=3")
	p.bus.ExtraFiles = []*os.File{say}
	err = p.bus.Start()
	_ = say.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.bus.Process.Kill(); _ = p.bus.Wait() })
	if err := said.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := said.Read(make([]byte, 256)); err != nil {
		t.Fatalf("the bus does not begin: %v", err)
	}
	conn, err := dbus.Connect("unix:path=" + path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.Export(p, "/org/freedesktop/PolicyKit1/Authority", polkitName+".Authority"); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.RequestName(polkitName, dbus.NameFlagDoNotQueue); err != nil {
		t.Fatal(err)
	}
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+path)
	return p
}

// CheckAuthorization implements polkit's method on the bus.
func (p *policy) CheckAuthorization(s polkitSubject, action string, _ map[string]string, _ uint32, _ string) (polkitVerdict, *dbus.Error) {
	uid, _ := s.Details["uid"].Value().(int32)
	pid, _ := s.Details["pid"].Value().(uint32)
	start, _ := s.Details["start-time"].Value().(uint64)
	if s.Kind != "unix-process" || pid == 0 || start == 0 {
		return polkitVerdict{}, dbus.MakeFailedError(os.ErrInvalid)
	}
	p.mu.Lock()
	p.asked = append(p.asked, action)
	says, hold := p.says[uid], p.holds[uid]
	p.mu.Unlock()
	if hold != nil {
		<-hold
	}
	return polkitVerdict{Authorized: says == "yes", Challenge: says == "who"}, nil
}

// CancelCheckAuthorization implements polkit's method on the bus.
func (p *policy) CancelCheckAuthorization(string) *dbus.Error { return nil }

// take returns the actions that were checked since the last call.
func (p *policy) take() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	asked := p.asked
	p.asked = nil
	return asked
}

// Users connect to both APIs, and polkit decides. It answers late about one of them, and is killed before the last call.
// Promise: A7
func TestPolkit_Decides(t *testing.T) {
	needs(t, "dbus-daemon")
	p := polkit(t, map[int32]string{operator: "yes", builder: "yes", stranger: "no", asking: "who"})
	d := start(t, "--auth", "polkit")
	if err := os.Chmod(d.dir, 0o711); err != nil { // others may pass to the sockets
		t.Fatal(err)
	}
	d.define(t, shape{name: "web-1"})
	if asked := p.take(); len(asked) > 0 {
		t.Errorf("polkit was asked about root: %q", asked)
	}
	if seen := d.mustSucceedAs(t, operator, "list", "--all", "--name"); seen != "web-1" {
		t.Errorf("the operator sees %q", seen)
	}
	if asked := p.take(); !slices.Equal(asked, []string{"org.libvirt.unix.manage"}) {
		t.Errorf("polkit was asked %q", asked)
	}
	d.mustSucceedAs(t, operator, "start", "--paused", "web-1")
	p.take()
	looks := d.as(t.Context(), operator, "virsh", "-q", "-r", "-c", d.uri()+"-ro", "list", "--name")
	if out, err := looks.CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != "web-1" {
		t.Errorf("a read-only client sees %q, %v", out, err)
	}
	if asked := p.take(); !slices.Equal(asked, []string{"org.libvirt.unix.monitor"}) {
		t.Errorf("polkit was asked %q", asked)
	}
	contains(t, "the refusal", d.mustBeDeniedAs(t, stranger, "list"), "authentication failed", "polkit does not give user 4244 org.libvirt.unix.manage")
	t.Run("an agent", d.checkAgentError)
	t.Run("the API", d.lodgeByPolkit)
	t.Run("a slow answer", func(t *testing.T) { d.checkSlowPolkit(t, p) })
	eventually(t, "the audit to list all connections", func() bool {
		return d.countLogLines("uid=4242 ") > 0 && d.countLogLines("call=AUTH_POLKIT verb=open result=ok") > 0 && d.countLogLines("call=AUTH_POLKIT verb=open result=denied") > 0
	})
	_ = p.bus.Process.Kill()
	_ = p.bus.Wait()
	contains(t, "the refusal", d.mustBeDeniedAs(t, operator, "list"), "authentication failed", "cannot ask polkit")
	d.virsh(t, "domstate", "web-1")
}

// On a host with polkit, a service's user connects by the rule that its package installs. Members of the group
// connect without a check.
// Promise: A20
func TestPolkit_AskedByDefault(t *testing.T) {
	needs(t, "dbus-daemon")
	p := polkit(t, map[int32]string{operator: "yes", stranger: "no"})
	d := start(t, "--group", "games")
	if err := os.Chmod(d.dir, 0o711); err != nil {
		t.Fatal(err)
	}
	d.define(t, shape{name: "web-1"})
	if seen := d.mustSucceedAs(t, operator, "list", "--all", "--name"); seen != "web-1" {
		t.Errorf("the service sees %q", seen)
	}
	if asked := p.take(); !slices.Equal(asked, []string{"org.libvirt.unix.manage"}) {
		t.Errorf("polkit was asked %q", asked)
	}
	contains(t, "the refusal", d.mustBeDeniedAs(t, stranger, "list"), "authentication failed", "polkit does not give user 4244 org.libvirt.unix.manage")
	p.take()
	for _, socket := range []string{"libvirt-sock", "libvirt-sock-ro"} {
		member := d.command(t.Context(), "setpriv", "--reuid", strconv.Itoa(stranger), "--regid", "games", "--clear-groups",
			"env", "HOME=/nonexistent", "virsh", "-q", "-c", "qemu:///system?socket="+d.run+"/"+socket, "list", "--all", "--name")
		if out, err := member.CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != "web-1" {
			t.Errorf("a member of the group sees %q by %s, %v", out, socket, err)
		}
	}
	if asked := p.take(); len(asked) > 0 {
		t.Errorf("about a member of the group polkit was asked %q", asked)
	}
	_ = p.bus.Process.Kill()
	_ = p.bus.Wait()
	contains(t, "the refusal", d.mustBeDeniedAs(t, operator, "list"), "authentication failed", "cannot ask polkit")
}

// asking is a user that polkit would ask for a password.
const asking = 4245

// checkAgentError checks the error code for which virsh starts its polkit agent.
func (d *daemon) checkAgentError(t *testing.T) {
	needsPython(t, d)
	program := `
import libvirt, sys
libvirt.registerErrorHandler(lambda *a: None, None)
try:
    libvirt.open(sys.argv[1])
except libvirt.libvirtError as e:
    print(e.get_error_domain() == libvirt.VIR_FROM_POLKIT, e.get_error_code() == libvirt.VIR_ERR_AUTH_UNAVAILABLE)
`
	out, err := d.as(t.Context(), asking, "/usr/bin/python3", "-c", program, d.uri()).CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "True True" {
		t.Errorf("a client without an agent hears %q, %v", out, err)
	}
}

// lodgeByPolkit connects by Lodge's own API.
func (d *daemon) lodgeByPolkit(t *testing.T) {
	lodge := func(uid int) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		id := strconv.Itoa(uid)
		out, err := d.command(ctx, "setpriv", "--reuid", id, "--regid", id, "--clear-groups",
			program(t, "lodge"), "--socket", filepath.Join(d.run, "lodge.sock"), "ps").CombinedOutput()
		return string(out), err
	}
	if out, err := lodge(operator); err != nil || !strings.Contains(out, "web-1") {
		t.Errorf("the operator sees %q, %v", out, err)
	}
	if out, err := lodge(stranger); err == nil || !strings.Contains(out, "polkit does not give user 4244") {
		t.Errorf("the stranger sees %q, %v", out, err)
	}
}

// checkSlowPolkit delays the check of one user. All other clients must be served meanwhile.
func (d *daemon) checkSlowPolkit(t *testing.T, p *policy) {
	p.take()
	hold := make(chan struct{})
	p.mu.Lock()
	p.holds[builder] = hold
	p.mu.Unlock()
	answer := make(chan error, 1)
	go func() {
		_, err := d.virshAs(t, builder, "list")
		answer <- err
	}()
	eventually(t, "polkit to be asked", func() bool { return len(p.take()) > 0 })
	d.virsh(t, "list")
	d.mustSucceedAs(t, operator, "list")
	select {
	case err := <-answer:
		t.Errorf("the client that waits for polkit has ended: %v", err)
	default:
	}
	close(hold)
	if err := <-answer; err != nil {
		t.Errorf("the client that waited for polkit cannot connect: %v", err)
	}
}
