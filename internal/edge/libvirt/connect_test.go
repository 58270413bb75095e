package libvirt

import (
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/domaincalls"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
)

// clientFloors are the versions below which clients refuse a server, or report that it
// is too old.
var clientFloors = map[string]uint64{
	"Nova's next minimum":             10_000_000,
	"virtnbdbackup's incremental one": 7_006_000,
	"virt-manager's undefine":         8_009_000,
}

// clientGates are the versions from which clients use a feature without asking for it, and
// whether it is built here.
var clientGates = []struct {
	what    string
	version uint64
	built   func() bool
}{
	{"an interface of model igb", 9_003_000, func() bool { return parsesDevice("<interface type='user'><model type='igb'/></interface>") }},
	{"undefine that keeps the TPM's state", 8_009_000, func() bool { return domaincalls.UndefineFlags&domaincalls.UndefineKeepTPM != 0 }},
	{"a sound card of model virtio", 10_004_000, func() bool { return parsesDevice("<sound model='virtio'/>") }},
	// Clients that build backups look for this flag instead of the call.
	{"a backup that outlives the guest's shutdown", 11_010_000, func() bool {
		return newTable()[rpc.ProcedureKey{Program: xdr.ProgramRemote, Number: xdr.ProcDomainBackupBegin}] != nil
	}},
}

// parsesDevice reports whether a definition with a device can be parsed.
func parsesDevice(device string) bool {
	_, err := domainxml.Parse("<domain type='qemu'><name>a</name><memory>65536</memory><os><type arch='x86_64' machine='q35'>hvm</type></os><devices>"+
		device+"</devices></domain>", domainxml.Options{Host: &domainxml.Host{}})
	return !fault.Is(err, fault.Unsupported) && !fault.Is(err, fault.Invalid)
}

// With a version number that is too high, clients make calls that the daemon refuses. With one that is too low,
// they disconnect (decision 55).
func TestLibraryVersion_MatchesFeatures(t *testing.T) {
	for client, floor := range clientFloors {
		if rpc.LibraryVersion < floor {
			t.Errorf("the daemon says that it is libvirt %d, and %s is %d", rpc.LibraryVersion, client, floor)
		}
	}
	for _, gate := range clientGates {
		if built := gate.built(); !built && rpc.LibraryVersion >= gate.version {
			t.Errorf("the daemon says that it is libvirt %d, and %s, which is not built, came with %d", rpc.LibraryVersion, gate.what, gate.version)
		} else if built && rpc.LibraryVersion < gate.version {
			t.Logf("%s is built: the version may be raised to %d", gate.what, gate.version)
		}
	}
}
