package libvirt

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

// table holds the procedures that can be called. It is made once and then only read.
type table map[procedureKey]*route

// procedureKey identifies a procedure: its program, and its number in that program.
type procedureKey struct {
	program xdr.Program
	number  int32
}

// route is one procedure with the handler that serves it.
type route struct {
	proc   *xdr.Procedure
	invoke func(h *handlers, ctx context.Context, s *session, payload []byte, files []*os.File) (reply, error)
}

// reply is the result of a handler. Files go with the result and are closed once
// sent. Then runs when the result is queued, so that the packets it causes follow
// the result. Body takes over the call's stream.
type reply struct {
	ret   xdr.Message
	files []*os.File
	then  func()
	body  streamBody
	of    []authz.Object // the objects of the call
	still func() error   // whether the stream may go on, by the rules as they are then
}

// streamBody moves the data of a stream; ctx ends with the stream. Nil means
// that all data was moved and is safe.
type streamBody func(ctx context.Context, st *stream) error

// group is the part of a table that belongs to one program.
type group struct {
	table   table
	program xdr.Program
}

// message is the constraint on *T for arguments and results: it encodes and decodes.
type message[T any] interface {
	*T
	xdr.Message
}

// void is the arguments or the result of a call that has none.
type void struct{}

// Append adds no bytes.
func (*void) Append(b []byte) ([]byte, error) { return b, nil }

// Decode reads no bytes.
func (*void) Decode(*xdr.Reader) error { return nil }

// on serves a call with f.
func on[A, R any, PA message[A], PR message[R]](
	g group, number int32, f func(*handlers, context.Context, *request, PA) (PR, error),
) {
	add[A, R, PA, PR](g, number, xdr.StreamNone, xdr.FDsNone, func(h *handlers, ctx context.Context, s *request, args PA, _ []*os.File) (reply, error) {
		ret, err := f(h, ctx, s, args)
		return reply{ret: ret}, err
	})
}

// onThen is on for a call that starts a sender of further packets. The function that f
// returns beside the result runs once the result is queued.
func onThen[A, R any, PA message[A], PR message[R]](
	g group, number int32, f func(*handlers, context.Context, *request, PA) (PR, func(), error),
) {
	add[A, R, PA, PR](g, number, xdr.StreamNone, xdr.FDsNone, func(h *handlers, ctx context.Context, s *request, args PA, _ []*os.File) (reply, error) {
		ret, then, err := f(h, ctx, s, args)
		return reply{ret: ret, then: then}, err
	})
}

// onStream is on for a call that opens a stream. F checks and opens. The body that it
// returns moves the data, in a goroutine of its own, and must release the opened
// files in every case.
func onStream[A, R any, PA message[A], PR message[R]](
	g group, number int32, f func(*handlers, context.Context, *request, PA) (PR, streamBody, error),
) {
	direction := g.lookup(number).Stream
	if direction == xdr.StreamNone {
		panic(fmt.Sprintf("call %d opens no stream", number))
	}
	add[A, R, PA, PR](g, number, direction, xdr.FDsNone, func(h *handlers, ctx context.Context, s *request, args PA, _ []*os.File) (reply, error) {
		ret, body, err := f(h, ctx, s, args)
		return reply{ret: ret, body: body}, err
	})
}

// onFilesIn is on for a call that comes with descriptors. They are closed when
// f returns, so f duplicates the ones it keeps.
func onFilesIn[A, R any, PA message[A], PR message[R]](
	g group, number int32, f func(*handlers, context.Context, *request, PA, []*os.File) (PR, error),
) {
	add[A, R, PA, PR](g, number, xdr.StreamNone, xdr.FDsIn, func(h *handlers, ctx context.Context, s *request, args PA, files []*os.File) (reply, error) {
		ret, err := f(h, ctx, s, args, files)
		return reply{ret: ret}, err
	})
}

// onFilesOut is on for a call that is answered with descriptors. They belong to
// the server once f returns.
func onFilesOut[A, R any, PA message[A], PR message[R]](
	g group, number int32, f func(*handlers, context.Context, *request, PA) (PR, []*os.File, error),
) {
	add[A, R, PA, PR](g, number, xdr.StreamNone, xdr.FDsOut, func(h *handlers, ctx context.Context, s *request, args PA, _ []*os.File) (reply, error) {
		ret, files, err := f(h, ctx, s, args)
		return reply{ret: ret, files: files}, err
	})
}

func (g group) lookup(number int32) *xdr.Procedure {
	p := xdr.Lookup(g.program, number)
	if p == nil || p.Event {
		panic(fmt.Sprintf("%v has no call %d", g.program, number))
	}
	return p
}

