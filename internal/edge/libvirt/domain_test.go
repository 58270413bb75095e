package libvirt

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/daemon"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/domaincalls"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/event"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// withGuests serves all backends, as lodged does. Guests end with the test.
func withGuests(t *testing.T) *testServer {
	t.Helper()
	if testing.Short() {
		t.Skip("starts QEMU: not among the short tests")
	}
	if os.Geteuid() != 0 {
		t.Skip("guests need root for their control groups")
	}
	binary, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		t.Skip("qemu-system-x86_64 is not installed")
	}
	dir, err := os.MkdirTemp("", "lodge-") //nolint:usetesting // the paths of sockets are bounded, and t.TempDir can be long
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	d, err := daemon.Open(t.Context(), daemon.Config{Data: filepath.Join(dir, "data"), Run: filepath.Join(dir, "run"), Emulator: binary})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, g := range d.Guests.All() {
			if g.View().Active != nil {
				if err := guest.Destroy(context.WithoutCancel(t.Context()), g, scope.Daemon("a test"), false); err != nil {
					t.Logf("ending %s: %v", g.Name(), err)
				}
			}
		}
		d.Close()
		if left := d.Groups.Guests(); len(left) > 0 {
			t.Errorf("control groups are left: %v", left)
		}
	})
	h := serve(t, func(s *rpc.Server) { s.Handlers.Backends = backendsOf(d) })
	h.events = d.Events
	return h
}

// backendsOf returns the backends of a daemon.
func backendsOf(d *daemon.Daemon) rpc.Backends {
	return rpc.Backends{
		Guests: d.Guests, Pools: d.Pools, Networks: d.Networks, Secrets: d.Secrets, Events: d.Events,
		Host: d.Host, Devices: d.Devices, Emulators: d.Emulators,
	}
}

// aGuest is a small guest that runs its firmware and finds nothing to boot.
func aGuest(name string) string {
	return fmt.Sprintf(`<domain type='qemu'><name>%s</name><uuid>%s</uuid><memory>65536</memory><vcpu current='1'>2</vcpu>
<os><type arch='x86_64' machine='pc'>hvm</type></os>
<devices><serial type='pty'/><console type='pty'/><video><model type='vga'/></video>
<disk type='file' device='cdrom'><target dev='hda' bus='ide'/></disk></devices></domain>`, name, webUUID)
}

// TestVirsh_Domains runs the domain commands of the distribution's virsh over a guest's
// whole lifecycle.
func TestVirsh_Domains(t *testing.T) {
	h := withGuests(t)
	saved := filepath.Join(t.TempDir(), "web.save")
	picture := filepath.Join(t.TempDir(), "screen.ppm")
	doc := document(t, aGuest("web"))
	for _, c := range []struct {
		command string
		want    string
	}{
		{"list --all", "Id Name State\n"},
		{"define --validate " + doc, "Domain 'web' defined from"},
		{"list --all", "- web shut off"},
		{"domuuid web", webUUID},
		{"domname " + webUUID, "web"},
		{"domid web", "-"},
		{"domstate web --reason", "shut off (unknown)"},
		{"dominfo web", "Max memory: 65536 KiB"},
		{"dominfo web", "Persistent: yes\nAutostart: disable\n"},
		{"dominfo web", "Managed save: no"},
		{"autostart web", "marked as autostarted"},
		{"list --all --autostart --name", "web"},
		{"list --all --no-autostart --name", ""},
		{"autostart web --disable", "unmarked"},
		{"desc web --title --config tile --new-desc", ""},
		{"desc web --config the web server", "description updated"},
		{"desc web", "the web server"},
		{"metadata web urn:lodge:test --key t --set <role>front</role>", "Metadata modified"},
		{"metadata web urn:lodge:test", "front"},
		{"metadata web urn:other", ""}, // an error by some versions, nothing by others
		{"dumpxml web", "<name>web</name>"},
		{"vcpucount web", "maximum config 2"},
		{"setvcpus web 2 --config", ""},
		{"vcpucount web --config --current", "2"},
		{"setvcpus web 1 --config", ""},
		{"vcpupin web 0 0 --config", ""},
		{"vcpupin web", "0 0"},
		{"emulatorpin web", "*:"},
		{"setmaxmem web 131072 --config", ""},
		{"setmem web 65536 --config", ""},
		{"dommemstat web", "domain is not running"},
		{"domstats web", "vcpu.maximum=2"},
		{"domcontrol web", "domain is not running"},
		{"destroy web", "domain is not running"},
		{"start web --paused", "Domain 'web' started"},
		{"start web", "already"},
		{"domstate web --reason", "paused"},
		{"list", "1 web paused"},
		{"resume web", "resumed"},
		{"domstate web --reason", "running (unpaused)"},
		{"suspend web", "suspended"},
		{"domstate web --reason", "paused (user)"},
		{"resume web", "resumed"},
		{"dominfo web", "State: running"},
		{"domcontrol web", "ok"},
		{"vcpuinfo web", "State: running"},
		{"vcpupin web 0 0 --live", ""},
		{"domstats web --state --cpu-total --balloon --vcpu --block", "state.state=1"},
		{"domstats --nowait", "block.0.name=hda"},
		{"domblklist web", "hda"},
		{"domblkstat web hda --human", "number of read operations"},
		{"dommemstat web", "actual"},
		{"domjobinfo web", "Job type: None"},
		{"domdisplay web", ""},
		{"ttyconsole web", "/dev/pts/"},
		{"qemu-monitor-command web --hmp info status", "running"},
		{`qemu-monitor-command web {"execute":"query-status"}`, `"running":true`},
		{"qemu-agent-command web {\"execute\":\"guest-ping\"}", "agent is not configured"},
		{"inject-nmi web", ""},
		{"screenshot web " + picture, "Screenshot saved to"},
		{"reset web", "was reset"},
		{"snapshot-list web", ""},
		{"managedsave web", "saved by libvirt"},
		{"list --all --with-managed-save --name", "web"},
		{"domstate web --reason", "shut off (saved)"},
		{"undefine web", "managed save image exists"},
		{"start web", "started"},
		{"domstate web --reason", "running (restored)"},
		{"save web " + saved, "saved to"},
		{"save-image-dumpxml " + saved, "<name>web</name>"},
		{"restore " + saved, "Domain restored"},
		{"domjobabort web", "no job is active"},
		{"domrename web other", "cannot rename a running domain"},
		{"destroy web --graceful", "destroyed"},
		{"domrename web other", "successfully renamed"},
		{"undefine other", "has been undefined"},
		{"dominfo other", "failed to get domain 'other'"},
		{"create " + doc + " --paused", "Domain 'web' created"},
		{"list --transient --name", "web"},
		{"define " + doc, "defined"},
		{"list --persistent --name", "web"},
		{"destroy web", "destroyed"},
		{"start web --autodestroy", "started"},
	} {
		out, err := h.virsh(strings.Split(c.command, " ")...)
		if !strings.Contains(squeeze(out), c.want) {
			t.Errorf("virsh %s: %v\n%s\nwant: %s", c.command, err, out, c.want)
		}
	}
	if b, err := os.ReadFile(picture); err != nil || !bytes.HasPrefix(b, []byte("P6")) {
		t.Errorf("the picture begins with %q, %v", b[:min(len(b), 10)], err)
	}
}

