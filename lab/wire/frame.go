package wire

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
)

// Kind says what a frame is.
type Kind uint8

// The kinds of frame. A zero is none.
const (
	Hello   Kind = iota + 1 // host: a session begins; payload Greeting
	Welcome                 // guest: it has begun; payload Greeting
	Call                    // host: opens call ID; payload Request
	Data                    // both: bytes of a stream of a call
	End                     // both: a stream has no more bytes
	Credit                  // both: the reader of a stream has taken that many bytes; payload uint32
	Cancel                  // host: wants no answer of call ID any more
	Reply                   // guest: ends call ID; payload Answer
	Lost                    // guest: bytes were lost, the session is over
)

// Frame is one message.
type Frame struct {
	Kind    Kind
	Stream  uint8
	Epoch   uint32
	ID      uint32
	Payload []byte
}

// The head of a frame: magic 4, kind 1, stream 1, zero 2, epoch 4, call 4,
// payload's length 4, payload's sum 4, sum of the head so far 4.
const (
	headSize = 28
	magic    = 0x4C4C4631 // "LLF1"
)

var table = crc32.MakeTable(crc32.Castagnoli)

// Encode gives the frame's bytes. A payload beyond MaxPayload is a bug of the
// caller.
func (f Frame) Encode() []byte {
	if len(f.Payload) > MaxPayload {
		panic(fmt.Sprintf("wire: frame of %d bytes", len(f.Payload)))
	}
	b := make([]byte, headSize, headSize+len(f.Payload))
	binary.BigEndian.PutUint32(b, magic)
	b[4], b[5] = byte(f.Kind), f.Stream
	binary.BigEndian.PutUint32(b[8:], f.Epoch)
	binary.BigEndian.PutUint32(b[12:], f.ID)
	binary.BigEndian.PutUint32(b[16:], uint32(len(f.Payload)))
	binary.BigEndian.PutUint32(b[20:], crc32.Checksum(f.Payload, table))
	binary.BigEndian.PutUint32(b[24:], crc32.Checksum(b[:24], table))
	return append(b, f.Payload...)
}

// Flush gives bytes that complete any frame that was left half, and are none.
func Flush() []byte { return make([]byte, headSize+MaxPayload) }

// Reader takes frames off a stream.
type Reader struct {
	from *bufio.Reader
	// Skipped counts the bytes that were no part of a frame since the last
	// frame that Next gave.
	Skipped int64
}

// NewReader reads from a stream.
func NewReader(from io.Reader) *Reader {
	return &Reader{from: bufio.NewReaderSize(from, headSize+MaxPayload)}
}

// Next gives the next whole frame, after what is no frame. Its payload is the
// caller's.
func (r *Reader) Next() (Frame, error) {
	r.Skipped = 0
	for {
		head, err := r.from.Peek(headSize)
		if err != nil {
			return Frame{}, err
		}
		if !isHead(head) {
			_, _ = r.from.Discard(1)
			r.Skipped++
			continue
		}
		f := Frame{
			Kind: Kind(head[4]), Stream: head[5],
			Epoch: binary.BigEndian.Uint32(head[8:]), ID: binary.BigEndian.Uint32(head[12:]),
			Payload: make([]byte, binary.BigEndian.Uint32(head[16:])),
		}
		sum := binary.BigEndian.Uint32(head[20:])
		_, _ = r.from.Discard(headSize)
		if _, err := io.ReadFull(r.from, f.Payload); err != nil {
			return Frame{}, err
		}
		if crc32.Checksum(f.Payload, table) == sum {
			return f, nil
		}
		// Flush is long enough to be swallowed here instead of what follows it.
		r.Skipped += int64(headSize + len(f.Payload))
	}
}

func isHead(b []byte) bool {
	return binary.BigEndian.Uint32(b) == magic &&
		binary.BigEndian.Uint32(b[16:]) <= MaxPayload &&
		binary.BigEndian.Uint32(b[24:]) == crc32.Checksum(b[:24], table)
}
