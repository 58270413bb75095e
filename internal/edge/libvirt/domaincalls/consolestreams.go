package domaincalls

import (
	"context"
	"errors"
	"io"

	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/guest/console"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
)

// DomainConsoleCalls open streams to and from a running domain.
func DomainConsoleCalls(g rpc.Group) {
	rpc.OnStream(g, xdr.ProcDomainOpenConsole, domainOpenConsole)
	rpc.OnStream(g, xdr.ProcDomainOpenChannel, domainOpenChannel)
	rpc.OnStream(g, xdr.ProcDomainScreenshot, domainScreenshot)
}

// Flags for opening a console; a channel has only the first.
const (
	consoleForce = 1
	consoleSafe  = 2
)

func domainOpenConsole(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainOpenConsoleArgs) (*rpc.Void, rpc.StreamBody, error) {
	if err := rpc.CheckFlags("DOMAIN_OPEN_CONSOLE", args.Flags, consoleForce|consoleSafe); err != nil {
		return nil, nil, err
	}
	g, err := FindGuest(h, args.Domain)
	if err != nil {
		return nil, nil, err
	}
	o := machine.ConsoleOptions{Force: args.Flags&consoleForce != 0, Safe: args.Flags&consoleSafe != 0}
	console, err := console.OpenConsole(ctx, g, s.Scope, rpc.StringValue(args.DeviceName), o)
	if err != nil {
		return nil, nil, err
	}
	return nil, PipeStream(console), nil
}

func domainOpenChannel(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainOpenChannelArgs) (*rpc.Void, rpc.StreamBody, error) {
	if err := rpc.CheckFlags("DOMAIN_OPEN_CHANNEL", args.Flags, consoleForce); err != nil {
		return nil, nil, err
	}
	g, err := FindGuest(h, args.Domain)
	if err != nil {
		return nil, nil, err
	}
	channel, err := console.OpenChannel(ctx, g, s.Scope, rpc.StringValue(args.Name), machine.ConsoleOptions{Force: args.Flags&consoleForce != 0})
	if err != nil {
		return nil, nil, err
	}
	return nil, PipeStream(channel), nil
}

func domainScreenshot(ctx context.Context, h *rpc.Handlers, s *rpc.Request, args *xdr.DomainScreenshotArgs) (*xdr.DomainScreenshotRet, rpc.StreamBody, error) {
	if err := rpc.CheckFlags("DOMAIN_SCREENSHOT", args.Flags, 0); err != nil {
		return nil, nil, err
	}
	g, err := FindGuest(h, args.Domain)
	if err != nil {
		return nil, nil, err
	}
	mime, picture, err := console.Screenshot(ctx, g, s.Scope, uint(args.Screen))
	if err != nil {
		return nil, nil, err
	}
	return &xdr.DomainScreenshotRet{Mime: &mime}, func(_ context.Context, st *rpc.Stream) error {
		_, err := io.Copy(st, picture)
		return errors.Join(err, picture.Close())
	}, nil
}

// PipeStream returns the body of a stream that copies data in both directions between the client and
// conn, such as a console. When either side ends, it ends the stream and closes conn.
func PipeStream(conn io.ReadWriteCloser) rpc.StreamBody {
	return func(ctx context.Context, st *rpc.Stream) error {
		stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
		defer stop()
		inputEnded := make(chan struct{})
		go func() {
			defer close(inputEnded)
			_, _ = io.Copy(conn, st)
			_ = conn.Close()
		}()
		_, _ = io.Copy(st, conn) // an error of conn ends the stream like its end
		cause := context.Cause(ctx)
		st.End(rpc.ErrFinished)
		_ = conn.Close()
		<-inputEnded
		return cause
	}
}
