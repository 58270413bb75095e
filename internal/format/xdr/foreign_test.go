package xdr_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"strings"
	"testing"
	"time"

	libvirt "github.com/digitalocean/go-libvirt"
	"github.com/digitalocean/go-libvirt/socket/dialers"

	"github.com/lodge-kvm/lodge/internal/format/xdr"
)

// foreignPeer is the server end of a connection to go-libvirt's client, an
// implementation of the same protocol by others. It decodes each call with
// this package and answers with a result full of distinct values.
type foreignPeer struct {
	conn    net.Conn
	calls   chan foreignCall
	refusal *xdr.NetError // the answer instead of a result; set between calls
}

// foreignCall is one call as the peer saw it.
type foreignCall struct {
	proc      *xdr.Procedure
	args, ret xdr.Message
	err       error
}

func connectForeign(t *testing.T) (*libvirt.Libvirt, *foreignPeer) {
	near, far := net.Pipe()
	deadline := time.Now().Add(time.Minute)
	if err := near.SetDeadline(deadline); err != nil {
		t.Fatal(err)
	}
	peer := &foreignPeer{conn: far, calls: make(chan foreignCall, 2)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		peer.serve()
	}()
	t.Cleanup(func() {
		_ = far.Close()
		<-done
	})
	client := libvirt.NewWithDialer(dialers.NewAlreadyConnected(near))
	if err := client.Connect(); err != nil {
		t.Fatal(err)
	}
	if list, open := <-peer.calls, <-peer.calls; list.err != nil || open.err != nil {
		t.Fatal(list.err, open.err)
	}
	return client, peer
}

// serve answers until the connection ends.
func (p *foreignPeer) serve() {
	for {
		h, payload, err := readPacket(p.conn)
		if err != nil {
			return
		}
		call := answer(h, payload)
		h.Type = xdr.TypeReply
		ret := call.ret
		switch {
		case p.refusal != nil:
			h.Status, ret = xdr.StatusError, p.refusal
		case call.err != nil:
			h.Status, ret = xdr.StatusError, &xdr.NetError{Code: 39}
		}
		b, err := xdr.AppendPacket(nil, h, ret, 0)
		if err != nil {
			call.err = err
		}
		p.calls <- call
		if _, err := p.conn.Write(b); err != nil {
			return
		}
	}
}