// add checks a handler against the procedure table. So a wrong pair is found
// when the table is made and not at a client's call.
func add[A, R any, PA message[A], PR message[R]](
	g group, number int32, stream xdr.Stream, fds xdr.FDs,
	f func(*handlers, context.Context, *request, PA, []*os.File) (reply, error),
) {
	p := g.lookup(number)
	checkType[A](p, "arguments", p.NewArgs)
	checkType[R](p, "result", p.NewRet)
	if p.Stream != stream || p.FDs != fds {
		panic(fmt.Sprintf("%s: the handler differs from the table in stream or descriptors", p.Name))
	}
	key := procedureKey{g.program, number}
	if g.table[key] != nil {
		panic(fmt.Sprintf("%s has two handlers", p.Name))
	}
	g.table[key] = &route{proc: p, invoke: func(
		h *handlers, ctx context.Context, s *session, payload []byte, files []*os.File,
	) (reply, error) {
		args := PA(new(A))
		if err := args.Decode(xdr.NewReader(payload)); err != nil {
			return reply{}, rpcFault("cannot decode the arguments of %s: %v", p.Name, err)
		}
		if err := s.permitArgs(p, args); err != nil {
			return reply{}, s.refused(p, err)
		}
		sc, permission, err := s.allow(p, args)
		if err != nil {
			return reply{}, permission.end(nil, err)
		}
		defer permission.done()
		answer, err := f(h, ctx, &request{session: s, scope: sc}, args, files)
		answer.of, answer.still = permission.objects, permission.still
		return answer, permission.end(answer.ret, err)
	}}
}

func checkType[T any](p *xdr.Procedure, what string, make func() xdr.Message) {
	want := reflect.TypeFor[*void]()
	if make != nil {
		want = reflect.TypeOf(make())
	}
	if got := reflect.TypeFor[*T](); got != want {
		panic(fmt.Sprintf("%s: %s are %v, the handler has %v", p.Name, what, want, got))
	}
}

// route finds the handler of a call, or the error that refuses the call.
func (c *client) route(f *frame) (*route, error) {
	switch f.Program {
	case xdr.ProgramRemote, xdr.ProgramQEMU:
	case xdr.ProgramLXC:
		return nil, withCode(codeNoSupport, fault.New(fault.Unsupported, fault.Call,
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
	if err := c.session.permit(p); err != nil {
		return nil, c.session.refused(p, err)
	}
	r := c.server.table[procedureKey{f.Program, f.Proc}]
	if r == nil {
		return nil, errNotBuilt(p)
	}
	return r, nil
}

// answer runs one call in a goroutine of its own, from its admission to its
// reply. Ordinary calls wait for one of the client's places; urgent ones do not.
func (c *client) answer(r *route, f *frame) {
	size := len(f.payload)
	done := func() { c.letGo(f); c.intake.give(size) }
	defer f.closeFiles()
	if !r.proc.Priority {
		select {
		case c.running <- struct{}{}:
			defer func() { <-c.running }()
		case <-c.reading.Done():
			c.replyError(f.Header, fault.Wrap(context.Cause(c.reading), fault.Aborted, fault.Call, "%s was not begun", r.proc.Name), done)
			return
		}
	}
	st, err := c.streams.open(c, r.proc, f.Header)
	if err != nil {
		c.replyError(f.Header, err, done)
		return
	}
	started := time.Now()
	answer, err := c.invoke(r, f)
	c.log.Debug("call", "name", r.proc.Name, "serial", f.Serial, "took", time.Since(started), "error", err)
	if err == nil {
		err = c.reply(r, f.Header, answer, done)
	}
	if err != nil {
		c.streams.drop(st)
		c.replyError(f.Header, err, done)
	}
	c.streams.guard(st, answer.of, answer.still)
	if answer.body != nil { // runs in any case: it releases the files it opened
		c.work.Go(func() { st.run(answer.body) })
	}
	if answer.then != nil && err == nil {
		answer.then()
	}
}

// invoke contains a handler's panic: it is a bug, and costs this call alone.
func (c *client) invoke(r *route, f *frame) (answer reply, err error) {
	defer func() {
		if bug := recover(); bug != nil {
			c.log.Error("bug in a handler", "call", r.proc.Name, "panic", bug, "stack", string(debug.Stack()))
			err = fault.New(fault.Internal, fault.Call, "%s broke: %v; the daemon's log has more", r.proc.Name, bug)
		}
	}()
	return r.invoke(&c.server.handlers, c.calls, c.session, f.payload, f.files)
}

// reply queues a result. With an error nothing was queued and done was not called.
func (c *client) reply(r *route, h xdr.Header, answer reply, done func()) error {
	o := &outgoing{files: answer.files}
	payload, err := result(r.proc, answer.ret)
	if err == nil {
		h.Type, h.Status = xdr.TypeReply, xdr.StatusOK
		if r.proc.FDs == xdr.FDsOut {
			h.Type = xdr.TypeReplyWithFDs
		}
		o.packet, err = xdr.AppendPacket(nil, h, payload, len(answer.files))
	}
	if err != nil {
		o.finish()
		return fault.Wrap(err, fault.Internal, fault.Call, "cannot send the result of %s", r.proc.Name)
	}
	o.done = done
	c.send(o)
	return nil
}

// result accepts a nil pointer from a call without a result. From any other call, a
// nil pointer is a handler's mistake.
func result(p *xdr.Procedure, ret xdr.Message) (xdr.Message, error) {
	switch {
	case p.NewRet == nil:
		return nil, nil
	case ret == nil || reflect.ValueOf(ret).IsNil():
		return nil, fault.New(fault.Internal, fault.Call, "the handler gave none")
	}
	return ret, nil
}
