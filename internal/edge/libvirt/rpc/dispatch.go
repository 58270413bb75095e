package rpc

import (
	"context"
	"fmt"
	"os"
	"reflect"
	"runtime/debug"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/control/authz"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
)

// Table holds the procedures that can be called. It is made once and then only read.
type Table map[ProcedureKey]*route

// ProcedureKey identifies a procedure: its program, and its number in that program.
type ProcedureKey struct {
	Program xdr.Program
	Number  int32
}

// route is one procedure with the handler that serves it.
type route struct {
	Proc   *xdr.Procedure
	invoke func(ctx context.Context, h *Handlers, s *Session, payload []byte, files []*os.File) (reply, error)
}

// reply is the result of a handler. Files go with the result and are closed once
// sent. AfterReply runs when the result is queued, so that the packets it causes follow
// the result. Body moves the data of the call's stream.
type reply struct {
	ret        xdr.Message
	files      []*os.File
	afterReply func()
	body       StreamBody
	objects    []authz.Resource // the objects of the call
	recheck    func() error     // whether the current rules still allow the stream of the call
}

// StreamBody moves the data of a stream; ctx ends with the stream. Nil means
// that all data was moved and is safe.
type StreamBody func(ctx context.Context, st *Stream) error

// Group is the part of a table that belongs to one program.
type Group struct {
	Table   Table
	Program xdr.Program
}

// Message is the constraint on *T for arguments and results: it encodes and decodes.
type Message[T any] interface {
	*T
	xdr.Message
}

// Void stands for the arguments, or the result, of a call without them.
type Void struct{}

// Append adds no bytes.
func (*Void) Append(b []byte) ([]byte, error) { return b, nil }

// Decode reads no bytes.
func (*Void) Decode(*xdr.Reader) error { return nil }

// On serves a call with f.
func On[A, R any, PA Message[A], PR Message[R]](
	g Group, number int32, f func(context.Context, *Handlers, *Request, PA) (PR, error),
) {
	add[A, R, PA, PR](g, number, xdr.StreamNone, xdr.FDsNone, func(ctx context.Context, h *Handlers, s *Request, args PA, _ []*os.File) (reply, error) {
		ret, err := f(ctx, h, s, args)
		return reply{ret: ret}, err
	})
}

// OnAfterReply is On for a call that causes further packets, such as events. The function that f
// returns with the result runs once the result is queued, so those packets come after it.
func OnAfterReply[A, R any, PA Message[A], PR Message[R]](
	g Group, number int32, f func(context.Context, *Handlers, *Request, PA) (PR, func(), error),
) {
	add[A, R, PA, PR](g, number, xdr.StreamNone, xdr.FDsNone, func(ctx context.Context, h *Handlers, s *Request, args PA, _ []*os.File) (reply, error) {
		ret, then, err := f(ctx, h, s, args)
		return reply{ret: ret, afterReply: then}, err
	})
}

// OnStream is On for a call that opens a stream. f checks the call and opens the files. The
// body that it returns moves the data, in a goroutine of its own, and must always close them.
func OnStream[A, R any, PA Message[A], PR Message[R]](
	g Group, number int32, f func(context.Context, *Handlers, *Request, PA) (PR, StreamBody, error),
) {
	direction := g.lookup(number).Stream
	if direction == xdr.StreamNone {
		panic(fmt.Sprintf("call %d opens no stream", number))
	}
	add[A, R, PA, PR](g, number, direction, xdr.FDsNone, func(ctx context.Context, h *Handlers, s *Request, args PA, _ []*os.File) (reply, error) {
		ret, body, err := f(ctx, h, s, args)
		return reply{ret: ret, body: body}, err
	})
}

