package rpc

import (
	"slices"
	"sync"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/control/authz"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
)

// MaxEndedStreams bounds the streams of a client whose body has ended and that the client has not
// finished yet. Some clients never finish a stream; beyond the bound, the oldest are forgotten.
const MaxEndedStreams = 256

type streamKey struct {
	program xdr.Program
	proc    int32
	serial  uint32
}

// Streams are the streams of one client; their lock guards the state of each.
type Streams struct {
	limit int // on streams with a running body

	mu     sync.Mutex
	byKey  map[streamKey]*Stream
	active int         // streams with a running body
	ended  []streamKey // whose body has ended; oldest first
}

// NewStreams makes an empty set of streams; at most limit of them may run.
func NewStreams(limit int) *Streams {
	return &Streams{limit: limit, byKey: map[streamKey]*Stream{}}
}

func keyOf(h xdr.Header) streamKey { return streamKey{h.Program, h.Proc, h.Serial} }

// Open adds the stream of a call. It returns nil for a call without a stream.
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
	if old := s.byKey[key]; old != nil && !old.ended {
		return nil, rpcFault("serial %d belongs to an open stream", h.Serial)
	}
	st := newStream(c, proc, h)
	s.byKey[key] = st
	s.active++
	return st, nil
}

// find returns the stream that a packet is for, or nil.
func (s *Streams) find(f *frame) *Stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byKey[keyOf(f.Header)]
}

// remove forgets a stream; it is called with the lock held.
func (s *Streams) remove(st *Stream) {
	if s.byKey[keyOf(st.header)] != st {
		return
	}
	delete(s.byKey, keyOf(st.header))
	s.free(st)
}

// free ends the count of a stream as one with a running body; it is called with the lock held.
func (s *Streams) free(st *Stream) {
	if !st.released {
		st.released = true
		s.active--
	}
}

// release notes that the body has ended. It is called before the client is told, so that the client can open
// another stream at once.
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

// acceptsData reports whether the body still runs and the client has not finished or aborted the stream.
func (s *Streams) acceptsData(st *Stream) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byKey[keyOf(st.header)] == st && !st.clientDone && !st.ended
}

// clientFinished notes that the client sent its last packet. It reports whether that was the
// first time, and whether the body had ended: then the stream is forgotten.
func (s *Streams) clientFinished(st *Stream, aborted bool) (ended, first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st.clientDone {
		return st.ended, false
	}
	st.clientDone, st.aborted = true, aborted
	if st.ended {
		s.remove(st)
	}
	return st.ended, true
}

// outcome is the packet that a client must get when a stream's body has ended.
type outcome int

const (
	// outcomeLater sends nothing now: the answer follows when the client finishes the stream, if at all.
	outcomeLater outcome = iota
	// outcomeOK answers a client that finished or aborted the stream with an empty OK packet.
	outcomeOK
	// outcomeError sends the client the error that ended the body.
	outcomeError
)

// finish notes that the body has ended with err, and returns what to tell the client.
func (s *Streams) finish(st *Stream, err error) outcome {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byKey[keyOf(st.header)] != st {
		return outcomeLater
	}
	stopped := st.aborted || st.clientDone && st.proc.Stream == xdr.StreamDown
	switch {
	case st.clientDone && (err == nil || stopped):
		s.remove(st)
		return outcomeOK
	case err != nil:
		s.remove(st)
		return outcomeError
	}
	st.ended = true
	s.keepEnded(keyOf(st.header))
	return outcomeLater
}

// keepEnded keeps an ended stream until its client finishes it. Beyond MaxEndedStreams it
// forgets the oldest.
func (s *Streams) keepEnded(key streamKey) {
	s.ended = append(s.ended, key)
	if len(s.ended) <= MaxEndedStreams {
		return
	}
	oldest := s.ended[0]
	s.ended = s.ended[1:]
	if st := s.byKey[oldest]; st != nil && st.ended {
		delete(s.byKey, oldest)
	}
}

// SetRecheck sets the check of a stream against the rules, and makes it once: the rules may have
// changed since the call was authorized, before endDenied could find the stream.
func (s *Streams) SetRecheck(st *Stream, objects []authz.Resource, recheck func() error) {
	if st == nil || recheck == nil {
		return
	}
	s.mu.Lock()
	st.objects, st.recheck = objects, recheck
	s.mu.Unlock()
	if err := recheck(); err != nil {
		st.End(err)
	}
}

// endDenied ends the streams that the rules no longer allow. It checks those on one guest, by its UUID, or all.
func (s *Streams) endDenied(uuid string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, st := range s.byKey {
		if st.ended || st.recheck == nil || uuid != "" && !slices.ContainsFunc(st.objects, func(o authz.Resource) bool { return o.Is(uuid) }) {
			continue
		}
		if err := st.recheck(); err != nil {
			st.End(err)
		}
	}
}

// endAll ends every stream with a running body.
func (s *Streams) endAll(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, st := range s.byKey {
		if !st.ended {
			st.End(cause)
		}
	}
}