// TestAutoDestroy_ClientCloses: a guest that was started with auto-destroy ends when its client disconnects.
func TestAutoDestroy_ClientCloses(t *testing.T) {
	h := withGuests(t)
	watcher, owner := h.open(""), h.open("")
	watcher.watch(rpc.EventLifecycle, nil)
	ret := new(xdr.DomainCreateXMLRet)
	owner.must(xdr.ProcDomainCreateXML, &xdr.DomainCreateXMLArgs{XML: aGuest("web"), Flags: rpc.StartAutoDestroy | rpc.StartPaused}, ret)
	_ = owner.conn.Close()
	for {
		var e xdr.DomainEventCallbackLifecycleMsg
		watcher.event(xdr.ProcDomainEventCallbackLifecycle, &e)
		if e.Msg.Event == rpc.DomainChanges[event.Stopped] {
			break
		}
	}
	w := h.open("")
	for asked := time.Now(); ; { // it is forgotten right after the event
		w.send(xdr.ProcDomainGetState, &xdr.DomainGetStateArgs{Domain: ret.Domain})
		if w.next().Status == xdr.StatusError {
			break
		}
		if time.Since(asked) > patience {
			t.Fatal("the guest is still known")
		}
	}
	w.refused(xdr.ProcDomainGetState, &xdr.DomainGetStateArgs{Domain: ret.Domain}, rpc.CodeNoDomain)
}

// TestConsole_FirmwareOutput: the console stream has the firmware's output, and ends with the
// guest.
func TestConsole_FirmwareOutput(t *testing.T) {
	h := withGuests(t)
	w := h.open("")
	ret := new(xdr.DomainCreateXMLRet)
	doc := strings.Replace(aGuest("web"), "</type>", "</type><bios useserial='yes'/>", 1)
	w.must(xdr.ProcDomainCreateXML, &xdr.DomainCreateXMLArgs{XML: doc, Flags: rpc.StartPaused}, ret)
	st := w.openStream(xdr.ProcDomainOpenConsole, &xdr.DomainOpenConsoleArgs{Domain: ret.Domain})
	w.must(xdr.ProcDomainResume, &xdr.DomainResumeArgs{Domain: ret.Domain}, nil)
	var screen []byte
	for !bytes.Contains(screen, []byte("BIOS")) {
		w.deadline()
		screen = append(screen, w.expect(st, xdr.StatusContinue)...)
	}
	other := h.open("")
	other.must(xdr.ProcDomainDestroy, &xdr.DomainDestroyArgs{Domain: ret.Domain}, nil)
	for len(w.expect(st, xdr.StatusContinue)) > 0 { // until the end of data
	}
	w.data(st, xdr.StatusOK, nil)
	w.expect(st, xdr.StatusOK)
}

