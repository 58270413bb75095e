package fault

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os/exec"
	"syscall"
	"testing"
)

func TestOf_OutermostKind(t *testing.T) {
	inner := New(NotFound, Volume, "no volume %q", "root.qcow2")
	outer := Wrap(inner, Invalid, Config, "cannot start %q", "web1")
	err := fmt.Errorf("cannot answer: %w", outer)
	if Of(err) != Invalid || About(err) != Config {
		t.Fatalf("got %v/%v, want invalid/config", Of(err), About(err))
	}
	if got, want := err.Error(), `cannot answer: cannot start "web1": no volume "root.qcow2"`; got != want {
		t.Fatalf("text %q, want %q", got, want)
	}
}

func TestOf_PlainErrors(t *testing.T) {
	for _, c := range []struct {
		err  error
		want Kind
	}{
		{fmt.Errorf("waiting: %w", context.DeadlineExceeded), Timeout},
		{fmt.Errorf("waiting: %w", context.Canceled), Aborted},
		{fmt.Errorf("cannot write: %w", &fs.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC}), Failed},
		{io.ErrUnexpectedEOF, Internal},
	} {
		if got := Of(c.err); got != c.want {
			t.Errorf("Of(%v) = %v, want %v", c.err, got, c.want)
		}
	}
	if Is(nil, Internal) {
		t.Error("a nil error has a kind")
	}
}

func TestWrap_CauseAndNil(t *testing.T) {
	if Wrap(nil, Failed, Host, "x") != nil {
		t.Fatal("wrapping nil made an error")
	}
	if !errors.Is(Wrap(io.EOF, Failed, Host, "cannot read"), io.EOF) {
		t.Fatal("the cause is lost")
	}
}

func TestString_EveryKindAndSubject(t *testing.T) {
	if len(kindNames) != int(Failed)+1 || len(subjectNames) != int(File)+1 {
		t.Fatal("a kind or subject has no name")
	}
}

// TestWord_OneShellWord makes a shell split the words.
// Promise: X10
func TestWord_OneShellWord(t *testing.T) {
	for _, name := range []string{"", "web-1", "/srv/a b", "x;id", "$(id)", "`id`", "it's", `a\'b"c`, "a\nb", "*", "~", "#", "ä"} {
		out, err := exec.CommandContext(t.Context(), "/bin/sh", "-c", `set -- `+Word(name)+`; printf '%s/%s' $# "$1"`).Output()
		if want := "1/" + name; err != nil || string(out) != want {
			t.Errorf("%q is %q to a shell, %v", name, out, err)
		}
	}
	if got := Word("/srv/a,b=c"); got != "/srv/a,b=c" {
		t.Errorf("a plain path is %s", got)
	}
}
