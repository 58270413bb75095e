package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"syscall"

	"connectrpc.com/connect"

	"github.com/lodge-kvm/lodge/api/lodgev1"
	"github.com/lodge-kvm/lodge/fault"
)

// maxAnswer bounds one message from the daemon, in bytes.
const maxAnswer = 256 << 20

// Client is a connection to a daemon.
type Client struct {
	lodgev1.LodgeClient
	transport *http.Transport
}

// Dial prepares calls to the daemon that listens on a unix socket. The first call
// connects.
func Dial(socket string) *Client {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	var dialer net.Dialer
	transport := &http.Transport{
		Protocols: &protocols,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, "unix", socket)
			return conn, explain(err, socket)
		},
	}
	return &Client{
		LodgeClient: lodgev1.NewLodgeClient(&http.Client{Transport: transport}, "http://lodge", connect.WithReadMaxBytes(maxAnswer)),
		transport:   transport,
	}
}

// Close lets the connection go.
func (c *Client) Close() { c.transport.CloseIdleConnections() }

// explain says what to do about a daemon that cannot be reached.
func explain(err error, socket string) error {
	switch {
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ECONNREFUSED):
		return fault.New(fault.NotFound, fault.Host, "no daemon listens on %s: start lodged, or say with --socket where it listens", socket)
	case errors.Is(err, syscall.EACCES):
		return fault.New(fault.Denied, fault.Host, "%s is not for you: be root, or join the group that owns it", socket)
	}
	return err
}

// Reason gives the text of an error as the daemon meant it, and its kind.
func Reason(err error) (text, kind string) {
	if known, ok := errors.AsType[*fault.Error](err); ok {
		return known.Error(), known.Kind.String()
	}
	failed, ok := errors.AsType[*connect.Error](err)
	if !ok {
		return err.Error(), fault.Of(err).String()
	}
	for _, d := range failed.Details() {
		if value, err := d.Value(); err == nil {
			if f, ok := value.(*lodgev1.Fault); ok {
				return f.GetText(), f.GetKind()
			}
		}
	}
	return failed.Message(), failed.Code().String()
}

// Status is what a command says to the one who called it.
type Status int

// The statuses. Unusable is for what was asked wrongly, and for selectors that
// choose nobody.
const (
	AllDone Status = iota
	SomeFailed
	Unusable
	WasCancelled
)

// Ending is the end of a command that is not AllDone. Its text may be empty:
// everything has been said.
type Ending struct {
	Status Status
	Text   string
}

func (e *Ending) Error() string { return e.Text }

// Failed turns a call's error into the end of a command.
func Failed(err error) error {
	if err == nil {
		return nil
	}
	if ending, ok := errors.AsType[*Ending](err); ok {
		return ending
	}
	text, kind := Reason(err)
	switch kind {
	case fault.Invalid.String(), fault.NotFound.String():
		return &Ending{Status: Unusable, Text: text}
	case fault.Aborted.String(), connect.CodeCanceled.String():
		return &Ending{Status: WasCancelled, Text: text}
	}
	return &Ending{Status: SomeFailed, Text: text}
}

// unusable is the end of a command that was asked for nothing.
func unusable(format string, args ...any) error {
	return &Ending{Status: Unusable, Text: fmt.Sprintf(format, args...)}
}
