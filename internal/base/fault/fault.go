// Package fault holds the few kinds of error that Lodge distinguishes, and the
// objects that they are about.
//
// The package that finds a fault wraps the cause and names the kind once:
//
//	return fault.New(fault.NotFound, fault.Domain, "no domain with name %q", name)
//	return fault.Wrap(err, fault.Failed, fault.Volume, "cannot create volume %q", name)
//
// Packages above branch on Of and About and never on text. Codes of libvirt and
// of HTTP are made from (Kind, Subject) at the edges only. This package holds
// kinds and subjects that at least two packages share, and the form of
// commands that a message tells a user to run. Messages, codes and retries are elsewhere.
package fault

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
)

// Kind says what went wrong, as far as a caller can act on it.
type Kind int

// The kinds. Internal is the zero value: a bug in Lodge.
const (
	// Internal: an invariant of Lodge does not hold; always a bug worth reporting.
	Internal Kind = iota
	// NotFound: the named object does not exist.
	NotFound
	// Exists: an object with that name, UUID or address exists already.
	Exists
	// Busy: another caller or program holds a needed resource; the same call may work later.
	Busy
	// Invalid: the request itself is wrong and will never work as it is.
	Invalid
	// WrongState: the object is in a state that forbids the request.
	WrongState
	// NoCapacity: a bound of the host, of the store or of Lodge is reached.
	NoCapacity
	// Unsupported: well-formed and known, but not built or not offered here.
	Unsupported
	// Timeout: the deadline passed while waiting for the named thing.
	Timeout
	// Denied: the caller may not do that.
	Denied
	// Aborted: a client ended the operation on purpose.
	Aborted
	// Unresponsive: the peer (a guest agent) does not answer.
	Unresponsive
	// Failed: something outside Lodge (QEMU, kernel, disk, tool) refused or broke.
	Failed
)

var kindNames = [...]string{
	"internal", "not found", "exists", "busy", "invalid", "wrong state", "no capacity",
	"unsupported", "timeout", "denied", "aborted", "unresponsive", "failed",
}

func (k Kind) String() string {
	if k < 0 || int(k) >= len(kindNames) {
		return fmt.Sprintf("kind(%d)", int(k))
	}
	return kindNames[k]
}

// Subject says which type of object an error is about.
type Subject int

// The subjects. Call is the zero value: the request itself.
const (
	Call Subject = iota
	Domain
	XML       // a document that does not parse or does not validate
	XMLDetail // values of a document that contradict each other
	Config    // a definition that parses and cannot be built
	Device
	Network
	Pool
	Volume
	Snapshot
	NodeDevice
	Secret
	Metadata
	Agent
	Monitor
	Host
	Store
	Interface
	Filter
	// File is a file, a folder or a device of the host that a definition names.
	File
)

var subjectNames = [...]string{
	"call", "domain", "xml", "xml detail", "config", "device", "network", "pool", "volume", "snapshot",
	"node device", "secret", "metadata", "agent", "monitor", "host", "store", "interface", "filter", "file",
}

func (s Subject) String() string {
	if s < 0 || int(s) >= len(subjectNames) {
		return fmt.Sprintf("subject(%d)", int(s))
	}
	return subjectNames[s]
}

// Error is an error with its kind. Make one with New or Wrap.
type Error struct {
	Kind    Kind
	Subject Subject
	text    string
	cause   error
}

func (e *Error) Error() string {
	if e.cause == nil {
		return e.text
	}
	return e.text + ": " + e.cause.Error()
}

func (e *Error) Unwrap() error { return e.cause }

// New makes an error without a cause. The text is a lower-case
// sentence for the user: what, why, and what to do.
func New(k Kind, s Subject, format string, args ...any) error {
	return &Error{Kind: k, Subject: s, text: fmt.Sprintf(format, args...)}
}

// Wrap adds the failed action to a cause, and sets the kind that callers see.
// It returns nil for a nil cause.
func Wrap(cause error, k Kind, s Subject, format string, args ...any) error {
	if cause == nil {
		return nil
	}
	return &Error{Kind: k, Subject: s, text: fmt.Sprintf(format, args...), cause: cause}
}

// Of returns the kind of the outermost Error in the chain. A plain
// deadline is a Timeout and a plain cancellation is Aborted, so that errors of contexts
// need no wrapping. A plain errno of the kernel is Failed, and
// anything else is Internal.
func Of(err error) Kind {
	var e *Error
	var kernel syscall.Errno
	switch {
	case errors.As(err, &e):
		return e.Kind
	case errors.Is(err, context.DeadlineExceeded):
		return Timeout
	case errors.Is(err, context.Canceled):
		return Aborted
	case errors.As(err, &kernel):
		return Failed
	}
	return Internal
}

// About returns the subject of the outermost Error in the chain, or Call.
func About(err error) Subject {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Subject
	}
	return Call
}

// Is reports whether err is of kind k; a nil error is of no kind.
func Is(err error, k Kind) bool { return err != nil && Of(err) == k }

// Word quotes a name or a path for a command that a message tells a user to run, so that a shell reads it
// as one word. The name may come from a client, so it can contain anything.
func Word(text string) string {
	if text != "" && strings.IndexFunc(text, func(c rune) bool {
		return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=,.:/+@%", c)
	}) < 0 {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
