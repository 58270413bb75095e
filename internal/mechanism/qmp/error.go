package qmp

import (
	"errors"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// ErrClosed is the reason of a session that its owner closed.
var ErrClosed = errors.New("the monitor session was closed")

// QEMU's classes of error.
const (
	ClassGeneric         = "GenericError"
	ClassCommandNotFound = "CommandNotFound"
	ClassDeviceNotFound  = "DeviceNotFound"
	ClassDeviceNotActive = "DeviceNotActive"
	ClassKVMMissingCap   = "KVMMissingCap"
)

// Error is a refusal by QEMU, in QEMU's words.
type Error struct {
	Class string `json:"class"`
	Desc  string `json:"desc"`
}

func (e *Error) Error() string { return e.Desc }

// maxDesc bounds the words of a refusal that are kept, in bytes: QEMU's own are a line.
const maxDesc = 1 << 10

// IsClass reports whether err is, or wraps, a refusal of that class.
func IsClass(err error, class string) bool {
	var refusal *Error
	return errors.As(err, &refusal) && refusal.Class == class
}

// refused wraps QEMU's refusal of a command with its kind.
func refused(e *Error, command string) error {
	if len(e.Desc) > maxDesc {
		e.Desc = strings.ToValidUTF8(e.Desc[:maxDesc], "") + "…"
	}
	switch e.Class {
	case ClassCommandNotFound:
		return fault.Wrap(e, fault.Unsupported, fault.Monitor, "this QEMU has no command %s", command)
	case ClassDeviceNotFound:
		return fault.Wrap(e, fault.NotFound, fault.Device, "QEMU refused %s", command)
	}
	return fault.Wrap(e, fault.Failed, fault.Monitor, "QEMU refused %s", command)
}

// NoAnswer is the error of a command that QEMU did not answer: it may still carry
// it out, or may have.
type NoAnswer struct{ error }

// Unwrap returns the reason why there is no answer.
func (e *NoAnswer) Unwrap() error { return e.error }