func readPacket(from io.Reader) (xdr.Header, []byte, error) {
	var word [xdr.LengthSize]byte
	if _, err := io.ReadFull(from, word[:]); err != nil {
		return xdr.Header{}, nil, err
	}
	n, err := xdr.CheckLength(binary.BigEndian.Uint32(word[:]))
	if err != nil {
		return xdr.Header{}, nil, err
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(from, b); err != nil {
		return xdr.Header{}, nil, err
	}
	h, err := xdr.ParseHeader(b)
	return h, b[xdr.HeaderSize:], err
}

func answer(h xdr.Header, payload []byte) (call foreignCall) {
	call.proc = xdr.Lookup(h.Program, h.Proc)
	if call.proc == nil {
		call.err = fmt.Errorf("no procedure %d", h.Proc)
		return call
	}
	r := xdr.NewReader(payload)
	if call.proc.NewArgs != nil {
		call.args = call.proc.NewArgs()
		call.err = call.args.Decode(r)
	}
	if call.err == nil {
		call.err = r.End()
	}
	if call.proc.NewRet != nil {
		call.ret = call.proc.NewRet()
		if h.Program != xdr.ProgramRemote || h.Proc != xdr.ProcAuthList { // an empty list: no client needs to authenticate
			(&counter{n: 40}).fill(reflect.ValueOf(call.ret).Elem())
		}
	}
	return call
}

// counter fills fields with distinct values, so that fields that changed
// places are seen.
type counter struct{ n int }

func (c *counter) fill(v reflect.Value) {
	c.n++
	switch v.Interface().(type) {
	case xdr.TypedValue:
		v.Set(reflect.ValueOf([]xdr.TypedValue{
			xdr.Int(int32(c.n)), xdr.Uint(uint32(c.n)), xdr.Int64(int64(-c.n)), xdr.Uint64(uint64(c.n)),
			xdr.Double(float64(c.n)), xdr.Bool(true), xdr.String(fmt.Sprint("text", c.n)),
		}[c.n%7]))
		return
	case libvirt.TypedParamValue:
		v.Set(reflect.ValueOf([]*libvirt.TypedParamValue{
			libvirt.NewTypedParamValueInt(int32(c.n)), libvirt.NewTypedParamValueUint(uint32(c.n)),
			libvirt.NewTypedParamValueLlong(int64(-c.n)), libvirt.NewTypedParamValueUllong(uint64(c.n)),
			libvirt.NewTypedParamValueDouble(float64(c.n)), libvirt.NewTypedParamValueBoolean(1),
			libvirt.NewTypedParamValueString(fmt.Sprint("text", c.n)),
		}[c.n%7]).Elem())
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for _, f := range v.Fields() {
			c.fill(f)
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		c.fill(v.Elem())
	case reflect.Slice:
		n := 2
		if strings.HasPrefix(v.Type().Name(), "Opt") { // an optional item, in go-libvirt's words
			n = 1
		}
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		c.fillItems(v)
	case reflect.Array:
		c.fillItems(v)
	case reflect.String:
		v.SetString(fmt.Sprint("text", c.n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int8, reflect.Int32, reflect.Int64:
		v.SetInt(int64(c.n))
	default:
		v.SetUint(uint64(c.n))
	}
}

func (c *counter) fillItems(v reflect.Value) {
	for i := range v.Len() {
		c.fill(v.Index(i))
	}
}

// flatten lists the values in v in order. Both sides' shapes of one layout
// give the same list; a truth and a number are told apart by truth alone.
func flatten(out []string, v reflect.Value) []string {
	switch x := v.Interface().(type) {
	case xdr.TypedValue:
		return append(out, fmt.Sprint(int(x.Kind())), strings.Trim(x.String(), `"`))
	case libvirt.TypedParamValue:
		if x.D == uint32(xdr.KindBool) {
			x.I = fmt.Sprint(x.I) != "0"
		}
		return append(out, fmt.Sprint(x.D), fmt.Sprint(x.I))
	}
	switch v.Kind() {
	case reflect.Struct:
		for _, f := range v.Fields() {
			out = flatten(out, f)
		}
	case reflect.Pointer:
		if v.IsNil() {
			return append(out, "items 0")
		}
		out = flatten(append(out, "items 1"), v.Elem())
	case reflect.Slice, reflect.Array:
		out = append(out, fmt.Sprint("items ", v.Len()))
		for i := range v.Len() {
			out = flatten(out, v.Index(i))
		}
	default:
		out = append(out, fmt.Sprint(v.Interface()))
	}
	return out
}

func same(ours, theirs []string) bool {
	if len(ours) != len(theirs) {
		return false
	}
	for i := range ours {
		truth := ours[i] == "true" && theirs[i] != "0"
		if ours[i] != theirs[i] && !truth {
			return false
		}
	}
	return true
}

// foreignCalls finds the methods of go-libvirt's client that are calls of the
// table without a stream, by name.
func foreignCalls(client *libvirt.Libvirt) map[string]reflect.Value {
	methods := map[string]reflect.Value{}
	v := reflect.ValueOf(client)
	for i := range v.NumMethod() {
		methods[strings.ToLower(v.Type().Method(i).Name)] = v.Method(i)
	}
	// Its struct of disk errors has a field that it does not export and so does
	// not read.
	delete(methods, "domaingetdiskerrors")
	calls := map[string]reflect.Value{}
	for _, program := range []xdr.Program{xdr.ProgramRemote, xdr.ProgramQEMU} {
		for p := range xdr.Procedures(program) {
			name := strings.ToLower(strings.ReplaceAll(p.Name, "_", ""))
			if program == xdr.ProgramQEMU {
				name = "qemu" + name
			}
			if m, ok := methods[name]; ok && !p.Event && p.Stream == xdr.StreamNone {
				calls[name] = m
			}
		}
	}
	return calls
}

func TestForeignClient_EveryCall(t *testing.T) {
	client, peer := connectForeign(t)
	calls := foreignCalls(client)
	if len(calls) < 380 {
		t.Errorf("only %d calls are known to both sides", len(calls))
	}
	for name, method := range calls {
		args := make([]reflect.Value, method.Type().NumIn())
		var sent []string
		c := &counter{}
		for i := range args {
			args[i] = reflect.New(method.Type().In(i)).Elem()
			c.fill(args[i])
			sent = flatten(sent, args[i])
		}
		got := method.Call(args)
		var call foreignCall
		select {
		case call = <-peer.calls:
		default: // never sent
		}
		if err, _ := reflect.TypeAssert[error](got[len(got)-1]); err != nil || call.err != nil || call.proc == nil {
			t.Errorf("%s: client says %v, peer says %v", name, err, call.err)
			continue
		}
		var came, returned, meant []string
		if call.args != nil {
			came = flatten(nil, reflect.ValueOf(call.args).Elem())
		}
		if !same(came, sent) {
			t.Errorf("%s arrived at %s as\n%q, sent as\n%q", name, call.proc.Name, came, sent)
		}
		for _, v := range got[:len(got)-1] {
			returned = flatten(returned, v)
		}
		if call.ret != nil {
			meant = flatten(nil, reflect.ValueOf(call.ret).Elem())
		}
		if !same(meant, returned) {
			t.Errorf("%s returned\n%q, meant\n%q", name, returned, meant)
		}
	}
}

func TestForeignClient_Events(t *testing.T) {
	client, peer := connectForeign(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	events, err := client.LifecycleEvents(ctx)
	if err != nil {
		t.Fatal(err)
	}
	registered := (<-peer.calls).ret.(*xdr.ConnectDomainEventCallbackRegisterAnyRet)
	h := xdr.Header{
		Program: xdr.ProgramRemote, Version: 1,
		Proc: xdr.ProcDomainEventCallbackLifecycle, Type: xdr.TypeMessage,
	}
	b, err := xdr.AppendPacket(nil, h, &xdr.DomainEventCallbackLifecycleMsg{
		CallbackID: registered.CallbackID,
		Msg:        xdr.DomainEventLifecycleMsg{Domain: domain, Event: 2, Detail: 1},
	}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := peer.conn.Write(b); err != nil {
		t.Fatal(err)
	}
	select {
	case e := <-events:
		if e.Dom.Name != domain.Name || e.Dom.ID != domain.ID || e.Event != 2 || e.Detail != 1 {
			t.Errorf("got %+v", e)
		}
	case <-ctx.Done():
		t.Fatal("no event came")
	}
}

func TestForeignClient_Errors(t *testing.T) {
	client, peer := connectForeign(t)
	peer.refusal = &xdr.NetError{Code: 42, Domain: 10, Message: new("no domain"), Level: 2, Str1: new("no domain"), Int1: -1}
	_, err := client.DomainLookupByName("web")
	var refused libvirt.Error
	if !errors.As(err, &refused) || refused.Code != 42 || refused.Message != "no domain" {
		t.Errorf("got %#v", err)
	}
}
