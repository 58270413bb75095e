package libvirt

import (
	"context"
	"errors"
	"io"

	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/guest/console"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
)

// domainConsoleCalls open streams to and from a running domain.
func domainConsoleCalls(g group) {
	onStream(g, xdr.ProcDomainOpenConsole, (*handlers).domainOpenConsole)
	onStream(g, xdr.ProcDomainOpenChannel, (*handlers).domainOpenChannel)
	onStream(g, xdr.ProcDomainScreenshot, (*handlers).domainScreenshot)
}

// Flags of opening a console; a channel knows the first.
const (
	consoleForce = 1
	consoleSafe  = 2
)

func (h *handlers) domainOpenConsole(ctx context.Context, s *request, args *xdr.DomainOpenConsoleArgs) (*void, streamBody, error) {
	if err := checkFlags("DOMAIN_OPEN_CONSOLE", args.Flags, consoleForce|consoleSafe); err != nil {
		return nil, nil, err
	}
	g, err := h.guest(args.Domain)
	if err != nil {
		return nil, nil, err
	}
	o := machine.ConsoleOptions{Force: args.Flags&consoleForce != 0, Safe: args.Flags&consoleSafe != 0}
	console, err := console.OpenConsole(ctx, g, s.scope, given(args.DeviceName), o)
	if err != nil {
		return nil, nil, err
	}
	return nil, join(console), nil
}

func (h *handlers) domainOpenChannel(ctx context.Context, s *request, args *xdr.DomainOpenChannelArgs) (*void, streamBody, error) {
	if err := checkFlags("DOMAIN_OPEN_CHANNEL", args.Flags, consoleForce); err != nil {
		return nil, nil, err
	}
	g, err := h.guest(args.Domain)
	if err != nil {
		return nil, nil, err
	}
	channel, err := console.OpenChannel(ctx, g, s.scope, given(args.Name), machine.ConsoleOptions{Force: args.Flags&consoleForce != 0})
	if err != nil {
		return nil, nil, err
	}
	return nil, join(channel), nil
}

func (h *handlers) domainScreenshot(ctx context.Context, s *request, args *xdr.DomainScreenshotArgs) (*xdr.DomainScreenshotRet, streamBody, error) {
	if err := checkFlags("DOMAIN_SCREENSHOT", args.Flags, 0); err != nil {
		return nil, nil, err
	}
	g, err := h.guest(args.Domain)
	if err != nil {
		return nil, nil, err
	}
	mime, picture, err := console.Screenshot(ctx, g, s.scope, uint(args.Screen))
	if err != nil {
		return nil, nil, err
	}
	return &xdr.DomainScreenshotRet{Mime: &mime}, func(_ context.Context, st *stream) error {
		_, err := io.Copy(st, picture)
		return errors.Join(err, picture.Close())
	}, nil
}

// join gives the body of a stream that is one end of far's line. It ends, and
// closes far, when either side does.
func join(far io.ReadWriteCloser) streamBody {
	return func(ctx context.Context, st *stream) error {
		stop := context.AfterFunc(ctx, func() { _ = far.Close() })
		defer stop()
		typed := make(chan struct{})
		go func() {
			defer close(typed)
			_, _ = io.Copy(far, st)
			_ = far.Close()
		}()
		_, _ = io.Copy(st, far) // a line that breaks has ended
		cause := context.Cause(ctx)
		st.end(errFinished)
		_ = far.Close()
		<-typed
		return cause
	}
}

// given is an optional text, empty when absent.
func given(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
