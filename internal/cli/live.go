package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"
)

// look is what the daemon answered when it was asked.
type look[T any] struct {
	answer T
	err    error
}

// looks asks the daemon every so often, until ctx ends or a question fails. The questions have a goroutine of their own,
// so that keys work while the daemon does not answer.
func looks[T any](ctx context.Context, every time.Duration, ask func(context.Context) (T, error)) <-chan look[T] {
	looks := make(chan look[T])
	go func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			answer, err := ask(ctx)
			select {
			case looks <- look[T]{answer, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	return looks
}

// leaves reports whether a key ends a live table. The terminal passes ctrl-C and ctrl-D on as they are.
func leaves(key byte) bool { return key == 'q' || key == 3 || key == 4 }

// takeScreen gives a live table a screen of its own, without a cursor. The caller calls giveBack at the end.
func takeScreen(out io.Writer) (giveBack func()) {
	fmt.Fprint(out, "\x1b[?1049h\x1b[?25l")
	return func() { fmt.Fprint(out, "\x1b[?25h\x1b[?1049l") }
}

// paint draws a frame over the one before.
func paint(out io.Writer, lines []string, width, height int) {
	if rest := len(lines) - (height - 1); rest > 0 {
		lines = append(lines[:max(height-2, 0)], fmt.Sprintf("… and %d more", rest+1))
	}
	var screen strings.Builder
	screen.WriteString("\x1b[H")
	for _, line := range lines {
		screen.WriteString(cut(line, width))
		screen.WriteString("\x1b[K\r\n")
	}
	screen.WriteString("\x1b[J")
	fmt.Fprint(out, screen.String())
}
