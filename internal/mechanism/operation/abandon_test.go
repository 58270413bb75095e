package operation

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// tap is an object of two steps: the second one is not answered while its client waits.
type tap struct{ o *tapOwner }

type tapOwner struct {
	giveUp       func()
	made, opened bool
}

var errNoAnswer = errors.New("no answer")

func (w *tap) Steps() []Step {
	return []Step{
		{
			Name: "make", Effect: Boot,
			Do:   func(context.Context) error { w.o.made = true; return nil },
			Undo: func(ctx context.Context) error { w.o.made = false; return ctx.Err() },
		},
		{
			Name: "open", Effect: Boot, Decisive: true,
			Do: func(context.Context) error { w.o.giveUp(); return errNoAnswer },
			Probe: func(context.Context, Gone) (Verdict, error) {
				if w.o.opened {
					return Happened, nil
				}
				return Never, nil
			},
		},
	}
}

// TestRun_AbandonedStep: a client that gives up during a step gets its answer after the operation is settled, if QEMU
// answers. The answer tells what became of it.
func TestRun_AbandonedStep(t *testing.T) {
	for name, c := range map[string]struct {
		drain  error
		opened bool // by QEMU, after the client gave up
		want   error
		state  State
		made   bool
	}{
		"undone":       {want: errNoAnswer, state: Ended},
		"done":         {opened: true, state: Ended, made: true},
		"QEMU hangs":   {drain: errNoAnswer, want: errNoAnswer, state: Unanswered, made: true},
		"and it opens": {drain: errNoAnswer, opened: true, want: errNoAnswer, state: Unanswered, made: true},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, giveUp := context.WithCancelCause(t.Context())
			owner := &tapOwner{giveUp: func() { giveUp(nil) }}
			s := New(Config[*tapOwner]{
				Owner: owner, Kinds: Kinds[*tapOwner]{{Name: "tap", Version: 1, Bind: func(o *tapOwner) Work { return &tap{o} }}},
				Files: FileJournal{Dir: t.TempDir()}, Log: slog.New(slog.DiscardHandler), Life: t.Context(),
				Unanswered: func(err error) bool { return errors.Is(err, errNoAnswer) },
				Drain:      func(context.Context) error { owner.opened = c.opened; return c.drain },
			})
			op, err := s.Begin(scope.Daemon("a test"), "tap", &tap{owner}, Record{})
			if err != nil {
				t.Fatal(err)
			}
			if err := op.Run(ctx); !errors.Is(err, c.want) {
				t.Errorf("the client is answered %v, want %v", err, c.want)
			}
			if got := op.Status().State; got != c.state || owner.made != c.made {
				t.Errorf("the operation is %v and made %t, want %v and %t", got, owner.made, c.state, c.made)
			}
		})
	}
}
