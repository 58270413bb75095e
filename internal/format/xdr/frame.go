package xdr

import (
	"encoding/binary"
	"slices"
)

// Program is the number of a group of procedures.
type Program uint32

// The programs of version 1. LXC and Admin are listed so that the refusal can name
// them; their calls are not in the table.
const (
	ProgramRemote    Program = 0x20008086
	ProgramQEMU      Program = 0x20008087
	ProgramLXC       Program = 0x00068000
	ProgramKeepalive Program = 0x6b656570
	ProgramAdmin     Program = 0x06900690

	// Version is the version of each of them.
	Version = 1
)

func (p Program) String() string {
	switch p {
	case ProgramRemote:
		return "remote"
	case ProgramQEMU:
		return "qemu"
	case ProgramLXC:
		return "lxc"
	case ProgramKeepalive:
		return "keepalive"
	case ProgramAdmin:
		return "admin"
	}
	return "unknown"
}

// Keepalive procedures. Both are packets of TypeMessage without payload. The answer
// to a ping is a pong.
const (
	ProcKeepalivePing = 1
	ProcKeepalivePong = 2
)

// Type is the type of a packet.
type Type uint32

// The types of packet.
const (
	TypeCall         Type = 0 // client to server
	TypeReply        Type = 1 // server to client, with the call's serial
	TypeMessage      Type = 2 // an event or a keepalive; serial 0
	TypeStream       Type = 3 // data or end of the stream opened by (Proc, Serial)
	TypeCallWithFDs  Type = 4 // as TypeCall, with descriptors after it
	TypeReplyWithFDs Type = 5 // as TypeReply, with descriptors after it
	TypeStreamHole   Type = 6 // a hole in a sparse stream
)

// Status is the status of a reply or a stream packet.
type Status uint32

// The statuses.
const (
	StatusOK       Status = 0 // payload is the result; on a stream: finished
	StatusError    Status = 1 // payload is a NetError; from a client on a stream: empty, abort
	StatusContinue Status = 2 // stream data; empty means end of data
)

// Sizes and bounds of the framing, in bytes unless said otherwise.
const (
	LengthSize = 4                                   // the length word, which counts itself
	HeaderSize = 24                                  // the six words behind it
	MaxPacket  = 32<<20 + LengthSize                 // largest value of the length word
	MaxPayload = MaxPacket - LengthSize - HeaderSize // largest payload of any packet
	MaxString  = 4 << 20                             // longest string
	MaxFDs     = 32                                  // descriptors with one packet
	StreamData = 262120                              // payload that libvirt's own streams send at a time
)

// Header is the six words in front of every payload.
type Header struct {
	Program Program
	Version uint32
	Proc    int32
	Type    Type
	Serial  uint32
	Status  Status
}

// Append appends the header to b.
func (h Header) Append(b []byte) []byte {
	w := writer{b: b}
	w.uint32(uint32(h.Program))
	w.uint32(h.Version)
	w.int32(h.Proc)
	w.uint32(uint32(h.Type))
	w.uint32(h.Serial)
	w.uint32(uint32(h.Status))
	return w.b
}

// ParseHeader decodes the header at the start of b, which must have HeaderSize bytes.
func ParseHeader(b []byte) (Header, error) {
	if len(b) < HeaderSize {
		return Header{}, invalid("header: needs %d bytes and has %d", HeaderSize, len(b))
	}
	word := func(i int) uint32 { return binary.BigEndian.Uint32(b[4*i:]) }
	return Header{
		Program: Program(word(0)), Version: word(1), Proc: int32(word(2)),
		Type: Type(word(3)), Serial: word(4), Status: Status(word(5)),
	}, nil
}

// CheckLength checks a length word before anything is read or allocated for
// it, and returns the number of bytes that follow the word.
func CheckLength(word uint32) (int, error) {
	if word < LengthSize+HeaderSize || word > MaxPacket {
		return 0, invalid("packet length %d is not within %d and %d", word, LengthSize+HeaderSize, MaxPacket)
	}
	return int(word) - LengthSize, nil
}

// large is a message that may be so long that its buffer is allocated at once. size
// returns about its length on the wire.
type large interface{ size() int }

func (m *ConnectGetAllDomainStatsRet) size() int {
	n := 64
	for i := range m.Stats {
		n += m.Stats[i].Size()
	}
	return n
}

// Size is about the record's length on the wire, and no less.
func (m *DomainStatsRecord) Size() int {
	n := 48 + len(m.Domain.Name)
	for i := range m.Params {
		n += m.Params[i].Size()
	}
	return n
}

// Size is that of one parameter.
func (p *TypedParam) Size() int { return 20 + len(p.Field) + len(p.Value.text) }

// AppendPacket appends a whole packet to b: length, header and payload. A nil
// payload is an empty one. For the two types with descriptors it writes fds, the
// number of descriptors that follow the packet, before the payload.
func AppendPacket(b []byte, h Header, payload Message, fds int) ([]byte, error) {
	start := len(b)
	b = h.Append(append(b, 0, 0, 0, 0))
	var err error
	if h.Type == TypeCallWithFDs || h.Type == TypeReplyWithFDs {
		if fds > MaxFDs {
			return b[:start], invalid("descriptors: %d are over the limit of %d", fds, MaxFDs)
		}
		b = binary.BigEndian.AppendUint32(b, uint32(fds))
	}
	if large, ok := payload.(large); ok {
		b = slices.Grow(b, min(large.size(), MaxPacket))
	}
	if payload != nil {
		if b, err = payload.Append(b); err != nil {
			return b[:start], err
		}
	}
	return seal(b, start)
}

// CutFDs splits the payload of a packet with descriptors into their number and the
// rest.
func CutFDs(payload []byte) (fds int, rest []byte, err error) {
	r := NewReader(payload)
	n := r.Count("descriptors", MaxFDs, 0)
	return n, payload[r.off:], r.err
}

// AppendRaw is AppendPacket for a payload that is bytes, as streams have.
func AppendRaw(b []byte, h Header, payload []byte) ([]byte, error) {
	start := len(b)
	b = h.Append(append(b, 0, 0, 0, 0))
	return seal(append(b, payload...), start)
}

func seal(b []byte, start int) ([]byte, error) {
	n := len(b) - start
	if n > MaxPacket {
		return b[:start], invalid("packet of %d bytes is over the limit of %d", n, MaxPacket)
	}
	binary.BigEndian.PutUint32(b[start:], uint32(n))
	return b, nil
}
