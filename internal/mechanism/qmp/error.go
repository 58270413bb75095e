package qmp

import (
	"errors"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// ErrClosed is the error of a session that its owner closed.
var ErrClosed = errors.New("the monitor session was closed")

// QEMU's classes of error.
const (
	ClassGeneric         = "GenericError"
	ClassCommandNotFound = "CommandNotFound"
	ClassDeviceNotFound  = "DeviceNotFound"
	ClassDeviceNotActive = "DeviceNotActive"
	ClassKVMMissingCap   = "KVMMissingCap"
)

// Error is QEMU's error answer to a command, in QEMU's words.
type Error struct {
	Class string `json:"class"`
	Desc  string `json:"desc"`
}

func (e *Error) Error() string { return e.Desc }

// maxDesc bounds the text of an error answer, in bytes: QEMU's own texts are one line.
const maxDesc = 1 << 10

// IsClass reports whether err is, or wraps, an error answer of that class.
func IsClass(err error, class string) bool {
	var refusal *Error
	return errors.As(err, &refusal) && refusal.Class == class
}

// refusalError wraps QEMU's error answer to a command with its kind.
func refusalError(e *Error, command string) error {
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

// NoAnswer is the error of a command that QEMU did not answer. QEMU may have executed the command, or may still do so.
type NoAnswer struct{ error }

// Unwrap returns the reason why there is no answer.
func (e *NoAnswer) Unwrap() error { return e.error }
