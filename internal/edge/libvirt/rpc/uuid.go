package rpc

import (
	"github.com/google/uuid"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
)

// FormatUUID returns the form that the rest of Lodge uses: lower-case, with dashes.
func FormatUUID(id xdr.UUID) string { return uuid.UUID(id).String() }

// ParseUUID reads an object's UUID from another package; bad text is that package's mistake.
func ParseUUID(text string) (xdr.UUID, error) {
	id, err := uuid.Parse(text)
	return xdr.UUID(id), fault.Wrap(err, fault.Internal, fault.Call, "%q is not a UUID", text)
}