// OnFilesIn is On for a call that comes with descriptors. They are closed when
// f returns, so f duplicates the ones that it keeps.
func OnFilesIn[A, R any, PA Message[A], PR Message[R]](
	g Group, number int32, f func(context.Context, *Handlers, *Request, PA, []*os.File) (PR, error),
) {
	add[A, R, PA, PR](g, number, xdr.StreamNone, xdr.FDsIn, func(ctx context.Context, h *Handlers, s *Request, args PA, files []*os.File) (reply, error) {
		ret, err := f(ctx, h, s, args, files)
		return reply{ret: ret}, err
	})
}

// OnFilesOut is On for a call that is answered with descriptors. They belong to
// the server once f returns.
func OnFilesOut[A, R any, PA Message[A], PR Message[R]](
	g Group, number int32, f func(context.Context, *Handlers, *Request, PA) (PR, []*os.File, error),
) {
	add[A, R, PA, PR](g, number, xdr.StreamNone, xdr.FDsOut, func(ctx context.Context, h *Handlers, s *Request, args PA, _ []*os.File) (reply, error) {
		ret, files, err := f(ctx, h, s, args)
		return reply{ret: ret, files: files}, err
	})
}

func (g Group) lookup(number int32) *xdr.Procedure {
	p := xdr.Lookup(g.Program, number)
	if p == nil || p.Event {
		panic(fmt.Sprintf("%v has no call %d", g.Program, number))
	}
	return p
}

// add checks a handler against the procedure table. So a wrong type is found
// when the table is made and not at a client's call.
func add[A, R any, PA Message[A], PR Message[R]](
	g Group, number int32, stream xdr.Stream, fds xdr.FDs,
	f func(context.Context, *Handlers, *Request, PA, []*os.File) (reply, error),
) {
	p := g.lookup(number)
	checkType[A](p, "arguments", p.NewArgs)
	checkType[R](p, "result", p.NewRet)
	if p.Stream != stream || p.FDs != fds {
		panic(fmt.Sprintf("%s: the handler differs from the table in stream or descriptors", p.Name))
	}
	key := ProcedureKey{g.Program, number}
	if g.Table[key] != nil {
		panic(fmt.Sprintf("%s has two handlers", p.Name))
	}
	g.Table[key] = &route{Proc: p, invoke: func(
		ctx context.Context, h *Handlers, s *Session, payload []byte, files []*os.File,
	) (reply, error) {
		args := PA(new(A))
		if err := args.Decode(xdr.NewReader(payload)); err != nil {
			return reply{}, rpcFault("cannot decode the arguments of %s: %v", p.Name, err)
		}
		if err := s.checkArgs(p, args); err != nil {
			return reply{}, s.auditRefusal(p, err)
		}
		sc, permission, err := s.Authorize(p, args)
		if err != nil {
			return reply{}, permission.finish(nil, err)
		}
		defer permission.Done()
		answer, err := f(ctx, h, &Request{Session: s, Scope: sc}, args, files)
		answer.objects, answer.recheck = permission.objects, permission.recheckStream
		return answer, permission.finish(answer.ret, err)
	}}
}

func checkType[T any](p *xdr.Procedure, what string, make func() xdr.Message) {
	want := reflect.TypeFor[*Void]()
	if make != nil {
		want = reflect.TypeOf(make())
	}
	if got := reflect.TypeFor[*T](); got != want {
		panic(fmt.Sprintf("%s: %s are %v, the handler has %v", p.Name, what, want, got))
	}
}

// lookupRoute finds the handler of a call, or returns the error that refuses the call.
func (c *Client) lookupRoute(f *frame) (*route, error) {
	switch f.Program {
	case xdr.ProgramRemote, xdr.ProgramQEMU:
	case xdr.ProgramLXC:
		return nil, WithCode(CodeNoSupport, fault.New(fault.Unsupported, fault.Call,
			"virsh lxc-enter-namespace is for containers, and Lodge runs virtual machines; use virsh console"))
	default:
		return nil, rpcFault("cannot find program %d version %d", uint32(f.Program), f.Version)
	}
	if f.Version != xdr.Version {
		return nil, rpcFault("cannot find program %d version %d", uint32(f.Program), f.Version)
	}
	if f.Status != xdr.StatusOK {
		return nil, rpcFault("a call with status %d makes no sense", f.Status)
	}
	p := xdr.Lookup(f.Program, f.Proc)
	if p == nil || p.Event {
		return nil, rpcFault("unknown procedure: %d", f.Proc)
	}
	if err := c.Session.checkCall(p); err != nil {
		return nil, c.Session.auditRefusal(p, err)
	}
	r := c.Server.Table[ProcedureKey{f.Program, f.Proc}]
	if r == nil {
		return nil, ErrNotBuilt(p)
	}
	return r, nil
}

