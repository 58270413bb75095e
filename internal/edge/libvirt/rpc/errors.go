package rpc

import (
	"errors"
	"strings"
	"unicode"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
)

// Code is a libvirt error number. Clients branch on it.
type Code int32

// The codes that Lodge sends.
const (
	CodeInternal          Code = 1
	CodeNoSupport         Code = 3
	CodeNoConnect         Code = 5
	CodeInvalidArg        Code = 8
	CodeOperationFailed   Code = 9
	CodeXML               Code = 27
	CodeOperationDenied   Code = 29
	CodeXMLDetail         Code = 35
	codeSystem            Code = 38
	CodeRPC               Code = 39
	CodeNoDomain          Code = 42
	CodeNoNetwork         Code = 43
	CodeInvalidMAC        Code = 44
	codeAuthFailed        Code = 45
	CodeNoPool            Code = 49
	CodeNoVolume          Code = 50
	codeNoNodeDevice      Code = 53
	CodeOperationInvalid  Code = 55
	codeNoInterface       Code = 57
	codeNoFilter          Code = 62
	CodeInvalidSecret     Code = 65
	CodeNoSecret          Code = 66
	CodeConfigUnsupported Code = 67
	CodeTimeout           Code = 68
	codeNoSnapshot        Code = 72
	CodeArgUnsupported    Code = 74
	CodeAborted           Code = 78
	codeAuthCancelled     Code = 79
	CodeNoMetadata        Code = 80
	CodeOverflow          Code = 82
	CodeBlockCopyActive   Code = 83
	CodeUnsupported       Code = 84
	codeAgentUnresponsive Code = 86
	codeBusy              Code = 87
	codeAccessDenied      Code = 88
	codeVolumeExists      Code = 90
	CodeCPUIncompatible   Code = 91
	CodeXMLSchema         Code = 92
	codeAuthUnavailable   Code = 94
	codeDeviceMissing     Code = 99
	codeNoFilterBinding   Code = 101
	CodeNoCheckpoint      Code = 103
	CodeNoBackup          Code = 104
	CodeNoNetworkPort     Code = 107
)

// codePrefixes are libvirt's texts for the codes; each error begins with that of its code. Users'
// scripts look for them, so they are part of the interface.
var codePrefixes = map[Code]string{
	CodeInternal:          "internal error",
	CodeNoSupport:         "this function is not supported by the connection driver",
	CodeInvalidArg:        "invalid argument",
	CodeOperationFailed:   "operation failed",
	CodeXML:               "XML error",
	CodeOperationDenied:   "operation forbidden",
	CodeNoDomain:          "Domain not found",
	CodeNoNetwork:         "Network not found",
	CodeInvalidMAC:        "invalid MAC address",
	codeAuthFailed:        "authentication failed",
	codeAuthCancelled:     "authentication cancelled",
	codeAuthUnavailable:   "authentication unavailable",
	CodeNoPool:            "Storage pool not found",
	CodeNoVolume:          "Storage volume not found",
	codeNoNodeDevice:      "Node device not found",
	CodeOperationInvalid:  "Requested operation is not valid",
	codeNoInterface:       "Interface not found",
	codeNoFilter:          "Network filter not found",
	CodeInvalidSecret:     "Invalid secret",
	CodeNoSecret:          "Secret not found",
	CodeConfigUnsupported: "unsupported configuration",
	CodeTimeout:           "Timed out during operation",
	codeNoSnapshot:        "Domain snapshot not found",
	CodeArgUnsupported:    "argument unsupported",
	CodeAborted:           "operation aborted",
	CodeNoMetadata:        "metadata not found",
	CodeUnsupported:       "Operation not supported",
	CodeOverflow:          "numerical overflow",
	CodeBlockCopyActive:   "block copy still active",
	codeAgentUnresponsive: "Guest agent is not responding",
	codeBusy:              "resource busy",
	codeAccessDenied:      "access denied",
	CodeCPUIncompatible:   "the CPU is incompatible with host CPU",
	CodeXMLSchema:         "XML document failed to validate against schema",
	codeDeviceMissing:     "device not found",
	codeNoFilterBinding:   "Network filter binding not found",
	CodeNoCheckpoint:      "Domain checkpoint not found",
	CodeNoBackup:          "Domain backup job id not found",
	CodeNoNetworkPort:     "network port not found",
}

// Origin is libvirt's number for the part of libvirt that an error comes from (virErrorDomain).
type Origin int32

const (
	// FromRPC is for errors of the protocol.
	FromRPC       Origin = 7
	fromQEMU      Origin = 10
	fromStorage   Origin = 18
	fromNetwork   Origin = 19
	fromDomain    Origin = 20
	fromNodeDev   Origin = 22
	fromInterface Origin = 26
	fromSecret    Origin = 30
	// FromCPU is for errors of CPU definitions.
	FromCPU      Origin = 31
	fromNWFilter Origin = 33
	fromPolkit   Origin = 60
)

// levelError is the level of every failed call (VIR_ERR_ERROR).
const levelError = 2

// maxErrorText bounds the text of an error, in bytes: it may quote the output of a guest or a tool.
const maxErrorText = 16 << 10

