package target

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/remote"
	"github.com/lodge-kvm/lodge/lab/machine"
	"github.com/lodge-kvm/lodge/lab/node"
	"github.com/lodge-kvm/lodge/lab/record"
)

// patience bounds each call: a daemon may have to find out first what its QEMU
// can do, and starts guests by turns.
const patience = 2 * time.Minute

// Skipped is something that a daemon, or its host, does not do.
type Skipped struct{ Reason string }

func (s *Skipped) Error() string { return "not done here: " + s.Reason }

// Target is a daemon. Its methods may be called from many goroutines.
type Target struct {
	record.Target
	Cells []Cell // nodes of its host

	conn    *remote.Conn
	away    bool
	machine machine.Host // of a daemon that is away
	tsc     int          // of its host, in kHz; 0: not known
	mib     uint64       // memory of its host
	cpus    int
}

// Connect gets to know the daemon at an address.
func Connect(ctx context.Context, name, address string) (*Target, error) {
	at, err := remote.Parse(address)
	if err != nil {
		return nil, fault.Wrap(err, fault.Of(err), fault.Host, "target %s", name)
	}
	conn, err := remote.Dial(ctx, address)
	if err != nil {
		return nil, fault.Wrap(err, fault.Of(err), fault.Host, "target %s", name)
	}
	t := &Target{Target: record.Target{Name: name, URI: address}, conn: conn, away: !at.Local()}
	if err := t.meet(ctx); err != nil {
		conn.Close()
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot get to know target %s", name)
	}
	return t, nil
}

// Close drops the connection. Guests go on.
func (t *Target) Close() { t.conn.Close() }

func (t *Target) meet(ctx context.Context) error {
	var library, hypervisor xdr.WithVersion
	var host xdr.WithHostname
	var info xdr.NodeGetInfoRet
	var capabilities xdr.ConnectGetCapabilitiesRet
	err := errors.Join(
		t.call(ctx, xdr.ProcConnectGetLibVersion, nil, &library),
		t.call(ctx, xdr.ProcConnectGetVersion, nil, &hypervisor),
		t.call(ctx, xdr.ProcConnectGetHostname, nil, &host),
		t.call(ctx, xdr.ProcNodeGetInfo, nil, &info),
		t.call(ctx, xdr.ProcConnectGetCapabilities, nil, &capabilities),
	)
	if err != nil {
		return err
	}
	t.Library, t.Hypervisor, t.Host = version(library.Version), version(hypervisor.Version), host.Hostname
	t.mib, t.cpus = info.Memory>>10, int(info.CPUs)
	if t.Cells, err = cells(capabilities.Capabilities); err != nil {
		return err
	}
	if t.Away() {
		if t.machine, err = node.Host(ctx, t); err != nil {
			return err
		}
		t.tsc = node.TSC(capabilities.Capabilities)
	}
	if pid, err := t.conn.PeerID(); err == nil {
		if p, err := (machine.Machine{Root: "/"}).Process(pid); err == nil {
			t.Daemon = p.Name
		}
	}
	return t.accelerate(ctx)
}

// accelerate asks whether guests may run under KVM here. A daemon that does not
// offer it says so by an error.
func (t *Target) accelerate(ctx context.Context) error {
	kvm := "kvm"
	var ret xdr.ConnectGetDomainCapabilitiesRet
	err := t.call(ctx, xdr.ProcConnectGetDomainCapabilities, &xdr.ConnectGetDomainCapabilitiesArgs{VirtType: &kvm}, &ret)
	t.Accelerator = kvm
	if remote.Refused(err) {
		t.Accelerator, err = "tcg", nil
	}
	return err
}

// Here tells whether the daemon's host is this one: by how it is reached, and by the
// name that it has for it, because a socket may be another host's, carried here.
func (t *Target) Here() bool {
	at, failed := remote.Parse(t.URI)
	name, err := os.Hostname()
	short := func(name string) string { first, _, _ := strings.Cut(name, "."); return first }
	return failed == nil && at.Local() && err == nil && short(t.Host) == short(name)
}

// Reach says why the daemon cannot be asked any more.
func (t *Target) Reach(ctx context.Context) error {
	var library xdr.WithVersion
	return t.call(ctx, xdr.ProcConnectGetLibVersion, nil, &library)
}

// Memory is that of the daemon's host, in bytes, and Processors are its.
func (t *Target) Memory() uint64 { return t.mib << 20 }

// Processors is how many the daemon's host has.
func (t *Target) Processors() int { return t.cpus }

func (t *Target) call(ctx context.Context, proc int32, args, ret xdr.Message) error {
	return callOn(ctx, t.conn, proc, args, ret)
}

func callOn(ctx context.Context, c *remote.Conn, proc int32, args, ret xdr.Message) error {
	ctx, stop := context.WithTimeoutCause(ctx, patience, fault.New(fault.Timeout, fault.Call, "the daemon has not answered within %s", patience))
	defer stop()
	return c.Call(ctx, proc, args, ret)
}

// skip makes a refusal of what the daemon does not have a Skipped.
func skip(err error) error {
	if refused, ok := errors.AsType[*remote.Error](err); ok && refused.Unsupported() {
		return &Skipped{"the daemon refuses: " + refused.Message}
	}
	return err
}

// version spells a version as it stands on the wire: a million times the major
// number, and so on.
func version(v uint64) string {
	return fmt.Sprintf("%d.%d.%d", v/1000000, v/1000%1000, v%1000)
}