// TestMatchesFilters_Lists checks the filter flags of lists.
func TestMatchesFilters_Lists(t *testing.T) {
	running := &guest.View{ID: 1, State: domain.Running, Active: new(domain.Definition)}
	off := &guest.View{ID: -1, State: domain.ShutOff, Persistent: true, Autostart: true, ManagedSave: true, Inactive: new(domain.Definition)}
	crashed := &guest.View{ID: -1, State: domain.Crashed, Persistent: true, Inactive: new(domain.Definition)}
	for _, c := range []struct {
		flags uint32
		want  [3]bool
	}{
		{0, [3]bool{true, true, true}},
		{1, [3]bool{true, false, false}},
		{2, [3]bool{false, true, true}},
		{1 | 2, [3]bool{true, true, true}},
		{4, [3]bool{false, true, true}},
		{8, [3]bool{true, false, false}},
		{16, [3]bool{true, false, false}},
		{64 | 128, [3]bool{false, true, true}},
		{1 | 64, [3]bool{false, false, false}},
		{2 | 256, [3]bool{false, true, false}},
		{512 | 2048, [3]bool{true, false, true}},
		{4096, [3]bool{false, false, false}},
		{8192, [3]bool{true, true, true}},
	} {
		got := [3]bool{domaincalls.MatchesFilters(running, c.flags), domaincalls.MatchesFilters(off, c.flags), domaincalls.MatchesFilters(crashed, c.flags)}
		if got != c.want {
			t.Errorf("flags %#x: %v, want %v", c.flags, got, c.want)
		}
	}
}

func TestJobType_ByProgress(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		job  domain.Progress
		want int32
	}{
		{domain.Progress{}, domaincalls.JobNone},
		{domain.Progress{Kind: domain.JobModify, Started: now}, domaincalls.JobNone},
		{domain.Progress{Kind: domain.JobSave, Started: now}, domaincalls.JobUnbounded},
		{domain.Progress{Kind: domain.JobSave, Started: now, Ended: now}, domaincalls.JobCompleted},
		{domain.Progress{Kind: domain.JobSave, Started: now, Ended: now, Err: "disk"}, domaincalls.JobFailed},
		{domain.Progress{Kind: domain.JobSave, Started: now, Ended: now, Err: "abort", Cancelled: true}, domaincalls.JobCancelled},
	} {
		if got := domaincalls.JobType(domaincalls.MemoryJob(c.job)); got != c.want {
			t.Errorf("%+v: %d, want %d", c.job, got, c.want)
		}
	}
}

// TestPipeStream_EitherEndCloses: when the console or the stream ends, the other ends, too.
func TestPipeStream_EitherEndCloses(t *testing.T) {
	far := make(chan io.ReadWriteCloser, 1)
	h := serve(t, func(s *rpc.Server) {
		serveConsole(func(ctx context.Context, st *rpc.Stream) error {
			near, other := net.Pipe()
			far <- other
			return domaincalls.PipeStream(near)(ctx, st)
		})(s)
	})
	w := h.open("")
	st := w.openStream(xdr.ProcDomainOpenConsole, new(xdr.DomainOpenConsoleArgs))
	line := <-far
	w.data(st, xdr.StatusContinue, []byte("hello"))
	typed := make([]byte, 5)
	if _, err := io.ReadFull(line, typed); err != nil || string(typed) != "hello" {
		t.Fatalf("%q, %v", typed, err)
	}
	if _, err := line.Write([]byte("login:")); err != nil {
		t.Fatal(err)
	}
	if got := w.expect(st, xdr.StatusContinue); string(got) != "login:" {
		t.Fatalf("got %q", got)
	}
	_ = line.Close()
	if got := w.expect(st, xdr.StatusContinue); len(got) != 0 {
		t.Fatalf("got %q, want the end of data", got)
	}
	w.data(st, xdr.StatusOK, nil)
	w.expect(st, xdr.StatusOK)

	for _, status := range []xdr.Status{xdr.StatusOK, xdr.StatusError} {
		st = w.openStream(xdr.ProcDomainOpenConsole, new(xdr.DomainOpenConsoleArgs))
		line = <-far
		w.data(st, status, nil)
		w.expect(st, xdr.StatusOK)
		if _, err := line.Read(typed); err == nil {
			t.Fatal("the line outlives its stream")
		}
	}
}

// A guest that cannot be adopted and has no known definition is still listed, and clients query every listed
// guest.
// Promise: G5
func TestDomain_StateWithoutDefinition(t *testing.T) {
	v := &guest.View{State: domain.ShutOff, Quarantined: true, Messages: []string{"why"}}
	if info, err := domaincalls.DomainInfo(v); err != nil || *info != (xdr.DomainGetInfoRet{State: byte(domain.ShutOff)}) {
		t.Errorf("it is %+v, %v", info, err)
	}
	v.Quarantined = false
	if _, err := domaincalls.DomainInfo(v); !fault.Is(err, fault.NotFound) {
		t.Errorf("one that has left: %v", err)
	}
}
