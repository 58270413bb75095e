package secret

import (
	"bytes"
	"cmp"
	"errors"
	"log/slog"
	"os"
	"slices"
	"sync"

	"github.com/google/uuid"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/store"
	"github.com/lodge-kvm/lodge/internal/word/event"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// MaxValue bounds a value in bytes: the longest that libvirt's protocol carries.
const MaxValue = 65536

// maxSecrets bounds the number of secrets: the longest list of libvirt's protocol.
const maxSecrets = 16384

// Config says where secrets are stored and where events go.
type Config struct {
	Store  *store.Store
	Key    string // file of the key; made with mode 0600 on first use
	Events *event.Log
	Log    *slog.Logger
}

// recordKind is the record of a secret; its key is the UUID.
var recordKind = store.Kind{Name: "secret", Version: 1}

// record is the stored form of a secret that may be on disk.
type record struct {
	Definition Definition `json:"definition"`
	Sealed     []byte     `json:"sealed,omitempty"`
}

// Secrets is all secrets of a daemon. Its methods may be called concurrently.
type Secrets struct {
	Config

	ephemeralKey *key // seals ephemeral secrets

	// changing serializes changes. It is held during writes to the store; mu is not.
	changing sync.Mutex
	diskKey  *key // seals secrets on disk; nil until first use, guarded by changing

	mu  sync.RWMutex
	all map[string]record // by UUID; records are replaced, never changed
}

// Open reads the secrets. A damaged record is logged and left out: it must not prevent the daemon from serving
// running guests.
func Open(c Config) (*Secrets, error) {
	s := &Secrets{Config: c, all: map[string]record{}}
	var err error
	if s.ephemeralKey, err = newEphemeralKey(); err != nil {
		return nil, err
	}
	err = c.Store.Each(recordKind, func(id string, decode func(any) error) error {
		var r record
		if err := decode(&r); err != nil || r.Definition.UUID != id {
			c.Log.Error("cannot read a secret; it is left out", "uuid", id, "error", err)
			return nil
		}
		s.all[id] = r
		return nil
	})
	if err != nil {
		c.Log.Error("cannot read the secrets; none is known", "error", err)
	}
	return s, nil
}

// Close discards the keys. Later requests for a value, such as from work on a file system that hangs, get an
// error.
func (s *Secrets) Close() {
	s.changing.Lock()
	defer s.changing.Unlock()
	s.ephemeralKey.close()
	if s.diskKey != nil {
		s.diskKey.close()
	}
}

// List returns the secrets by UUID.
func (s *Secrets) List() []Definition {
	s.mu.RLock()
	defer s.mu.RUnlock()
	all := make([]Definition, 0, len(s.all))
	for _, r := range s.all {
		all = append(all, r.Definition)
	}
	slices.SortFunc(all, func(x, y Definition) int { return cmp.Compare(x.UUID, y.UUID) })
	return all
}

// ByUUID returns the secret with a UUID (lower case, with dashes).
func (s *Secrets) ByUUID(id string) (Definition, error) {
	r, err := s.record(id)
	return r.Definition, err
}

func (s *Secrets) record(id string) (record, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	r, ok := s.all[id]
	if !ok {
		return record{}, fault.New(fault.NotFound, fault.Secret, "no secret with matching uuid '%s'", id)
	}
	return r, nil
}

// ByUsage returns the secret with a usage.
func (s *Secrets) ByUsage(u Usage) (Definition, error) {
	if r, ok := s.recordByUsage(u); ok {
		return r.Definition, nil
	}
	return Definition{}, fault.New(fault.NotFound, fault.Secret, "no secret with matching usage '%s'", u)
}

func (s *Secrets) recordByUsage(u Usage) (record, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, r := range s.all {
		if u.Type != "" && r.Definition.Usage == u {
			return r, true
		}
	}
	return record{}, false
}

// Define makes a secret, or changes an existing one. The usage cannot change, and a private secret stays
// private. The value stays, too.
func (s *Secrets) Define(sc scope.Scope, doc string, strict bool) (Definition, error) {
	if err := sc.Check(); err != nil {
		return Definition{}, err
	}
	d, err := Parse(doc, strict)
	if err != nil {
		return Definition{}, err
	}
	s.changing.Lock()
	defer s.changing.Unlock()
	before, err := s.findReplaced(&d)
	if err != nil {
		return Definition{}, err
	}
	next := record{Definition: d, Sealed: before.Sealed}
	if before.Sealed != nil && before.Definition.Ephemeral != d.Ephemeral {
		if next.Sealed, err = s.reseal(before, d); err != nil {
			return Definition{}, err
		}
	}
	if err := s.storeRecord(next); err != nil {
		return Definition{}, err
	}
	s.emit(d, event.SecretChange{Change: event.Defined})
	return d, nil
}

// findReplaced finds the secret that a definition replaces, and gives a new one a UUID.
func (s *Secrets) findReplaced(d *Definition) (record, error) {
	other, used := s.recordByUsage(d.Usage)
	if d.UUID == "" && !used {
		d.UUID = uuid.NewString()
	}
	if used && other.Definition.UUID != d.UUID {
		return record{}, fault.New(fault.Exists, fault.Secret, "a secret with UUID %s is already defined for use with %s", other.Definition.UUID, d.Usage)
	}
	before, err := s.record(d.UUID)
	switch {
	case err != nil && len(s.List()) >= maxSecrets:
		return record{}, fault.New(fault.NoCapacity, fault.Secret, "there are already %d secrets, the maximum; undefine one", maxSecrets)
	case err != nil:
		return record{}, nil
	case before.Definition.Usage != d.Usage:
		return record{}, fault.New(fault.Exists, fault.Secret, "a secret with UUID %s is already defined for use with %s", d.UUID, before.Definition.Usage)
	case before.Definition.Private && !d.Private:
		return record{}, fault.New(fault.Denied, fault.Secret, "cannot change private flag on existing secret: clients could then read a value that was hidden from them; undefine it first")
	}
	return before, nil
}

// reseal seals the value of a secret that becomes ephemeral or stops being ephemeral.
func (s *Secrets) reseal(before record, d Definition) ([]byte, error) {
	value, err := s.unseal(before)
	if err != nil {
		return nil, err
	}
	defer clear(value)
	return s.seal(d, value)
}

// storeRecord stores a record, on disk if it may be there.
func (s *Secrets) storeRecord(r record) error {
	d := r.Definition
	if d.Ephemeral {
		if err := s.Store.Delete(recordKind, d.UUID); err != nil {
			return err
		}
	} else if err := s.Store.Put(recordKind, d.UUID, r); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[d.UUID] = r
	return nil
}

// Undefine removes a secret and its value.
func (s *Secrets) Undefine(sc scope.Scope, id string) error {
	if err := sc.Check(); err != nil {
		return err
	}
	s.changing.Lock()
	defer s.changing.Unlock()
	r, err := s.record(id)
	if err != nil {
		return err
	}
	if err := s.Store.Delete(recordKind, id); err != nil {
		return err
	}
	s.mu.Lock()
	delete(s.all, id)
	s.mu.Unlock()
	s.emit(r.Definition, event.SecretChange{Change: event.Undefined})
	return nil
}

// SetValue sets a secret's value. The caller keeps the slice and clears it.
func (s *Secrets) SetValue(sc scope.Scope, id string, value []byte) error {
	if err := sc.Check(); err != nil {
		return err
	}
	if len(value) > MaxValue {
		return fault.New(fault.Invalid, fault.Secret, "a secret has at most %d bytes", MaxValue)
	}
	s.changing.Lock()
	defer s.changing.Unlock()
	r, err := s.record(id)
	if err != nil {
		return err
	}
	if r.Sealed, err = s.seal(r.Definition, value); err != nil {
		return err
	}
	if err := s.storeRecord(r); err != nil {
		return err
	}
	s.emit(r.Definition, event.SecretValue{})
	return nil
}

// Value returns a secret's value for the daemon's own use, for a guest or an image. The caller clears it after
// use.
func (s *Secrets) Value(id string) ([]byte, error) {
	s.changing.Lock()
	defer s.changing.Unlock()
	r, err := s.record(id)
	if err != nil {
		return nil, err
	}
	return s.unseal(r)
}

// Show returns a secret's value to a client, unless it is private.
func (s *Secrets) Show(sc scope.Scope, id string) ([]byte, error) {
	if err := sc.Check(); err != nil {
		return nil, err
	}
	d, err := s.ByUUID(id)
	if err != nil {
		return nil, err
	}
	if d.Private {
		return nil, fault.New(fault.Denied, fault.Secret, "secret is private")
	}
	return s.Value(id)
}

func (s *Secrets) seal(d Definition, value []byte) ([]byte, error) {
	k := s.ephemeralKey
	if !d.Ephemeral {
		var err error
		if k, err = s.loadDiskKey(true); err != nil {
			return nil, err
		}
	}
	sealed, err := k.seal(d.UUID, value)
	return sealed, fault.Wrap(err, fault.Failed, fault.Secret, "cannot seal the value of secret %s", d.UUID)
}

func (s *Secrets) unseal(r record) ([]byte, error) {
	d := r.Definition
	if r.Sealed == nil {
		return nil, fault.New(fault.NotFound, fault.Secret, "secret '%s' does not have a value", d.UUID)
	}
	k := s.ephemeralKey
	if !d.Ephemeral {
		var err error
		if k, err = s.loadDiskKey(false); err != nil {
			return nil, err
		}
	}
	value, err := k.open(d.UUID, r.Sealed)
	return value, fault.Wrap(err, fault.Failed, fault.Secret, "cannot decrypt the value of secret %s: it is damaged, or %s is not the key that encrypted it; set the value again", d.UUID, s.Key)
}

// loadDiskKey returns the key of the values on disk, to seal or to open one. For sealing, the next daemon must
// find the same key: a missing key file is made, unless its key has sealed values already.
func (s *Secrets) loadDiskKey(seals bool) (*key, error) {
	if s.diskKey != nil {
		return s.diskKey, s.ensureKeyFile(seals)
	}
	k, err := readKey(s.Key)
	if errors.Is(err, os.ErrNotExist) && seals {
		if id := s.findSealed(); id != "" {
			return nil, fault.New(fault.Failed, fault.Secret, "the key file %s is missing, and the value of secret %s and perhaps others are encrypted with it; restore it from a backup, or undefine the secrets that have values", s.Key, id)
		}
		k, err = makeKey(s.Key)
	}
	if err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Secret, "cannot use the key of secrets")
	}
	s.diskKey = k
	return k, nil
}

