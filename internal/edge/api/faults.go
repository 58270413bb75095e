package api

import (
	"context"
	"errors"
	"strings"

	"connectrpc.com/connect"

	"github.com/lodge-kvm/lodge/api/lodgev1"
	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// codes map kinds of fault to codes of Connect.
var codes = map[fault.Kind]connect.Code{
	fault.Internal:     connect.CodeInternal,
	fault.NotFound:     connect.CodeNotFound,
	fault.Exists:       connect.CodeAlreadyExists,
	fault.Busy:         connect.CodeUnavailable,
	fault.Invalid:      connect.CodeInvalidArgument,
	fault.WrongState:   connect.CodeFailedPrecondition,
	fault.NoCapacity:   connect.CodeResourceExhausted,
	fault.Unsupported:  connect.CodeUnimplemented,
	fault.Timeout:      connect.CodeDeadlineExceeded,
	fault.Denied:       connect.CodePermissionDenied,
	fault.Aborted:      connect.CodeCanceled,
	fault.Unresponsive: connect.CodeUnavailable,
	fault.Failed:       connect.CodeUnknown,
}

// toFault returns an error as messages carry it; nil stays nil.
func toFault(err error) *lodgev1.Fault {
	if err == nil {
		return nil
	}
	return &lodgev1.Fault{Kind: fault.Of(err).String(), Subject: fault.About(err).String(), Text: validUTF8(err.Error())}
}

// validUTF8 makes text from files, QEMU or the kernel valid UTF-8: one invalid byte would prevent the whole
// message from being sent.
func validUTF8(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }

// toConnectError returns an error in the protocols' form, with the fault as its detail. Errors that the protocols found
// themselves are unchanged.
func toConnectError(err error) error {
	_, theirs := errors.AsType[*connect.Error](err)
	_, ours := errors.AsType[*fault.Error](err)
	if err == nil || theirs && !ours {
		return err
	}
	e := connect.NewError(codes[fault.Of(err)], err)
	if detail, bad := connect.NewErrorDetail(toFault(err)); bad == nil {
		e.AddDetail(detail)
	}
	return e
}

// faults converts the errors of all handlers.
type faults struct{}

func (faults) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
		response, err := next(ctx, r)
		return response, toConnectError(err)
	}
}

func (faults) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

func (faults) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		return toConnectError(next(ctx, conn))
	}
}
