package rpc

import (
	"slices"
	"sync"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/control/authz"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
)

// Lingering bounds the ended streams of a client that it has not finished yet. Some
// clients never finish a stream; beyond the bound, the oldest are forgotten.
const Lingering = 256

type streamKey struct {
	program xdr.Program
	proc    int32
	serial  uint32
}

// Streams are the streams of one client, and the guard of their state.
type Streams struct {
	limit int // of the streams with a running body

	mu     sync.Mutex
	byKey  map[streamKey]*Stream
	active int
	linger []streamKey // their bodies are over; oldest first
}

// NewStreams makes an empty set of streams; at most limit of them may run.
func NewStreams(limit int) *Streams {
	return &Streams{limit: limit, byKey: map[streamKey]*Stream{}}
}

func keyOf(h xdr.Header) streamKey { return streamKey{h.Program, h.Proc, h.Serial} }

// Open adds the stream of a call, or nil for a call that has none.
func (s *Streams) Open(c *Client, proc *xdr.Procedure, h xdr.Header) (*Stream, error) {
	if proc.Stream == xdr.StreamNone {
		return nil, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.active >= s.limit {
		return nil, fault.New(fault.NoCapacity, fault.Call, "%d streams are open on this connection; finish one first", s.active)
	}
	key := keyOf(h)
	if old := s.byKey[key]; old != nil && !old.over {
		return nil, rpcFault("serial %d is that of an open stream", h.Serial)
	}
	st := newStream(c, proc, h)
	s.byKey[key] = st
	s.active++
	return st, nil
}

// find gives the stream that a packet is for, or nil.
func (s *Streams) find(f *frame) *Stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byKey[keyOf(f.Header)]
}

// remove takes a stream out, if it is in; with the lock held.
func (s *Streams) remove(st *Stream) {
	if s.byKey[keyOf(st.header)] != st {
		return
	}
	delete(s.byKey, keyOf(st.header))
	s.free(st)
}

// free gives a stream's place to others, once; with the lock held.
func (s *Streams) free(st *Stream) {
	if !st.released {
		st.released = true
		s.active--
	}
}

// release notes that the body has ended, before its client can know.
func (s *Streams) release(st *Stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free(st)
}

// drop forgets the stream of a call that failed; nothing is sent for it. It may be nil.
func (s *Streams) drop(st *Stream) {
	if st == nil {
		return
	}
	s.mu.Lock()
	s.remove(st)
	s.mu.Unlock()
	st.End(errAborted)
}

// waiting reports whether the client may still send, and has not hung up.
func (s *Streams) waiting(st *Stream) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byKey[keyOf(st.header)] == st && !st.hungUp && !st.over
}

// hangUp notes that the client sent its last packet. It reports whether that was the
// first time, and whether the body had ended, so that the stream is gone.
func (s *Streams) hangUp(st *Stream, aborted bool) (over, first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st.hungUp {
		return st.over, false
	}
	st.hungUp, st.aborted = true, aborted
	if st.over {
		s.remove(st)
	}
	return st.over, true
}

// conclusion is the message that a client must get when a stream's body has ended.
type conclusion int

const (
	// concludeLater sends nothing now: the answer follows when the client finishes the stream, if at all.
	concludeLater conclusion = iota
	// concludeOK answers a client that finished or aborted the stream with an empty OK packet.
	concludeOK
	// concludeError sends the client the error that ended the body.
	concludeError
)

// conclude notes that the body has ended with err.
func (s *Streams) conclude(st *Stream, err error) conclusion {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byKey[keyOf(st.header)] != st {
		return concludeLater
	}
	stopped := st.aborted || st.hungUp && st.proc.Stream == xdr.StreamDown
	switch {
	case st.hungUp && (err == nil || stopped):
		s.remove(st)
		return concludeOK
	case err != nil:
		s.remove(st)
		return concludeError
	}
	st.over = true
	s.retire(keyOf(st.header))
	return concludeLater
}

// retire keeps an ended stream until its client finishes it. Beyond a bounded number of
// such streams, it forgets the oldest.
func (s *Streams) retire(key streamKey) {
	s.linger = append(s.linger, key)
	if len(s.linger) <= Lingering {
		return
	}
	oldest := s.linger[0]
	s.linger = s.linger[1:]
	if st := s.byKey[oldest]; st != nil && st.over {
		delete(s.byKey, oldest)
	}
}

// Guard ends a stream when the rules forbid it. The rules may have changed since its
// call was allowed.
func (s *Streams) Guard(st *Stream, of []authz.Resource, still func() error) {
	if st == nil || still == nil {
		return
	}
	s.mu.Lock()
	st.of, st.still = of, still
	s.mu.Unlock()
	if err := still(); err != nil {
		st.End(err)
	}
}

// endDenied ends the streams that the rules no longer allow: of one guest, by its UUID, or all.
func (s *Streams) endDenied(uuid string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, st := range s.byKey {
		if st.over || st.still == nil || uuid != "" && !slices.ContainsFunc(st.of, func(o authz.Resource) bool { return o.Is(uuid) }) {
			continue
		}
		if err := st.still(); err != nil {
			st.End(err)
		}
	}
}

// endAll ends every stream with a running body.
func (s *Streams) endAll(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, st := range s.byKey {
		if !st.over {
			st.End(cause)
		}
	}
}
