package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"github.com/lodge-kvm/lodge/api/lodgev1"
	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// maxAnswer bounds one message from the daemon, in bytes.
const maxAnswer = 256 << 20

// usualPatience is how long the daemon has for an answer that is not a stream.
const usualPatience = 30 * time.Second

// Client is a connection to a daemon.
type Client struct {
	lodgev1.LodgeClient
	transport *http.Transport
}

// Dial prepares calls to the daemon that listens on a unix socket. The first call
// connects.
func Dial(socket string) *Client { return dial(socket, usualPatience) }

func dial(socket string, patience time.Duration) *Client {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	var dialer net.Dialer
	transport := &http.Transport{
		Protocols: &protocols,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", socket)
		},
	}
	return newClient(line{transport, socket}, transport, "http://lodge", patience)
}

func newClient(way http.RoundTripper, transport *http.Transport, address string, patience time.Duration) *Client {
	calls := &http.Client{Transport: way, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse // no daemon sends its clients to others
	}}
	return &Client{
		LodgeClient: lodgev1.NewLodgeClient(calls, address, connect.WithReadMaxBytes(maxAnswer), connect.WithInterceptors(patient(patience))),
		transport:   transport,
	}
}

// Close lets the connection go.
func (c *Client) Close() { c.transport.CloseIdleConnections() }

// line is the way to a daemon. It says what to do about one that cannot be reached.
type line struct {
	*http.Transport
	socket string
}

func (l line) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := l.Transport.RoundTrip(r)
	switch {
	case err == nil || r.Context().Err() != nil:
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ECONNREFUSED):
		err = fault.New(fault.NotFound, fault.Host, "no daemon listens on %s; start lodged, or name its socket with --socket", l.socket)
	case errors.Is(err, syscall.EACCES):
		err = fault.New(fault.Denied, fault.Host, "no permission for %s; call lodge as root, or join the group that owns the socket", l.socket)
	default:
		err = fault.Wrap(err, fault.Failed, fault.Host, "the program on %s does not answer as Lodge, or has just stopped; name the socket lodge.sock of the daemon with --socket", l.socket)
	}
	return response, err
}

// patient bounds the wait for an answer that is not a stream, and tells an
// interrupt from a failure.
func patient(patience time.Duration) connect.UnaryInterceptorFunc {
	return func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
			bounded, stop := context.WithTimeout(ctx, patience)
			defer stop()
			response, err := next(bounded, r)
			switch {
			case err == nil:
			case ctx.Err() != nil:
				err = fault.New(fault.Aborted, fault.Call, "interrupted")
			case bounded.Err() != nil:
				err = fault.New(fault.Timeout, fault.Host, "the daemon has not answered within %v", patience)
			}
			return response, err
		}
	}
}

// reason gives the text of an error as the daemon meant it, fit for a terminal,
// and its kind.
func reason(err error) (text, kind string) {
	text, kind = told(err)
	return sentence(text), kind
}

func told(err error) (text, kind string) {
	if known, ok := errors.AsType[*fault.Error](err); ok {
		return known.Error(), known.Kind.String()
	}
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) { // in the middle of a stream
		return "the connection to the daemon broke; has it stopped?", fault.Failed.String()
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

// The statuses. Unusable is for a request that makes no sense, and for selectors
// that match no guest.
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
	text, kind := reason(err)
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