// ensureKeyFile ensures that the next daemon finds the key that this one uses: the file may have been removed or
// replaced. Values stay readable while this daemon runs.
func (s *Secrets) ensureKeyFile(seals bool) error {
	if s.diskKey.page == nil { // the daemon is ending
		return nil
	}
	there, err := readKey(s.Key)
	if errors.Is(err, os.ErrNotExist) {
		if err = s.diskKey.write(s.Key); err == nil {
			s.Log.Error("key file of secrets was removed; it is written again", "file", s.Key)
		}
	} else if err == nil {
		if !bytes.Equal(there.page[:keySize], s.diskKey.page[:keySize]) {
			err = fault.New(fault.Failed, fault.Secret, "%s is not the key that this daemon started with; restart the daemon to use it, or remove it to keep this daemon's key", s.Key)
		}
		there.close()
	}
	if err == nil {
		return nil
	}
	if seals {
		return fault.Wrap(err, fault.Failed, fault.Secret, "cannot store the key of secrets")
	}
	s.Log.Error("the next daemon will not have the key of secrets", "error", err)
	return nil
}

// findSealed returns the UUID of a secret with a value encrypted by the key on disk; empty: none.
func (s *Secrets) findSealed() string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for id, r := range s.all {
		if r.Sealed != nil && !r.Definition.Ephemeral {
			return id
		}
	}
	return ""
}

func (s *Secrets) emit(d Definition, p event.Payload) {
	switch change := p.(type) {
	case event.SecretChange:
		change.Usage, change.For = d.Usage.Type, d.Usage.ID
		p = change
	case event.SecretValue:
		change.Usage, change.For = d.Usage.Type, d.Usage.ID
		p = change
	}
	s.Events.Append(event.Source{Name: d.UUID, UUID: d.UUID, ID: -1}, p)
}
