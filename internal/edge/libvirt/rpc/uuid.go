package rpc

import (
	"github.com/google/uuid"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
)

// FormatUUID returns a UUID as the other packages write it: lower-case, with dashes.
func FormatUUID(id xdr.UUID) string { return uuid.UUID(id).String() }

// ParseUUID parses the UUID of an object of another package. An invalid one is an internal error.
func ParseUUID(text string) (xdr.UUID, error) {
	id, err := uuid.Parse(text)
	return xdr.UUID(id), fault.Wrap(err, fault.Internal, fault.Call, "%q is not a UUID", text)
}
