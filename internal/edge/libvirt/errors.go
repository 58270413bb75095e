package libvirt

import (
	"errors"
	"strings"
	"unicode"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
)

// code is a libvirt error number. Clients branch on it.
type code int32

// The codes that Lodge sends.
const (
	codeInternal          code = 1
	codeNoSupport         code = 3
	codeNoConnect         code = 5
	codeInvalidArg        code = 8
	codeOperationFailed   code = 9
	codeXML               code = 27
	codeOperationDenied   code = 29
	codeXMLDetail         code = 35
	codeSystem            code = 38
	codeRPC               code = 39
	codeNoDomain          code = 42
	codeNoNetwork         code = 43
	codeInvalidMAC        code = 44
	codeAuthFailed        code = 45
	codeNoPool            code = 49
	codeNoVolume          code = 50
	codeNoNodeDevice      code = 53
	codeOperationInvalid  code = 55
	codeNoInterface       code = 57
	codeNoFilter          code = 62
	codeInvalidSecret     code = 65
	codeNoSecret          code = 66
	codeConfigUnsupported code = 67
	codeTimeout           code = 68
	codeNoSnapshot        code = 72
	codeArgUnsupported    code = 74
	codeAborted           code = 78
	codeAuthCancelled     code = 79
	codeNoMetadata        code = 80
	codeOverflow          code = 82
	codeBlockCopyActive   code = 83
	codeUnsupported       code = 84
	codeAgentUnresponsive code = 86
	codeBusy              code = 87
	codeAccessDenied      code = 88
	codeVolumeExists      code = 90
	codeCPUIncompatible   code = 91
	codeXMLSchema         code = 92
	codeAuthUnavailable   code = 94
	codeDeviceMissing     code = 99
	codeNoFilterBinding   code = 101
	codeNoCheckpoint      code = 103
	codeNoBackup          code = 104
	codeNoNetworkPort     code = 107
)

// lead is the prefix of the text of an error with this code. Users' scripts look for
// these words, so they are part of the interface.
var lead = map[code]string{
	codeInternal:          "internal error",
	codeNoSupport:         "this function is not supported by the connection driver",
	codeInvalidArg:        "invalid argument",
	codeOperationFailed:   "operation failed",
	codeXML:               "XML error",
	codeOperationDenied:   "operation forbidden",
	codeNoDomain:          "Domain not found",
	codeNoNetwork:         "Network not found",
	codeInvalidMAC:        "invalid MAC address",
	codeAuthFailed:        "authentication failed",
	codeAuthCancelled:     "authentication cancelled",
	codeAuthUnavailable:   "authentication unavailable",
	codeNoPool:            "Storage pool not found",
	codeNoVolume:          "Storage volume not found",
	codeNoNodeDevice:      "Node device not found",
	codeOperationInvalid:  "Requested operation is not valid",
	codeNoInterface:       "Interface not found",
	codeNoFilter:          "Network filter not found",
	codeInvalidSecret:     "Invalid secret",
	codeNoSecret:          "Secret not found",
	codeConfigUnsupported: "unsupported configuration",
	codeTimeout:           "Timed out during operation",
	codeNoSnapshot:        "Domain snapshot not found",
	codeArgUnsupported:    "argument unsupported",
	codeAborted:           "operation aborted",
	codeNoMetadata:        "metadata not found",
	codeUnsupported:       "Operation not supported",
	codeOverflow:          "numerical overflow",
	codeBlockCopyActive:   "block copy still active",
	codeAgentUnresponsive: "Guest agent is not responding",
	codeBusy:              "resource busy",
	codeAccessDenied:      "access denied",
	codeCPUIncompatible:   "the CPU is incompatible with host CPU",
	codeXMLSchema:         "XML document failed to validate against schema",
	codeDeviceMissing:     "device not found",
	codeNoFilterBinding:   "Network filter binding not found",
	codeNoCheckpoint:      "Domain checkpoint not found",
	codeNoBackup:          "Domain backup job id not found",
	codeNoNetworkPort:     "network port not found",
}

// origin is libvirt's number for the part of libvirt that an error comes from.
type origin int32

const (
	fromRPC       origin = 7
	fromQEMU      origin = 10
	fromStorage   origin = 18
	fromNetwork   origin = 19
	fromDomain    origin = 20
	fromNodeDev   origin = 22
	fromInterface origin = 26
	fromSecret    origin = 30
	fromCPU       origin = 31
	fromNWFilter  origin = 33
	fromPolkit    origin = 60
)

// levelError is the only level that a failed call has.
const levelError = 2