// codedError has a code that does not follow from kind and subject.
type codedError struct {
	code Code
	error
}

func (e codedError) Unwrap() error { return e.error }

// originError has an origin that does not follow from the subject.
type originError struct {
	origin Origin
	error
}

func (e originError) Unwrap() error { return e.error }

// CPUError marks err as an error of libvirt's CPU driver; nil stays nil.
func CPUError(err error) error {
	if err == nil {
		return nil
	}
	return originError{FromCPU, err}
}

// StorageError marks an error about a pool's config as one of libvirt's storage driver; other errors
// keep their origin.
func StorageError(err error) error {
	if fault.About(err) != fault.Config {
		return err
	}
	return originError{fromStorage, err}
}

// WithCode sets the code that a client gets for err.
func WithCode(c Code, err error) error { return codedError{c, err} }

// rpcFault is an error of the protocol itself.
func rpcFault(format string, args ...any) error {
	return WithCode(CodeRPC, fault.New(fault.Invalid, fault.Call, format, args...))
}

// notFoundCodes are the codes for a missing object of each type.
var notFoundCodes = map[fault.Subject]Code{
	fault.Domain:     CodeNoDomain,
	fault.Network:    CodeNoNetwork,
	fault.Pool:       CodeNoPool,
	fault.Volume:     CodeNoVolume,
	fault.Snapshot:   codeNoSnapshot,
	fault.NodeDevice: codeNoNodeDevice,
	fault.Secret:     CodeNoSecret,
	fault.Metadata:   CodeNoMetadata,
	fault.Device:     codeDeviceMissing,
	fault.Interface:  codeNoInterface,
	fault.Filter:     codeNoFilter,
	fault.File:       codeSystem, // not an object of libvirt's
	fault.Host:       codeSystem, // a file or a program of the host
}

// CodeOf returns the code for an error, from its kind and subject.
func CodeOf(err error) Code {
	if coded, ok := errors.AsType[codedError](err); ok {
		return coded.code
	}
	subject := fault.About(err)
	switch fault.Of(err) {
	case fault.Internal:
		return CodeInternal
	case fault.NotFound:
		if c, ok := notFoundCodes[subject]; ok {
			return c
		}
		return CodeOperationFailed
	case fault.Exists:
		if subject == fault.Volume {
			return codeVolumeExists
		}
		return CodeOperationFailed
	case fault.Busy:
		return codeBusy
	case fault.Invalid:
		return invalidCode(subject)
	case fault.WrongState:
		return CodeOperationInvalid
	case fault.Unsupported:
		return unsupportedCode(subject)
	case fault.Timeout:
		if subject == fault.Agent {
			return codeAgentUnresponsive
		}
		return CodeTimeout
	case fault.Denied:
		return codeAccessDenied
	case fault.Aborted:
		return CodeAborted
	case fault.Unresponsive:
		if subject != fault.Agent {
			return CodeTimeout
		}
		return codeAgentUnresponsive
	case fault.NoCapacity, fault.Failed:
		if subject == fault.Host || subject == fault.File {
			return codeSystem
		}
		return CodeOperationFailed
	}
	return CodeInternal
}

func invalidCode(subject fault.Subject) Code {
	switch subject {
	case fault.XML:
		return CodeXML
	case fault.XMLDetail:
		return CodeXMLDetail
	case fault.Config, fault.Device:
		return CodeConfigUnsupported
	default:
		return CodeInvalidArg
	}
}

func unsupportedCode(subject fault.Subject) Code {
	switch subject {
	case fault.XML, fault.Config, fault.Device:
		return CodeConfigUnsupported
	default:
		return CodeUnsupported
	}
}

// originOf returns the part of libvirt that would have reported an error.
func originOf(err error) Origin {
	if from, ok := errors.AsType[originError](err); ok {
		return from.origin
	}
	switch fault.About(err) {
	case fault.Network:
		return fromNetwork
	case fault.Pool, fault.Volume, fault.File:
		return fromStorage
	case fault.NodeDevice:
		return fromNodeDev
	case fault.Secret:
		return fromSecret
	case fault.Interface:
		return fromInterface
	case fault.Filter:
		return fromNWFilter
	case fault.XML, fault.XMLDetail:
		return fromDomain
	default:
		return fromQEMU
	}
}

// NetError returns the payload of a failed reply.
func NetError(err error) *xdr.NetError {
	c := CodeOf(err)
	from := originOf(err)
	switch c {
	case CodeRPC:
		from = FromRPC
	case codeAuthCancelled, codeAuthUnavailable:
		from = fromPolkit
	}
	text := err.Error()
	if len(text) > maxErrorText {
		text = text[:maxErrorText]
	}
	text = StripControl(text)
	if l := codePrefixes[c]; l != "" {
		text = l + ": " + text
	}
	return &xdr.NetError{
		Code: int32(c), Domain: int32(from), Message: &text, Level: levelError, Str1: &text,
		Int1: -1, Int2: -1,
	}
}

// StripControl removes control characters, which could control the reader's terminal. Errors quote files
// and QEMU, and a guest may have compromised its QEMU. Line breaks and tabs stay.
func StripControl(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return -1
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
}
