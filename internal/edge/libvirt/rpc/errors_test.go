package rpc

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// TestNetError_CodesAndTexts checks the codes that clients branch on, and the
// words that scripts look for.
func TestNetError_CodesAndTexts(t *testing.T) {
	for _, c := range []struct {
		err  error
		code Code
		from Origin
		text string
	}{
		{fault.New(fault.NotFound, fault.Domain, "x"), 42, fromQEMU, "Domain not found: x"},
		{fault.New(fault.NotFound, fault.Network, "x"), 43, fromNetwork, "Network not found: x"},
		{fault.New(fault.NotFound, fault.Pool, "x"), 49, fromStorage, "Storage pool not found: x"},
		{fault.New(fault.NotFound, fault.Volume, "x"), 50, fromStorage, "Storage volume not found: x"},
		{fault.New(fault.NotFound, fault.NodeDevice, "x"), 53, fromNodeDev, "Node device not found: x"},
		{fault.New(fault.NotFound, fault.Secret, "x"), 66, fromSecret, "Secret not found: x"},
		{fault.New(fault.NotFound, fault.Snapshot, "x"), 72, fromQEMU, "Domain snapshot not found: x"},
		{fault.New(fault.NotFound, fault.Metadata, "x"), 80, fromQEMU, "metadata not found: x"},
		{fault.New(fault.NotFound, fault.Device, "x"), 99, fromQEMU, "device not found: x"},
		{fault.New(fault.NotFound, fault.File, "x"), 38, fromStorage, "x"},
		{fault.New(fault.Failed, fault.File, "x"), 38, fromStorage, "x"},
		{fault.New(fault.WrongState, fault.Domain, "x"), 55, fromQEMU, "Requested operation is not valid: x"},
		{fault.New(fault.Invalid, fault.Call, "x"), 8, fromQEMU, "invalid argument: x"},
		{fault.New(fault.Invalid, fault.XML, "x"), 27, fromDomain, "XML error: x"},
		{fault.New(fault.Unsupported, fault.Config, "x"), 67, fromQEMU, "unsupported configuration: x"},
		{fault.New(fault.Unsupported, fault.Call, "x"), 84, fromQEMU, "Operation not supported: x"},
		{fault.New(fault.Timeout, fault.Domain, "x"), 68, fromQEMU, "Timed out during operation: x"},
		{fault.New(fault.Timeout, fault.Agent, "x"), 86, fromQEMU, "Guest agent is not responding: x"},
		{fault.New(fault.Unresponsive, fault.Agent, "x"), 86, fromQEMU, "Guest agent is not responding: x"},
		{fault.New(fault.Unresponsive, fault.Monitor, "x"), 68, fromQEMU, "Timed out during operation: x"},
		{fault.New(fault.Timeout, fault.Volume, "x"), 68, fromStorage, "Timed out during operation: x"},
		{fault.New(fault.Timeout, fault.Host, "x"), 68, fromQEMU, "Timed out during operation: x"},
		{fault.New(fault.Denied, fault.Call, "x"), 88, fromQEMU, "access denied: x"},
		{fault.New(fault.Exists, fault.Volume, "x"), 90, fromStorage, "x"},
		{fault.New(fault.Failed, fault.Host, "x"), 38, fromQEMU, "x"},
		{fault.New(fault.NotFound, fault.Host, "x"), 38, fromQEMU, "x"},
		{StorageError(fault.New(fault.Invalid, fault.Config, "x")), 67, fromStorage, "unsupported configuration: x"},
		{StorageError(fault.New(fault.Invalid, fault.Pool, "x")), 8, fromStorage, "invalid argument: x"},
		{WithCode(CodeXMLSchema, fault.New(fault.Invalid, fault.XML, "x")), 92, fromDomain, "XML document failed to validate against schema: x"},
		{fmt.Errorf("doing: %w", WithCode(CodeOperationDenied, errors.New("x"))), 29, fromQEMU, "operation forbidden: doing: x"},
		{rpcFault("unknown procedure: 5"), 39, FromRPC, "unknown procedure: 5"},
		{context.DeadlineExceeded, 68, fromQEMU, "Timed out during operation: context deadline exceeded"},
		{errors.New("x"), 1, fromQEMU, "internal error: x"},
	} {
		e := NetError(c.err)
		if Code(e.Code) != c.code || Origin(e.Domain) != c.from || *e.Message != c.text || e.Level != levelError {
			t.Errorf("%v: code %d from %d level %d %q, want %d from %d %q", c.err, e.Code, e.Domain, e.Level, *e.Message, c.code, c.from, c.text)
		}
	}
}

func TestCodeOf_EveryKind(t *testing.T) {
	for kind := fault.Internal; kind <= fault.Failed; kind++ {
		for subject := fault.Call; subject <= fault.Filter; subject++ {
			if got := CodeOf(fault.New(kind, subject, "x")); got == CodeInternal && kind != fault.Internal {
				t.Errorf("%v of %v is sent as an internal error", kind, subject)
			}
		}
	}
}

// Promise: X10
func TestNetError_LongAndControlText(t *testing.T) {
	e := NetError(fault.New(fault.Failed, fault.Domain, "%s", strings.Repeat("\xff\x00ä", maxErrorText)))
	if len(*e.Message) > 2*maxErrorText || !utf8.ValidString(*e.Message) || strings.Contains(*e.Message, "\x00") {
		t.Errorf("%d bytes of text: %.40q", len(*e.Message), *e.Message)
	}
	if e := NetError(fault.New(fault.Failed, fault.Monitor, "%s", "QEMU says\n\x1b]0;t\x07\u009b2Jä")); !strings.HasSuffix(*e.Message, "QEMU says\n]0;t2Jä") {
		t.Errorf("the text with control characters is %q", *e.Message)
	}
}

func TestCheckFlags_Unknown(t *testing.T) {
	err := CheckFlags("DOMAIN_GET_STATE", 0x13, 1)
	if err == nil || CodeOf(err) != CodeInvalidArg || err.Error() != "unsupported flags (0x12) in function virDomainGetState" {
		t.Errorf("got %v", err)
	}
	if flags, err := ParamFlags("X", paramStringOkay|2, 2); err != nil || flags != 2 {
		t.Errorf("flags %d, %v", flags, err)
	}
	if CheckFlags("X", paramStringOkay, 0) == nil {
		t.Error("paramStringOkay is accepted by a call without typed parameters")
	}
}
