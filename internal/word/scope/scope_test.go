package scope_test

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

var errFull = errors.New("full")

// full is a client that may be authorized and has no room for anything.
type full struct{}

func (full) Authorize(string) error                                { return nil }
func (full) ReserveGuest(string, *domain.Definition, uint64) error { return errFull }
func (full) ReserveVolume(_, _ string) error                       { return errFull }
func (full) ReserveNetwork(string, uint64) error                   { return errFull }
func (full) OpenSecret(_, _ string) error                          { return errFull }

// asked are all questions that a scope answers with an error.
func asked(s scope.Scope) map[string]error {
	return map[string]error{
		"check": s.Check(), "authorize": s.Authorize("uuid"), "guest": s.ReserveGuest("uuid", &domain.Definition{}, 1),
		"volume": s.ReserveVolume("pool", "name"), "network": s.ReserveNetwork("name", 1), "secret": s.OpenSecret("pool", "uuid"),
	}
}

func TestScope_ZeroRefusesEverything(t *testing.T) {
	t.Parallel()
	nothing := map[string][]string{"/a": {"/"}}
	for name, s := range map[string]scope.Scope{
		"zero": {}, "without a reason": scope.Daemon(""), "a client without limits": scope.Client("c", scope.Anywhere, nil),
		"narrowed": scope.Scope{}.CountedFor("c").AlreadyAuthorized().Within([]string{"/"}).WithNotedFolders(nothing).WithAuthorize(func(string) error { return nil }),
		"recorded": scope.Scope{}.Record().Scope(), "no record": scope.Record{Anywhere: true}.Scope(),
	} {
		for question, err := range asked(s) {
			if !fault.Is(err, fault.Denied) {
				t.Errorf("%s: %s gives %v, not a refusal", name, question, err)
			}
		}
		if s.Folders() == nil || len(s.Folders()) > 0 || s.FoldersFor("/a") == nil || len(s.FoldersFor("/a")) > 0 {
			t.Errorf("%s may open files in %v, /a in %v", name, s.Folders(), s.FoldersFor("/a"))
		}
	}
}

func TestDaemon_Unbounded(t *testing.T) {
	t.Parallel()
	s := scope.Daemon("a test")
	for question, err := range asked(s) {
		if err != nil {
			t.Errorf("%s: %v", question, err)
		}
	}
	if s.Folders() != nil || s.FoldersFor("/a") != nil || s.IsRestricted() {
		t.Errorf("it is held to %v", s.Folders())
	}
}

func TestClient_Limits(t *testing.T) {
	t.Parallel()
	s := scope.Client("c", scope.Below([]string{"/own"}), full{})
	for question, err := range asked(s) {
		if want := question != "check" && question != "authorize"; errors.Is(err, errFull) != want {
			t.Errorf("%s: %v", question, err)
		}
	}
	if f := s.FoldersFor("/other"); len(f) != 1 || f[0] != "/own" {
		t.Errorf("it is held to %v", f)
	}
	if f := s.WithNotedFolders(map[string][]string{"/other": {"/theirs"}}).FoldersFor("/other"); len(f) != 1 || f[0] != "/theirs" {
		t.Errorf("a noted path is held to %v", f)
	}
	again := s.WithAuthorize(func(string) error { return errFull })
	if err := again.Authorize("uuid"); !errors.Is(err, errFull) {
		t.Errorf("asked again it says %v", err)
	}
	if err := again.AlreadyAuthorized().Authorize("uuid"); err != nil {
		t.Errorf("work that has begun is refused: %v", err)
	}
}

func TestRecord_Paths(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		s    scope.Scope
		want []string
	}{
		"daemon":  {scope.Daemon("a test"), nil},
		"held":    {scope.Client("c", scope.Below([]string{"/own"}), full{}), []string{"/own"}},
		"nowhere": {scope.Client("c", scope.Paths{}, full{}), []string{}},
	} {
		text, err := json.Marshal(c.s.Record())
		if err != nil {
			t.Fatal(err)
		}
		var r scope.Record
		if err := json.Unmarshal(text, &r); err != nil {
			t.Fatal(err)
		}
		s := r.Scope()
		if got := s.Folders(); (got == nil) != (c.want == nil) || len(got) != len(c.want) || s.Client() != c.s.Client() {
			t.Errorf("%s: it is %q held to %v, from %s", name, s.Client(), got, text)
		}
		for question, err := range asked(s) {
			if err != nil {
				t.Errorf("%s: %s: %v", name, question, err)
			}
		}
	}
}
