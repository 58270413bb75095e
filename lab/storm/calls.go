package storm

import (
	"context"
	"errors"
	"strings"

	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/remote"
)

// Flags of libvirt's calls.
const (
	startPaused     = 1
	undefineAll     = 1 | 2 | 4 // its saved state, snapshots' records and firmware variables too
	statsNoWait     = 1 << 29
	listActive      = 1
	eventLifecycle  = 0
	eventSuspended  = 3
	eventResumed    = 4
	maxMemoryStats  = 16
	stateRunning    = 1
	statePaused     = 3
	monitorQuestion = `{"execute":"query-status"}`
)

// Codes of libvirt's errors.
const (
	codeNoSupport        = 3
	codeOperationFailed  = 9
	codeOperationInvalid = 55
	codeOperationTimeout = 68
	codeOperationAborted = 78
)

func define(ctx context.Context, c *remote.Conn, document string) (xdr.Domain, error) {
	var ret xdr.DomainDefineXMLRet
	err := c.Call(ctx, xdr.ProcDomainDefineXML, &xdr.DomainDefineXMLArgs{XML: document}, &ret)
	return ret.Domain, err
}

func undefine(ctx context.Context, c *remote.Conn, d xdr.Domain) error {
	return c.Call(ctx, xdr.ProcDomainUndefineFlags, &xdr.DomainUndefineFlagsArgs{Domain: d, Flags: undefineAll}, nil)
}

func start(ctx context.Context, c *remote.Conn, d xdr.Domain) error {
	return c.Call(ctx, xdr.ProcDomainCreateWithFlags, &xdr.DomainCreateWithFlagsArgs{Domain: d, Flags: startPaused}, new(xdr.DomainCreateWithFlagsRet))
}

func destroy(ctx context.Context, c *remote.Conn, d xdr.Domain) error {
	return c.Call(ctx, xdr.ProcDomainDestroy, &xdr.DomainDestroyArgs{Domain: d}, nil)
}

func suspend(ctx context.Context, c *remote.Conn, d xdr.Domain) error {
	return c.Call(ctx, xdr.ProcDomainSuspend, &xdr.DomainSuspendArgs{Domain: d}, nil)
}

func resume(ctx context.Context, c *remote.Conn, d xdr.Domain) error {
	return c.Call(ctx, xdr.ProcDomainResume, &xdr.DomainResumeArgs{Domain: d}, nil)
}

func save(ctx context.Context, c *remote.Conn, d xdr.Domain) error {
	return c.Call(ctx, xdr.ProcDomainManagedSave, &xdr.DomainManagedSaveArgs{Domain: d}, nil)
}

// info fails also for a guest that neither runs nor is paused.
func info(ctx context.Context, c *remote.Conn, d xdr.Domain) error {
	var ret xdr.DomainGetInfoRet
	if err := c.Call(ctx, xdr.ProcDomainGetInfo, &xdr.DomainGetInfoArgs{Domain: d}, &ret); err != nil {
		return err
	}
	if ret.State != stateRunning && ret.State != statePaused {
		return errAway
	}
	return nil
}

// errAway says that a guest that should be there is not.
var errAway = errors.New("the guest neither runs nor is paused")

func memoryStats(ctx context.Context, c *remote.Conn, d xdr.Domain) error {
	return c.Call(ctx, xdr.ProcDomainMemoryStats, &xdr.DomainMemoryStatsArgs{Domain: d, MaxStats: maxMemoryStats}, new(xdr.DomainMemoryStatsRet))
}

func askMonitor(ctx context.Context, c *remote.Conn, d xdr.Domain) error {
	return c.CallOf(ctx, xdr.ProgramQEMU, xdr.ProcQEMUDomainMonitorCommand,
		&xdr.QEMUDomainMonitorCommandArgs{Domain: d, Command: monitorQuestion}, new(xdr.QEMUDomainMonitorCommandRet))
}

func list(ctx context.Context, c *remote.Conn, flags uint32) ([]xdr.Domain, error) {
	var ret xdr.ConnectListAllDomainsRet
	err := c.Call(ctx, xdr.ProcConnectListAllDomains, &xdr.ConnectListAllDomainsArgs{NeedResults: true, Flags: flags}, &ret)
	return ret.Domains, err
}

// own are the domains of a run, known by the prefix of their names.
func own(ctx context.Context, c *remote.Conn, prefix string) ([]xdr.Domain, error) {
	all, err := list(ctx, c, 0)
	var mine []xdr.Domain
	for _, d := range all {
		if strings.HasPrefix(d.Name, prefix) {
			mine = append(mine, d)
		}
	}
	return mine, err
}

// allStats asks for every group of all domains, and gives how many answered.
func allStats(ctx context.Context, c *remote.Conn, flags uint32) (int, error) {
	var ret xdr.ConnectGetAllDomainStatsRet
	err := c.Call(ctx, xdr.ProcConnectGetAllDomainStats, &xdr.ConnectGetAllDomainStatsArgs{Flags: flags}, &ret)
	return len(ret.Stats), err
}

func hearLifecycle(ctx context.Context, c *remote.Conn) error {
	return c.Call(ctx, xdr.ProcConnectDomainEventCallbackRegisterAny,
		&xdr.ConnectDomainEventCallbackRegisterAnyArgs{EventID: eventLifecycle}, new(xdr.ConnectDomainEventCallbackRegisterAnyRet))
}
