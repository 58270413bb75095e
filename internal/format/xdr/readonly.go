package xdr

// Arguments that need write access, in two calls that otherwise only read.
const (
	vcpusFromGuest     = 8 // flag of DOMAIN_GET_VCPUS_FLAGS: asks the guest's agent
	addressesFromAgent = 1 // source of DOMAIN_INTERFACE_ADDRESSES: asks the guest's agent
)

// RefusesReadOnly reports whether a read-only connection must not make this call
// with these arguments. For all but two calls that is RefusedReadOnly; those
// two are refused only if they would make the guest's agent run something.
func (p *Procedure) RefusesReadOnly(args Message) bool {
	if p.Program == ProgramRemote {
		switch a := args.(type) {
		case *DomainGetVCPUsFlagsArgs:
			if p.Number == ProcDomainGetVCPUsFlags {
				return a.Flags&vcpusFromGuest != 0
			}
		case *DomainInterfaceAddressesArgs:
			return a.Source == addressesFromAgent
		}
	}
	return p.RefusedReadOnly
}
