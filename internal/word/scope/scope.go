package scope

import (
	"slices"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// Scope is what a call may do, and for which client. The zero value may do nothing.
type Scope struct {
	granted      bool // false: the zero value
	client       string
	reason       string // why the daemon acts without bounds; empty for a client that rules restrict
	paths        Paths
	limits       Limits                  // nil: there are none
	authorize    func(uuid string) error // called instead of the limits' Authorize; nil: see there
	authorized   bool                    // Authorize was asked already
	notedFolders map[string][]string     // folders by path, where they are not those of paths
}

// Limits are the rules that restrict a client. None of the methods may wait for anything, because they are also
// called in the loops of guests. An error refuses the call before it changes anything.
type Limits interface {
	// Authorize refuses the call on a guest if the client may not make it now: since the call came, other
	// clients may have given the guest another name or labels.
	Authorize(uuid string) error
	// ReserveGuest reserves the quota for a guest with a definition. written is the size of the stored definition in
	// bytes.
	ReserveGuest(uuid string, def *domain.Definition, written uint64) error
	// ReserveVolume reserves the quota for one more volume of a pool, by its name.
	ReserveVolume(pool, name string) error
	// ReserveNetwork reserves the quota for a network, by its name. written is the size of all its definitions in
	// bytes.
	ReserveNetwork(name string, written uint64) error
	// OpenSecret refuses to open a volume of the pool with a secret, by its UUID, that the client may not use.
	OpenSecret(pool, secret string) error
}

// Daemon returns the scope without bounds: for work that the daemon does for no client, and for clients that
// no rules restrict. The reason is a few words, such as "autostart"; an empty one gives the zero value.
func Daemon(reason string) Scope {
	return Scope{granted: reason != "", reason: reason, paths: Anywhere}
}

// Client returns the scope of a client that rules restrict. Without limits it is the zero value.
func Client(name string, p Paths, l Limits) Scope {
	return Scope{granted: l != nil, client: name, paths: p, limits: l}
}

// CountedFor returns the scope with the name of the client that the work counts for. Work under an empty name, such
// as that of the daemon or of a trusted client, is not counted.
func (s Scope) CountedFor(client string) Scope {
	s.client = client
	return s
}

// Check refuses the zero value. A verb first calls Check, or Authorize if it acts on a guest outside its loop.
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

// Client returns the name of the client; empty: the work is not counted (see CountedFor).
func (s Scope) Client() string { return s.client }

// IsRestricted says whether rules restrict the client, or its files must lie in folders.
func (s Scope) IsRestricted() bool { return s.limits != nil || s.Folders() != nil }

// Limits returns the limits of the client; nil: no rules restrict it, or the scope is the zero value.
func (s Scope) Limits() Limits { return s.limits }

// Authorize refuses the call on a guest if the client may not make it now. A guest's loop calls it when the call's
// turn has come.
func (s Scope) Authorize(uuid string) error {
	if err := s.Check(); err != nil || s.authorized {
		return err
	}
	if s.authorize != nil { // it calls the Authorize of the limits where that is needed
		return s.authorize(uuid)
	}
	if s.limits == nil {
		return nil
	}
	return s.limits.Authorize(uuid)
}

// WithAuthorize returns the scope with another function for Authorize.
func (s Scope) WithAuthorize(ask func(uuid string) error) Scope {
	s.authorize = ask
	return s
}

// AlreadyAuthorized returns the scope of work that was authorized and has begun: Authorize allows it. Paths and
// quotas stay.
func (s Scope) AlreadyAuthorized() Scope {
	s.authorized = true
	return s
}

// ReserveGuest calls that of the limits; without limits there is no quota.
func (s Scope) ReserveGuest(uuid string, def *domain.Definition, written uint64) error {
	if err := s.Check(); err != nil || s.limits == nil {
		return err
	}
	return s.limits.ReserveGuest(uuid, def, written)
}

// ReserveVolume calls that of the limits; without limits there is no quota.
func (s Scope) ReserveVolume(pool, name string) error {
	if err := s.Check(); err != nil || s.limits == nil {
		return err
	}
	return s.limits.ReserveVolume(pool, name)
}

// ReserveNetwork calls that of the limits; without limits there is no quota.
func (s Scope) ReserveNetwork(name string, written uint64) error {
	if err := s.Check(); err != nil || s.limits == nil {
		return err
	}
	return s.limits.ReserveNetwork(name, written)
}

// OpenSecret calls that of the limits; without limits every secret may be used.
func (s Scope) OpenSecret(pool, secret string) error {
	if err := s.Check(); err != nil || s.limits == nil {
		return err
	}
	return s.limits.OpenSecret(pool, secret)
}

// Paths are the folders whose files a call may open. The zero value has none.
type Paths struct {
	anywhere bool
	folders  []string
}

// Anywhere is every folder.
var Anywhere = Paths{anywhere: true}

// Below returns the paths below some folders, given by their real paths. Without folders no file may be opened.
func Below(folders []string) Paths { return Paths{folders: slices.Clone(folders)} }

// Folders returns the folders in which files must lie, also those that a link or an image's header leads to. Nil:
// anywhere. The zero value returns no folder, as a slice that is not nil.
func (s Scope) Folders() []string {
	switch {
	case !s.granted:
		return []string{}
	case s.paths.anywhere:
		return nil
	}
	return append([]string{}, s.paths.folders...)
}

// Within returns the scope with other folders for its files, in place of the present ones. Nil is no folder.
func (s Scope) Within(folders []string) Scope {
	s.paths = Below(folders)
	return s
}

// WithNotedFolders returns the scope with folders for single paths: those in which the client that named the file
// had to stay. The folders of the call hold for all other paths. noted must not change any more.
func (s Scope) WithNotedFolders(noted map[string][]string) Scope {
	s.notedFolders = noted
	return s
}

// HasNotedFolders says whether there are folders for single paths.
func (s Scope) HasNotedFolders() bool { return len(s.notedFolders) > 0 }

// FoldersFor returns the folders in which a path must lie: those noted for it, or those of the call.
func (s Scope) FoldersFor(path string) []string {
	if folders := s.notedFolders[path]; folders != nil && s.granted {
		return folders
	}
	return s.Folders()
}
