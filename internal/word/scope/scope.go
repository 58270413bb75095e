package scope

import (
	"slices"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// Scope is what a call may do, and for which client. The zero value may do nothing.
type Scope struct {
	granted bool // false: the zero value
	client  string
	reason  string // why the daemon acts without bounds; empty for a client that rules hold
	paths   Paths
	limits  Limits                  // nil: there are none
	also    func(uuid string) error // asked beside the limits; nil: nothing is
	begun   bool                    // the call was authorized already
	noted   map[string][]string     // folders by path, where they are not those of paths
}

// Limits are the rules that hold a client. None of the methods may wait for anything: they are called
// in the loops of guests, too. An error refuses the call before anything is changed.
type Limits interface {
	// Authorize says whether the call may be made of a guest, now that its turn has come: others may
	// have given the guest another name or labels meanwhile.
	Authorize(uuid string) error
	// ReserveGuest takes what a guest will be by a definition. Written are the bytes of it that are kept.
	ReserveGuest(uuid string, def *domain.Definition, written uint64) error
	// ReserveVolume takes one more volume of a pool, by its name.
	ReserveVolume(pool, name string) error
	// ReserveNetwork takes the bytes of all definitions that a network will have, by its name.
	ReserveNetwork(name string, written uint64) error
	// OpenSecret says whether a volume of the pool may be opened with a secret, by the secret's UUID.
	OpenSecret(pool, secret string) error
}

// Daemon is the one scope without bounds: for what the daemon does for no client, and for clients that
// no rules hold. The reason is a few words, such as "autostart"; an empty one gives the zero value.
func Daemon(reason string) Scope {
	return Scope{granted: reason != "", reason: reason, paths: Anywhere}
}

// Client is the scope of a client that rules hold. Without limits it is the zero value.
func Client(name string, p Paths, l Limits) Scope {
	return Scope{granted: l != nil, client: name, paths: p, limits: l}
}

// For has the work count as a client's. Work under an empty name, the daemon's or that of a trusted
// client, is not counted.
func (s Scope) For(client string) Scope {
	s.client = client
	return s
}

// Check refuses the zero value. The first thing that a verb does is to call it, or Authorize.
func (s Scope) Check() error {
	if s.granted {
		return nil
	}
	return fault.New(fault.Denied, fault.Call, "the call carries no scope, so it may do nothing; this is a bug of the daemon: please report it")
}

// String says for which client the call is made, or why the daemon makes it.
func (s Scope) String() string {
	switch {
	case !s.granted:
		return "nothing"
	case s.client != "":
		return s.client
	}
	return "the daemon: " + s.reason
}

// Client names the client; empty: see For.
func (s Scope) Client() string { return s.client }

// Held says whether rules hold the client, or folders its files.
func (s Scope) Held() bool { return s.limits != nil || s.Folders() != nil }

// Limits are those of the client; nil: no rules hold it, or the scope is the zero value.
func (s Scope) Limits() Limits { return s.limits }

// Authorize asks whether the call may be made of a guest now. Owners ask it in their loops, when the
// call's turn has come.
func (s Scope) Authorize(uuid string) error {
	if err := s.Check(); err != nil || s.begun {
		return err
	}
	if s.also != nil { // which asks the limits itself, if it has to
		return s.also(uuid)
	}
	if s.limits == nil {
		return nil
	}
	return s.limits.Authorize(uuid)
}

// Authorizing has Authorize ask another question. The zero value stays one.
func (s Scope) Authorizing(ask func(uuid string) error) Scope {
	s.also = ask
	return s
}

// Begun is the scope of work that was authorized and has begun: it is not asked for again. Paths and
// limits stay.
func (s Scope) Begun() Scope {
	s.begun = true
	return s
}

// ReserveGuest is that of the limits.
func (s Scope) ReserveGuest(uuid string, def *domain.Definition, written uint64) error {
	if err := s.Check(); err != nil || s.limits == nil {
		return err
	}
	return s.limits.ReserveGuest(uuid, def, written)
}

// ReserveVolume is that of the limits.
func (s Scope) ReserveVolume(pool, name string) error {
	if err := s.Check(); err != nil || s.limits == nil {
		return err
	}
	return s.limits.ReserveVolume(pool, name)
}

// ReserveNetwork is that of the limits.
func (s Scope) ReserveNetwork(name string, written uint64) error {
	if err := s.Check(); err != nil || s.limits == nil {
		return err
	}
	return s.limits.ReserveNetwork(name, written)
}

// OpenSecret is that of the limits.
func (s Scope) OpenSecret(pool, secret string) error {
	if err := s.Check(); err != nil || s.limits == nil {
		return err
	}
	return s.limits.OpenSecret(pool, secret)
}

// Paths are the places whose files a call may open. The zero value has none.
type Paths struct {
	anywhere bool
	folders  []string
}

// Anywhere are all places.
var Anywhere = Paths{anywhere: true}

// Below are the folders, by their real paths. Nil, or none, is nowhere.
func Below(folders []string) Paths { return Paths{folders: slices.Clone(folders)} }

// Folders are those that files must lie in, wherever a link or a header leads. Nil: anywhere.
// The zero value has none, and that is not nil.
func (s Scope) Folders() []string {
	switch {
	case !s.granted:
		return []string{}
	case s.paths.anywhere:
		return nil
	}
	return append([]string{}, s.paths.folders...)
}

// Within holds the files of the call to folders, instead of those it was held to before. Nil is no
// folder at all.
func (s Scope) Within(folders []string) Scope {
	s.paths = Below(folders)
	return s
}

// Noting has the files of a guest opened as they were noted: path by path, by the client that brought
// them. Others are held as before. Noted must not change any more.
func (s Scope) Noting(noted map[string][]string) Scope {
	s.noted = noted
	return s
}

// Notes says whether Noting gave any folders.
func (s Scope) Notes() bool { return len(s.noted) > 0 }

// FoldersOf are the folders that a path is held to: as was noted, or those of the call.
func (s Scope) FoldersOf(path string) []string {
	if folders := s.noted[path]; folders != nil && s.granted {
		return folders
	}
	return s.Folders()
}
