package qemuprobe

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// startTimeout bounds the start of QEMU for a trial.
const startTimeout = 10 * time.Second

// trialTimeout is how long the trial guest may take. A processor needs a
// twentieth of a second for it; under a KVM that interprets guest code it
// would take minutes. TCG needs a fifth of a second when it has a processor to
// itself; it never hangs, so it may as well wait for a busy host.
func trialTimeout(accelerator string) time.Duration {
	if accelerator == "kvm" {
		return 5 * time.Second
	}
	return 20 * time.Second
}

// trialCode is the end of the trial guest's firmware; trial/trial.S says what
// it does and what its letters mean.
//
//go:embed trial/trial.bin
var trialCode []byte

const (
	trialROM    = 64 << 10      // bytes, ending at 4 GiB
	trialRounds = 64            // dots when all goes well
	trialRound  = 7 * (1 << 18) // instructions for each dot
)

// trial is one run of the trial guest and its result.
type trial struct {
	accelerator, cpu string
	code             []byte // the end of the firmware
	timeout          time.Duration
	// is32Bit is a processor of 32 bits: the trial ends where it would go on in long mode.
	is32Bit bool

	letters string        // output of the guest
	stderr  string        // QEMU's messages on standard error
	end     string        // how it ended, when it did not go well
	took    time.Duration // from the guest's start
}

func (t trial) passed() bool {
	if t.is32Bit {
		return strings.HasSuffix(t.letters, "P")
	}
	return strings.HasSuffix(t.letters, "C")
}

// ran reports whether any guest code ran.
func (t trial) ran() bool { return t.letters != "" }

func newTrial(accelerator, cpu string, narrow bool) trial {
	return trial{accelerator: accelerator, cpu: cpu, code: trialCode, timeout: trialTimeout(accelerator), is32Bit: narrow}
}

// run runs the trial guest once. Real code has to run for it to pass: an
// accelerator that opens, makes a machine and then does not run it is caught,
// and so is one that runs it a thousand times too slowly. An error says that
// there is no verdict.
func (t *trial) run(ctx context.Context, of target) error {
	image := append(bytes.Repeat([]byte{0xff}, trialROM-len(t.code)), t.code...)
	rom, err := memoryFile("trial-rom", image)
	if err != nil {
		return err
	}
	defer func() { _ = rom.Close() }()
	letters, err := memoryFile("trial-letters", nil)
	if err != nil {
		return err
	}
	defer func() { _ = letters.Close() }()

	starting, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	s, err := startQEMU(starting, of, []string{
		"-machine", "q35", "-accel", t.accelerator, "-cpu", t.cpu, "-smp", "1", "-m", "16", "-bios", "/proc/self/fd/4",
		"-chardev", "file,id=letters,path=/proc/self/fd/5", "-device", "isa-debugcon,iobase=0xe9,chardev=letters",
		"-device", "isa-debug-exit,iobase=0xf4,iosize=1",
	}, rom, letters)
	switch {
	case ctx.Err() != nil:
		if err == nil {
			s.kill()
		}
		return context.Cause(ctx)
	case err != nil:
		t.end = err.Error()
		return nil
	}
	running, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	began := time.Now()
	t.end = s.waitForGuest(running)
	t.took = time.Since(began)
	t.stderr = s.kill()
	if ctx.Err() != nil { // cancelled, so there is no verdict
		return context.Cause(ctx)
	}
	t.letters, err = readLetters(letters)
	return err
}

// waitForGuest lets the guest run and waits until it stops in any way.
func (s *probedQEMU) waitForGuest(ctx context.Context) string {
	if err := s.Execute(ctx, "cont", nil, nil); err != nil {
		return err.Error()
	}
	for {
		select {
		case e, ok := <-s.Events():
			switch {
			case !ok:
				return "QEMU ended"
			case e.Name == "STOP":
				return "the guest stopped by an internal error"
			case e.Name == "RESET" || e.Name == "SHUTDOWN":
				return "the guest's processor gave up (triple fault)"
			}
		case <-ctx.Done():
			return "time was up"
		}
	}
}

func readLetters(f *os.File) (string, error) {
	const enough = 256
	text, err := io.ReadAll(io.NewSectionReader(f, 0, enough))
	return string(text), err
}

// String describes the result of the trial, for people.
func (t trial) String() string {
	with := fmt.Sprintf("with -accel %s -cpu %s", t.accelerator, t.cpu)
	if t.passed() {
		return fmt.Sprintf("a trial guest ran %s", with)
	}
	if !t.ran() {
		return fmt.Sprintf("no guest code runs %s: %s", with, t.why())
	}
	return fmt.Sprintf("guest code does not run properly %s: %s, then %s", with, t.reached(), t.why())
}

// why returns the reason why a failed trial ended.
func (t trial) why() string {
	if t.stderr == "" {
		return t.end
	}
	return fmt.Sprintf("%s (QEMU said: %s)", t.end, t.stderr)
}

// reached describes how far the guest got.
func (t trial) reached() string {
	rounds := strings.Count(t.letters, ".")
	switch last := t.letters[len(t.letters)-1]; last {
	case 'R':
		return "it got as far as real mode"
	case 'P':
		return "it got as far as protected mode"
	case 'L':
		return "it got as far as long mode and could not take an exception"
	case 'E':
		return "it took exceptions and could not do ordinary instructions"
	case 'I', '.':
		rate := float64(rounds*trialRound) / 1e6 / max(t.took.Seconds(), 1e-3)
		return fmt.Sprintf("it counted %d of %d rounds, about %.1f million instructions a second", rounds, trialRounds, rate)
	case 'X':
		return "it computed a wrong result"
	default:
		return fmt.Sprintf("it said %q", t.letters)
	}
}
