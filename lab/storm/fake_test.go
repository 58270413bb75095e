package storm

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/remote"
	"github.com/lodge-kvm/lodge/internal/remote/remotetest"
	"github.com/lodge-kvm/lodge/lab/target/targettest"
)

// fake is a daemon whose guests are words in a map. Before may refuse a call, or
// hold it up; it is asked without the lock.
type fake struct {
	t      *testing.T
	name   string
	before func(proc int32, guest string) error
	host   string
	memory uint64 // of its host, half of which is free

	pools targettest.Daemon // that it has

	mu      sync.Mutex
	domains map[string]bool // whether it runs
	turns   *[]string       // names of the daemons, as their guests are started; shared
}

func newFake(t *testing.T, name string) *fake {
	return &fake{
		t: t, name: name, domains: map[string]bool{"somebody-elses": true}, turns: new([]string),
		before: func(int32, string) error { return nil }, host: "here", memory: 64 << 30,
	}
}

func (f *fake) target() Target {
	return Target{Name: f.name, Address: remotetest.Listen(f.t, f.answer)}
}

func (f *fake) answer(proc int32, args xdr.Message) (xdr.Message, error) {
	if err := f.before(proc, guestOf(args)); err != nil {
		return nil, err
	}
	if strings.HasPrefix(xdr.Lookup(xdr.ProgramRemote, proc).Name, "STORAGE_") {
		return f.pools.Answer(proc, args)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch proc {
	case xdr.ProcAuthList:
		return &xdr.AuthListRet{}, nil
	case xdr.ProcConnectOpen:
		return nil, nil
	case xdr.ProcConnectGetLibVersion:
		return &xdr.WithVersion{Version: 9000001}, nil
	case xdr.ProcConnectGetVersion:
		return &xdr.WithVersion{Version: 7002022}, nil
	case xdr.ProcConnectGetHostname:
		return &xdr.WithHostname{Hostname: f.host}, nil
	case xdr.ProcNodeGetInfo:
		return &xdr.NodeGetInfoRet{Memory: f.memory >> 10, CPUs: 40}, nil
	case xdr.ProcConnectGetCapabilities:
		return &xdr.ConnectGetCapabilitiesRet{Capabilities: "<capabilities><host><cpu><vendor>AMD</vendor><model>EPYC</model></cpu></host></capabilities>"}, nil
	case xdr.ProcConnectGetSysinfo:
		return nil, &remote.Error{Code: codeNoSupport, Domain: 10, Message: "no firmware"}
	case xdr.ProcNodeGetMemoryStats:
		stats := []xdr.NodeMemoryStat{{Field: "total", Value: f.memory >> 10}, {Field: "free", Value: f.memory >> 11}}
		return &xdr.NodeGetMemoryStatsRet{Params: stats[:args.(*xdr.NodeGetMemoryStatsArgs).NParams], NParams: int32(len(stats))}, nil
	case xdr.ProcConnectListAllDomains:
		var all []xdr.Domain
		for name, running := range f.domains {
			all = append(all, domain(name, running))
		}
		return &xdr.ConnectListAllDomainsRet{Domains: all, Count: uint32(len(all))}, nil
	}
	return f.act(proc, guestOf(args))
}

func domain(name string, running bool) xdr.Domain {
	if running {
		return xdr.Domain{Name: name, ID: 7}
	}
	return xdr.Domain{Name: name, ID: -1}
}

func guestOf(args xdr.Message) string {
	switch args := args.(type) {
	case *xdr.DomainDefineXMLArgs:
		_, rest, _ := strings.Cut(args.XML, "<name>")
		name, _, _ := strings.Cut(rest, "</name>")
		return name
	case *xdr.WithDomainFlags: // start and undefine
		return args.Domain.Name
	case *xdr.WithDomain:
		return args.Domain.Name
	}
	return ""
}

// act is what is done to a domain.
func (f *fake) act(proc int32, name string) (xdr.Message, error) {
	running, exists := f.domains[name]
	if exists == (proc == xdr.ProcDomainDefineXML) {
		f.t.Errorf("%s: call %d on %q, which exists: %v", f.name, proc, name, exists)
	}
	invalid := &remote.Error{Code: codeOperationInvalid, Domain: 10, Message: "not in that state"}
	switch proc {
	case xdr.ProcDomainDefineXML:
		f.domains[name] = false
		return &xdr.DomainDefineXMLRet{Domain: domain(name, false)}, nil
	case xdr.ProcDomainCreateWithFlags:
		if running {
			return nil, invalid
		}
		*f.turns = append(*f.turns, f.name)
		f.domains[name] = true
		return &xdr.DomainCreateWithFlagsRet{Domain: domain(name, true)}, nil
	case xdr.ProcDomainDestroy:
		if !running {
			return nil, invalid
		}
		f.domains[name] = false
		return nil, nil
	case xdr.ProcDomainUndefineFlags:
		delete(f.domains, name)
		return nil, nil
	case xdr.ProcDomainSuspend, xdr.ProcDomainResume, xdr.ProcDomainManagedSave:
		if !running {
			return nil, invalid
		}
		if proc == xdr.ProcDomainManagedSave {
			f.domains[name] = false
		}
		return nil, nil
	}
	f.t.Errorf("nobody needs call %d", proc)
	return nil, &remote.Error{Code: codeNoSupport, Domain: 7, Message: "unknown procedure"}
}

// leftAlone fails when a domain or a pool of the lab's is left, or a domain of others is not.
func (f *fake) leftAlone() {
	f.t.Helper()
	if left := f.pools.Left(); len(left) > 0 {
		f.t.Errorf("%s: afterwards there are %v", f.name, left)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if names := slices.Collect(maps.Keys(f.domains)); !slices.Equal(names, []string{"somebody-elses"}) || !f.domains["somebody-elses"] {
		f.t.Errorf("%s: afterwards there are %v", f.name, f.domains)
	}
}
