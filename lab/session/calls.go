package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab/wire"
)

// MaxOutput bounds what Exec keeps of either stream of a program; what is beyond
// is read and dropped.
const MaxOutput = 16 << 20

// Command is a program to run.
type Command struct {
	Argv []string
	Env  []string // added to the agent's own
	Dir  string
	// Stdin may be nil.
	Stdin io.Reader
}

// Result is how a program ended and what it said.
type Result struct {
	Status         int // 128+N when signal N ended it
	Stdout, Stderr []byte
	Dropped        bool // output beyond MaxOutput is missing
}

// Exec runs a program and waits for its end. When ctx ends first, the program is
// killed with its children.
func (s *Session) Exec(ctx context.Context, c Command) (Result, error) {
	call, err := s.open(ctx, wire.Exec, wire.Program{Argv: c.Argv, Env: c.Env, Dir: c.Dir})
	if err != nil {
		return Result{}, err
	}
	go call.feed(c.Stdin)
	var stdout, stderr capture
	var reads sync.WaitGroup
	reads.Go(func() { stdout.read(call.inlets[wire.Output]) })
	reads.Go(func() { stderr.read(call.inlets[wire.Errors]) })
	var exit wire.Exit
	err = call.wait(ctx, &exit)
	reads.Wait()
	return Result{
		Status: exit.Status, Stdout: stdout.kept.Bytes(), Stderr: stderr.kept.Bytes(),
		Dropped: stdout.dropped || stderr.dropped,
	}, err
}

// Run is Exec for a program that must succeed. It gives what the program wrote
// to its standard output.
func (s *Session) Run(ctx context.Context, argv ...string) (string, error) {
	r, err := s.Exec(ctx, Command{Argv: argv})
	if err != nil {
		return "", err
	}
	if r.Status != 0 {
		return "", fault.New(fault.Failed, fault.Agent, "%s in %s ended with status %d: %.2000s", argv[0], s.Guest.Name, r.Status,
			strings.TrimSpace(string(r.Stderr)+string(r.Stdout)))
	}
	return string(r.Stdout), nil
}

// capture keeps the first MaxOutput bytes of a stream.
type capture struct {
	kept    bytes.Buffer
	dropped bool
}

func (c *capture) read(from io.Reader) {
	_, _ = c.kept.ReadFrom(io.LimitReader(from, MaxOutput))
	n, _ := io.Copy(io.Discard, from)
	c.dropped = n > 0
}

// feed sends what the guest is to read, and its end. A reader that fails makes
// the call fail: half a file is none.
func (c *call) feed(from io.Reader) {
	if from != nil {
		if _, err := io.CopyBuffer(c.input, struct{ io.Reader }{from}, make([]byte, wire.MaxPayload)); err != nil {
			if !errors.Is(err, wire.ErrClosed) { // the guest reads no more
				c.abandon(fmt.Errorf("cannot read what is to be sent: %w", err))
			}
			return
		}
	}
	_ = c.input.Close()
}

// Put writes a file in the guest, whole or not at all, with the folders above it.
func (s *Session) Put(ctx context.Context, path string, mode uint32, content io.Reader) error {
	call, err := s.open(ctx, wire.Put, wire.File{Path: path, Mode: mode})
	if err != nil {
		return err
	}
	go call.feed(content)
	return call.wait(ctx, nil)
}

// Get copies a file of the guest.
func (s *Session) Get(ctx context.Context, path string, to io.Writer) error {
	call, err := s.open(ctx, wire.Get, wire.File{Path: path})
	if err != nil {
		return err
	}
	copied := make(chan error, 1)
	go func() {
		_, err := io.CopyBuffer(struct{ io.Writer }{to}, call.inlets[wire.Output], make([]byte, wire.MaxPayload))
		if err != nil {
			call.abandon(err) // or the guest waits for credit for ever
		}
		copied <- err
	}()
	err = call.wait(ctx, nil)
	if failed := <-copied; err == nil && failed != nil {
		err = fault.Wrap(failed, fault.Failed, fault.Agent, "cannot copy %s", path)
	}
	return err
}

// Clock is how the guest's clocks stand to the host's.
type Clock struct {
	// Offset is what the guest's wall clock is ahead of the host's, known to
	// half of RTT: that of the fastest of a few tries.
	Offset, RTT time.Duration
	// Up is the guest's age at the middle of that try, and At the host's time
	// then: how far both move between two looks tells whether the guest's second
	// is one.
	Up     time.Duration
	At     time.Time
	Source string
}

// clockTries is how often Clock asks.
const clockTries = 8

// Clock compares clocks.
func (s *Session) Clock(ctx context.Context) (Clock, error) {
	var best Clock
	for try := range clockTries {
		var there wire.Instant
		sent := time.Now()
		if err := s.ask(ctx, wire.Clock, &there); err != nil {
			return Clock{}, err
		}
		rtt := time.Since(sent)
		if try == 0 || rtt < best.RTT {
			middle := sent.Add(rtt / 2)
			best = Clock{Offset: there.Wall.Sub(middle), RTT: rtt, Up: there.Up, At: middle, Source: there.Source}
		}
	}
	return best, nil
}

// Sample is what the guest's kernel has counted since boot.
type Sample = wire.Usage

// Sample reads the counters.
func (s *Session) Sample(ctx context.Context) (Sample, error) {
	var u Sample
	err := s.ask(ctx, wire.Sample, &u)
	return u, err
}

// Power ends the machine, with its file systems synced. The connection may end
// with it.
func (s *Session) Power(ctx context.Context) error { return s.ask(ctx, wire.Power, nil) }

func (s *Session) ask(ctx context.Context, do string, result any) error {
	call, err := s.open(ctx, do, nil)
	if err != nil {
		return err
	}
	return call.wait(ctx, result)
}
