package libvirt

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/control/authz"
	"github.com/lodge-kvm/lodge/internal/control/fleet"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/domaincalls"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/mechanism/listener"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// admitted returns the scope of a call by the restricted client. The call is authorized now, and runs later.
func (h *restrictedServer) admitted(t *testing.T, number int32, args xdr.Message) scope.Scope {
	t.Helper()
	near, far := net.Pipe()
	t.Cleanup(func() { _, _ = near.Close(), far.Close() })
	s := rpc.NewClient(h.server, far, false).Session
	s.Identity = authz.LocalPrincipal(listener.Peer{PID: 7, UID: 1002, GID: 1002})
	sc, c, err := s.Authorize(xdr.Lookup(xdr.ProgramRemote, number), args)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Done)
	return sc
}

// Calls that name a guest are authorized. Before they run, other users remove a disk from the guest, and then the
// guest. The rules must be checked again.
// Promise: A1
func TestRights_RecheckedBeforeRun(t *testing.T) {
	h := newRestrictedServer(t)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	define := func(sc scope.Scope, doc string) error {
		_, err := guest.Define(t.Context(), h.backends.Guests, sc, doc, false)
		return err
	}
	disk := "<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='/given/a.img'/><target dev='vdb' bus='virtio'/></disk>"
	with := strings.Replace(mineXML, "</devices>", disk+"</devices>", 1)
	must(define(scope.Daemon("a test"), with))
	defines := h.admitted(t, xdr.ProcDomainDefineXML, &xdr.DomainDefineXMLArgs{XML: with})
	g, err := h.backends.Guests.ByName("mine")
	must(err)
	id, err := rpc.ParseUUID(mineUUID)
	must(err)
	attaches := h.admitted(t, xdr.ProcDomainAttachDeviceFlags, &xdr.DomainAttachDeviceFlagsArgs{
		Domain: xdr.Domain{Name: "mine", UUID: id}, XML: disk, Flags: domaincalls.AffectConfig,
	})
	must(define(defines, with)) // the guest has the disk
	must(define(scope.Daemon("a test"), mineXML))
	if err := define(defines, with); !fault.Is(err, fault.Denied) {
		t.Errorf("a removed disk is defined: %v", err)
	}
	if err := hotplug.Attach(t.Context(), g, attaches, disk, machine.Affect{Config: true}); !fault.Is(err, fault.Denied) {
		t.Errorf("a removed disk is attached: %v", err)
	}
	must(guest.Undefine(t.Context(), g, scope.Daemon("a test"), guest.UndefineOptions{}))
	if err := define(defines, with); !fault.Is(err, fault.WrongState) {
		t.Errorf("a removed guest is defined: %v", err)
	}
	must(define(h.admitted(t, xdr.ProcDomainDefineXML, &xdr.DomainDefineXMLArgs{XML: mineXML}), mineXML))
}

// TestRights_RenameWithLabel gives a guest a name and a label in two concurrent calls. The client may give it either,
// but not both.
// Promise: A1
func TestRights_RenameWithLabel(t *testing.T) {
	h := newRestrictedServer(t)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.WriteFile(h.server.Authorizer.File, []byte("version: 1\nrules: [{name: some, who: \"user:1002\", may: [read, define], guests: [mine, \"yours,!label=team\"]}]\n"), 0o600))
	must(h.server.Authorizer.Reload())
	g, err := h.backends.Guests.ByName("mine")
	must(err)
	id, err := rpc.ParseUUID(mineUUID)
	must(err)
	mine, name, uri, key := xdr.Domain{Name: "mine", UUID: id}, "yours", fleet.Namespace, "lodge"
	marks := fmt.Sprintf("<guest xmlns=%q><label name='team' value='infra'/></guest>", uri)
	renames := h.admitted(t, xdr.ProcDomainRename, &xdr.DomainRenameArgs{Domain: mine, NewName: &name})
	labels := h.admitted(t, xdr.ProcDomainSetMetadata, &xdr.DomainSetMetadataArgs{
		Domain: mine, Type: 2, Metadata: &marks, Key: &key, URI: &uri, Flags: domaincalls.AffectConfig,
	})
	must(guest.SetMetadata(t.Context(), g, labels, guest.Element, &marks, key, uri, machine.Affect{Config: true}))
	if err := guest.Rename(t.Context(), g, renames, name); !fault.Is(err, fault.Denied) {
		t.Errorf("a guest with the label is renamed: %v", err)
	}
	must(guest.SetMetadata(t.Context(), g, scope.Daemon("a test"), guest.Element, nil, key, uri, machine.Affect{Config: true}))
	must(guest.Rename(t.Context(), g, renames, name))
	if err := guest.SetMetadata(t.Context(), g, labels, guest.Element, &marks, key, uri, machine.Affect{Config: true}); !fault.Is(err, fault.Denied) {
		t.Errorf("a guest with the name is labelled: %v", err)
	}
}
