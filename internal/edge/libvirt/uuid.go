package libvirt

import (
	"github.com/google/uuid"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
)

// formatUUID gives the form that the rooms use: lower-case, with dashes.
func formatUUID(id xdr.UUID) string { return uuid.UUID(id).String() }

// parseUUID reads an object's UUID from another package; bad text is that package's mistake.
func parseUUID(text string) (xdr.UUID, error) {
	id, err := uuid.Parse(text)
	return xdr.UUID(id), fault.Wrap(err, fault.Internal, fault.Call, "%q is not a UUID", text)
}
