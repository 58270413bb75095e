package agent

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

const (
	// delimiter resets the agent's parser and marks the answer to a
	// synchronisation; no UTF-8 contains it.
	delimiter = 0xff
	// maxDiscarded bounds the bytes that are discarded before that answer; a late answer
	// to another command may be among them.
	maxDiscarded = MaxAnswer
	// maxEchoes bounds the answers to earlier synchronisations among that.
	maxEchoes = 1024
)

var (
	errTooLong = fmt.Errorf("the guest agent's answer is longer than %d MiB", MaxAnswer>>20)
	errRubbish = errors.New("the guest agent sends rubbish without end")
)

// reader takes an agent's bytes apart.
type reader struct{ in *bufio.Reader }

func newReader(r io.Reader) *reader { return &reader{in: bufio.NewReaderSize(r, 4<<10)} }

// line returns the next line that is not empty, of up to limit bytes.
func (r *reader) line(limit int) ([]byte, error) {
	var line []byte
	for {
		part, err := r.in.ReadSlice('\n')
		if len(line)+len(part) > limit {
			return nil, errTooLong
		}
		line = append(line, part...)
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
		case err != nil:
			return nil, err
		case len(bytes.TrimSpace(line)) > 0:
			return bytes.TrimSpace(line), nil
		default:
			line = nil
		}
	}
}

// skipTo throws everything away up to and with the line that is wanted, which
// follows a delimiter and may have blanks in it.
func (r *reader) skipTo(wanted []byte) error {
	skipped, echoes := 0, 0
	for {
		part, err := r.in.ReadSlice(delimiter)
		if skipped += len(part); skipped > maxDiscarded || echoes > maxEchoes {
			return errRubbish
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err != nil {
			return err
		}
		echoes++
		matched, err := r.match(wanted)
		if matched || err != nil {
			return err
		}
	}
}

// match reads as long as the input is the wanted line, and reports
// whether all of it came. Other bytes are left in the buffer.
func (r *reader) match(wanted []byte) (bool, error) {
	const mostBlanks = 64
	blanks := 0
	for {
		b, err := r.in.ReadByte()
		switch {
		case err != nil:
			return false, err
		case b == '\n' && len(wanted) == 0:
			return true, nil
		case (b == ' ' || b == '\r') && blanks < mostBlanks:
			blanks++
		case len(wanted) > 0 && b == wanted[0]:
			wanted = wanted[1:]
		default:
			return false, r.in.UnreadByte()
		}
	}
}
