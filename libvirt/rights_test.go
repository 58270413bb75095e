package libvirt

import (
	"testing"

	"github.com/lodge-kvm/lodge/access"
	"github.com/lodge-kvm/lodge/xdr"
)

// TestEveryCallHasItsRight asks for a place in verbs.table for every call of both
// programs, and that none which a read-only connection is refused passes as reading.
func TestEveryCallHasItsRight(t *testing.T) {
	// Questions that libvirt refuses to readers, because they start programs or
	// ask the guest for them.
	harmless := map[string]bool{
		"CONNECT_GET_DOMAIN_CAPABILITIES": true, "CONNECT_COMPARE_HYPERVISOR_CPU": true, "CONNECT_BASELINE_HYPERVISOR_CPU": true,
		"DOMAIN_MIGRATE_GET_MAX_SPEED": true, "DOMAIN_GET_LAUNCH_SECURITY_INFO": true,
		"DOMAIN_GET_VCPUS_FLAGS": true, "DOMAIN_INTERFACE_ADDRESSES": true, // with more for what asks the agent
	}
	for _, program := range []xdr.Program{xdr.ProgramRemote, xdr.ProgramQEMU} {
		for p := range xdr.Procedures(program) {
			if p.Event {
				continue
			}
			r, known := callRights[procedureKey{p.Program, p.Number}]
			if !known || len(r.verbs) == 0 {
				t.Errorf("%s stands nowhere in verbs.table", p.Name)
				continue
			}
			if reads := r.last() <= access.Read; reads && p.RefusedReadOnly && !harmless[p.Name] {
				t.Errorf("%s is refused on a read-only connection, and takes no more than %q", p.Name, r.last())
			}
		}
	}
}
