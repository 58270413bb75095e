package libvirt

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	foreign "github.com/digitalocean/go-libvirt"
	"github.com/digitalocean/go-libvirt/socket/dialers"

	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/word/event"
)

// virsh runs the distribution's virsh against the server.
func (h *testServer) virsh(args ...string) (string, error) {
	h.t.Helper()
	return h.run("virsh", append([]string{"-c", "qemu:///system?socket=" + h.socket}, args...)...)
}

func (h *testServer) run(program string, args ...string) (string, error) {
	h.t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		h.t.Skipf("%s is not installed", program)
	}
	ctx, cancel := context.WithTimeout(h.t.Context(), 2*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(cmd.Environ(), "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func TestVirsh_Connect(t *testing.T) {
	h := serve(t)
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"uri"}, "qemu:///system"},
		{[]string{"hostname"}, host},
		{[]string{"-r", "uri"}, "qemu:///system"},
		{[]string{"iface-begin"}, "error: this function is not supported by the connection driver: virsh iface-begin is not built; use the host"},
		{[]string{"event", "--all", "--timeout", "1"}, "event loop timed out"},
		{[]string{"net-event", "--event", "lifecycle", "--timeout", "1"}, "event loop timed out"},
		{[]string{"-k", "1", "-K", "2", "event", "--event", "lifecycle", "--timeout", "4"}, "event loop timed out"},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			out, err := h.virsh(c.args...)
			if !strings.Contains(out, c.want) {
				t.Fatalf("%v: %s", err, out)
			}
		})
	}
}

// pythonClient registers for events, keeps the connection alive across several intervals, and prints the events.
const pythonClient = `
import libvirt, sys, threading
libvirt.virEventRegisterDefaultImpl()
libvirt.registerErrorHandler(lambda *a: None, None)
conn = libvirt.open("qemu:///system?socket=" + sys.argv[1])
conn.setKeepAlive(1, 2)
got = []
def changed(conn, dom, event, detail, opaque): got.append((dom.name(), dom.ID(), event, detail))
def rebooted(conn, dom, opaque): got.append((dom.name(), "reboot"))
def network(conn, net, event, detail, opaque): got.append((net.name(), event))
conn.domainEventRegisterAny(None, libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE, changed, None)
conn.domainEventRegisterAny(None, libvirt.VIR_DOMAIN_EVENT_ID_REBOOT, rebooted, None)
conn.networkEventRegisterAny(None, libvirt.VIR_NETWORK_EVENT_ID_LIFECYCLE, network, None)
print("ready", flush=True)
over = []
threading.Timer(5, lambda: over.append(True)).start()
tick = libvirt.virEventAddTimeout(100, lambda *a: None, None)
while len(got) < 3 or not over: libvirt.virEventRunDefaultImpl()
print(got, conn.isAlive(), conn.isSecure(), conn.getType())
try: conn.interfaceLookupByName("eth0")
except libvirt.libvirtError as e: print(e.get_error_code())
conn.close()
`

func TestClients_LibvirtPython(t *testing.T) {
	const python = "/usr/bin/python3"
	if err := exec.CommandContext(t.Context(), python, "-c", "import libvirt").Run(); err != nil {
		t.Skip("python3-libvirt is not installed")
	}
	h := serve(t)
	script := filepath.Join(t.TempDir(), "client.py")
	if err := os.WriteFile(script, []byte(pythonClient), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, script, h.socket)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != "ready" {
		t.Fatalf("%q, %v", lines.Text(), lines.Err())
	}
	h.events.Append(web, event.DomainChange{Change: event.Started, Detail: event.DetailBooted})
	h.events.Append(web, event.DomainReboot{})
	h.events.Append(event.Source{Name: "default", UUID: dbUUID}, event.NetworkChange{Change: event.Started})
	var got []string
	for lines.Scan() {
		got = append(got, lines.Text())
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"[('web', 7, 2, 0), ('web', 'reboot'), ('default', 2)] 1 1 QEMU",
		"57",
	}
	if !slices.Equal(got, want) {
		t.Fatalf("got %q, want %q", got, want)
	}
}

// TestClients_GoLibvirt uses a client that shares no code with libvirt.
func TestClients_GoLibvirt(t *testing.T) {
	h := serve(t)
	c := foreign.NewWithDialer(dialers.NewLocal(dialers.WithSocket(h.socket)))
	if err := c.Connect(); err != nil {
		t.Fatal(err)
	}
	if version, err := c.ConnectGetLibVersion(); err != nil || version != rpc.LibraryVersion {
		t.Fatalf("version %d, %v", version, err)
	}
	var e foreign.Error
	if err := c.InterfaceChangeBegin(0); !errors.As(err, &e) || foreign.ErrorNumber(e.Code) != foreign.ErrNoSupport {
		t.Fatalf("a call that is not built: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	events, err := c.LifecycleEvents(ctx)
	if err != nil {
		t.Fatal(err)
	}
	h.events.Append(web, event.DomainChange{Change: event.Suspended, Detail: event.DetailPaused})
	select {
	case got := <-events:
		if got.Dom.Name != "web" || got.Event != 3 {
			t.Fatalf("got %+v", got)
		}
	case <-ctx.Done():
		t.Fatal("no event")
	}
	cancel()
	if err := c.Disconnect(); err != nil {
		t.Fatal(err)
	}
}