// maxErrorText bounds the text of an error to a client, in bytes; causes may quote the
// output of a guest or a tool.
const maxErrorText = 16 << 10

// codedError carries a code that does not follow from kind and subject.
type codedError struct {
	code code
	error
}

func (e codedError) Unwrap() error { return e.error }

// originError carries an origin that does not follow from the subject.
type originError struct {
	origin origin
	error
}

func (e originError) Unwrap() error { return e.error }

// ofCPU marks err as an error of libvirt's processor driver; nil stays nil.
func ofCPU(err error) error {
	if err == nil {
		return nil
	}
	return originError{fromCPU, err}
}

// ofStorage marks an error of a pool's config as one of libvirt's storage driver; other errors keep
// their own origin.
func ofStorage(err error) error {
	if fault.About(err) != fault.Config {
		return err
	}
	return originError{fromStorage, err}
}

// withCode fixes the code that a client gets for err.
func withCode(c code, err error) error { return codedError{c, err} }

// rpcFault is an error of the protocol itself.
func rpcFault(format string, args ...any) error {
	return withCode(codeRPC, fault.New(fault.Invalid, fault.Call, format, args...))
}

// notFoundCodes are the codes for a missing object of each type.
var notFoundCodes = map[fault.Subject]code{
	fault.Domain:     codeNoDomain,
	fault.Network:    codeNoNetwork,
	fault.Pool:       codeNoPool,
	fault.Volume:     codeNoVolume,
	fault.Snapshot:   codeNoSnapshot,
	fault.NodeDevice: codeNoNodeDevice,
	fault.Secret:     codeNoSecret,
	fault.Metadata:   codeNoMetadata,
	fault.Device:     codeDeviceMissing,
	fault.Interface:  codeNoInterface,
	fault.Filter:     codeNoFilter,
	fault.File:       codeSystem, // no object of libvirt's is missing
	fault.Host:       codeSystem, // a file or a program, as above
}

// codeOf gives the code for an error, from its kind and subject.
func codeOf(err error) code {
	if coded, ok := errors.AsType[codedError](err); ok {
		return coded.code
	}
	subject := fault.About(err)
	switch fault.Of(err) {
	case fault.Internal:
		return codeInternal
	case fault.NotFound:
		if c, ok := notFoundCodes[subject]; ok {
			return c
		}
		return codeOperationFailed
	case fault.Exists:
		if subject == fault.Volume {
			return codeVolumeExists
		}
		return codeOperationFailed
	case fault.Busy:
		return codeBusy
	case fault.Invalid:
		return invalidCode(subject)
	case fault.WrongState:
		return codeOperationInvalid
	case fault.Unsupported:
		return unsupportedCode(subject)
	case fault.Timeout:
		if subject == fault.Agent {
			return codeAgentUnresponsive
		}
		return codeTimeout
	case fault.Denied:
		return codeAccessDenied
	case fault.Aborted:
		return codeAborted
	case fault.Unresponsive:
		if subject != fault.Agent {
			return codeTimeout
		}
		return codeAgentUnresponsive
	case fault.NoCapacity, fault.Failed:
		if subject == fault.Host || subject == fault.File {
			return codeSystem
		}
		return codeOperationFailed
	}
	return codeInternal
}

func invalidCode(subject fault.Subject) code {
	switch subject {
	case fault.XML:
		return codeXML
	case fault.XMLDetail:
		return codeXMLDetail
	case fault.Config, fault.Device:
		return codeConfigUnsupported
	default:
		return codeInvalidArg
	}
}

func unsupportedCode(subject fault.Subject) code {
	switch subject {
	case fault.XML, fault.Config, fault.Device:
		return codeConfigUnsupported
	default:
		return codeUnsupported
	}
}

// originOf gives the part of libvirt that would have reported this error.
func originOf(err error) origin {
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

// netError gives the payload of a failed reply.
func netError(err error) *xdr.NetError {
	c := codeOf(err)
	from := originOf(err)
	switch c {
	case codeRPC:
		from = fromRPC
	case codeAuthCancelled, codeAuthUnavailable:
		from = fromPolkit
	}
	text := err.Error()
	if len(text) > maxErrorText {
		text = text[:maxErrorText]
	}
	text = steerless(text)
	if l := lead[c]; l != "" {
		text = l + ": " + text
	}
	return &xdr.NetError{
		Code: int32(c), Domain: int32(from), Message: &text, Level: levelError, Str1: &text,
		Int1: -1, Int2: -1,
	}
}

// steerless removes control characters, which could steer the terminal of the reader. Errors quote files
// and QEMU, and a guest may have compromised its QEMU. Line breaks and tabs stay.
func steerless(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return -1
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
}