// runCall runs one call in a goroutine of its own, to its reply. Ordinary calls
// wait for one of the client's slots; priority calls do not.
func (c *Client) runCall(r *route, f *frame) {
	size := len(f.payload)
	done := func() { c.releaseFrame(f); c.intake.Release(size) }
	defer f.closeFiles()
	if !r.Proc.Priority {
		select {
		case c.slots <- struct{}{}:
			defer func() { <-c.slots }()
		case <-c.ReadCtx.Done():
			c.replyError(f.Header, fault.Wrap(context.Cause(c.ReadCtx), fault.Aborted, fault.Call, "%s was not begun", r.Proc.Name), done)
			return
		}
	}
	st, err := c.Streams.Open(c, r.Proc, f.Header)
	if err != nil {
		c.replyError(f.Header, err, done)
		return
	}
	started := time.Now()
	answer, err := c.invoke(r, f)
	c.log.Debug("call", "name", r.Proc.Name, "serial", f.Serial, "took", time.Since(started), "error", err)
	if err == nil {
		err = c.reply(r, f.Header, answer, done)
	}
	if err != nil {
		c.Streams.drop(st)
		c.replyError(f.Header, err, done)
	}
	c.Streams.SetRecheck(st, answer.objects, answer.recheck)
	if answer.body != nil { // runs in any case: it releases the files it opened
		c.work.Go(func() { st.run(answer.body) })
	}
	if answer.afterReply != nil && err == nil {
		answer.afterReply()
	}
}

// invoke recovers from a handler's panic: the bug fails only this call.
func (c *Client) invoke(r *route, f *frame) (answer reply, err error) {
	defer func() {
		if bug := recover(); bug != nil {
			c.log.Error("bug in a handler", "call", r.Proc.Name, "panic", bug, "stack", string(debug.Stack()))
			err = fault.New(fault.Internal, fault.Call, "%s broke: %v; the daemon's log has more", r.Proc.Name, bug)
		}
	}()
	return r.invoke(c.callCtx, &c.Server.Handlers, c.Session, f.payload, f.files)
}

// reply queues a result. After an error nothing was queued, and done was not called.
func (c *Client) reply(r *route, h xdr.Header, answer reply, done func()) error {
	o := &outgoing{files: answer.files}
	payload, err := result(r.Proc, answer.ret)
	if err == nil {
		h.Type, h.Status = xdr.TypeReply, xdr.StatusOK
		if r.Proc.FDs == xdr.FDsOut {
			h.Type = xdr.TypeReplyWithFDs
		}
		o.packet, err = xdr.AppendPacket(nil, h, payload, len(answer.files))
	}
	if err != nil {
		o.release()
		return fault.Wrap(err, fault.Internal, fault.Call, "cannot send the result of %s", r.Proc.Name)
	}
	o.done = done
	c.send(o)
	return nil
}

// result checks that a handler returned a result if its call has one: a nil pointer is
// then the handler's mistake.
func result(p *xdr.Procedure, ret xdr.Message) (xdr.Message, error) {
	switch {
	case p.NewRet == nil:
		return nil, nil
	case ret == nil || reflect.ValueOf(ret).IsNil():
		return nil, fault.New(fault.Internal, fault.Call, "the handler gave none")
	}
	return ret, nil
}
