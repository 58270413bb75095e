package api

import (
	"context"
	"errors"
	"strings"

	"connectrpc.com/connect"

	"github.com/lodge-kvm/lodge/api/lodgev1"
	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// codes are Connect's codes of the kinds of faults.
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

// toFault converts an error to a message; nil stays nil.
func toFault(err error) *lodgev1.Fault {
	if err == nil {
		return nil
	}
	return &lodgev1.Fault{Kind: fault.Of(err).String(), Subject: fault.About(err).String(), Text: validUTF8(err.Error())}
}

// validUTF8 replaces invalid bytes in text from files, QEMU or the kernel: a message with one cannot be sent.
func validUTF8(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }

// toConnectError converts an error to Connect's, with the fault as its detail. Errors of Connect itself are
// unchanged.
func toConnectError(err error) error {
	_, isConnect := errors.AsType[*connect.Error](err)
	_, isFault := errors.AsType[*fault.Error](err)
	if err == nil || isConnect && !isFault {
		return err
	}
	e := connect.NewError(codes[fault.Of(err)], err)
	if detail, failure := connect.NewErrorDetail(toFault(err)); failure == nil {
		e.AddDetail(detail)
	}
	return e
}

// faults is the interceptor that converts the errors of all handlers.
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
