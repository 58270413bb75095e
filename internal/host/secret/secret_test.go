package secret

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/store"
	"github.com/lodge-kvm/lodge/internal/word/event"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

const (
	diskUUID = "11111111-2222-3333-4444-555555555555"
	value    = "correct horse battery staple"
)

// shelf is a data directory with secrets that can be closed and reopened.
type shelf struct {
	t    *testing.T
	dir  string
	kept *store.Store
	*Secrets
}

func open(t *testing.T) *shelf {
	t.Helper()
	s := &shelf{t: t, dir: t.TempDir()}
	s.reopen()
	t.Cleanup(s.close)
	return s
}

func (s *shelf) close() {
	s.Close()
	if err := s.kept.Close(); err != nil {
		s.t.Error(err)
	}
}

func (s *shelf) reopen() {
	s.t.Helper()
	var err error
	if s.kept, err = store.Open(s.dir); err != nil {
		s.t.Fatal(err)
	}
	s.Secrets, err = Open(Config{Store: s.kept, Key: filepath.Join(s.dir, "secret.key"), Events: event.NewLog(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		s.t.Fatal(err)
	}
}

// define defines a secret for a volume and sets its value.
func (s *shelf) define(attrs, path string) string {
	s.t.Helper()
	d, err := s.Define(scope.Daemon("a test"), `<secret `+attrs+`><usage type='volume'><volume>`+path+`</volume></usage></secret>`, true)
	if err != nil {
		s.t.Fatal(err)
	}
	if err := s.SetValue(scope.Daemon("a test"), d.UUID, []byte(value)); err != nil {
		s.t.Fatal(err)
	}
	return d.UUID
}

func (s *shelf) holds(id string) {
	s.t.Helper()
	if got, err := s.Value(id); err != nil || string(got) != value {
		s.t.Errorf("the value is %q (%v)", got, err)
	}
}

// Promise: K1
func TestSecrets_ValuesOutliveDaemonUnlessEphemeral(t *testing.T) {
	s := open(t)
	lasting, passing := s.define("private='yes'", "/a"), s.define("ephemeral='yes'", "/b")
	s.holds(lasting)
	s.holds(passing)
	s.close()
	s.reopen()
	s.holds(lasting)
	if _, err := s.ByUUID(passing); !fault.Is(err, fault.NotFound) {
		t.Errorf("the ephemeral secret is still known: %v", err)
	}
}

// A request for a value while the daemon ends, such as from work that a file system delayed, gets an error.
func TestValue_AfterClose(t *testing.T) {
	s := open(t)
	lasting, passing := s.define("", "/a"), s.define("ephemeral='yes'", "/b")
	s.Close()
	for _, id := range []string{lasting, passing} {
		if v, err := s.Value(id); !fault.Is(err, fault.Failed) {
			t.Errorf("%q, %v", v, err)
		}
	}
}

// TestSecrets_NoClearTextOnDisk: no file contains the value, or anything of an ephemeral secret, and only root
// can read the key.
//
// Promise: K1
func TestSecrets_NoClearTextOnDisk(t *testing.T) {
	s := open(t)
	s.define("", "/a")
	ephemeral := s.define("ephemeral='yes'", "/b")
	err := filepath.WalkDir(s.dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		for _, leak := range []string{value, "Y29ycmVjdCBob3JzZSBiYXR0ZXJ5IHN0YXBsZQ", ephemeral} {
			if bytes.Contains(text, []byte(leak)) {
				t.Errorf("%s holds %q", path, leak)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(s.Key)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key's file: %v %v", info, err)
	}
}

func TestDefine_EphemeralChanged(t *testing.T) {
	s := open(t)
	id := s.define("ephemeral='yes'", "/a")
	redefine := func(attrs string) {
		t.Helper()
		if _, err := s.Define(scope.Daemon("a test"), `<secret `+attrs+`><uuid>`+id+`</uuid><usage type='volume'><volume>/a</volume></usage></secret>`, false); err != nil {
			t.Fatal(err)
		}
		s.holds(id)
	}
	redefine("ephemeral='no'")
	s.close()
	s.reopen()
	s.holds(id)
	redefine("ephemeral='yes'")
	s.close()
	s.reopen()
	if _, err := s.ByUUID(id); !fault.Is(err, fault.NotFound) {
		t.Errorf("what became ephemeral stayed on disk: %v", err)
	}
}

// Promise: K2
func TestDefine_Refused(t *testing.T) {
	s := open(t)
	private := s.define("private='yes'", "/a")
	if _, err := s.Show(scope.Daemon("a test"), private); !fault.Is(err, fault.Denied) {
		t.Errorf("a client is shown a private secret: %v", err)
	}
	for _, c := range []struct {
		doc  string
		want fault.Kind
	}{
		{"<secret><uuid>" + private + "</uuid><usage type='volume'><volume>/a</volume></usage></secret>", fault.Denied}, // no longer private
		{"<secret private='yes'><uuid>" + private + "</uuid></secret>", fault.Exists},                                   // the usage is taken
		{"<secret><usage type='volume'><volume>/a</volume></usage></secret>", fault.Exists},
		{"<secret><usage type='volume'/></secret>", fault.Invalid},
		{"<secret><usage type='door'><name>a</name></usage></secret>", fault.Invalid},
		{"<secret private='perhaps'/>", fault.Invalid},
		{"<secret><uuid>nonsense</uuid></secret>", fault.Invalid},
		{"<secret><colour>red</colour></secret>", fault.Invalid},
		{"<domain/>", fault.Invalid},
		{"<secret", fault.Invalid},
	} {
		if _, err := s.Define(scope.Daemon("a test"), c.doc, true); !fault.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.doc, err, c.want)
		}
	}
	if err := s.SetValue(scope.Daemon("a test"), private, make([]byte, MaxValue+1)); !fault.Is(err, fault.Invalid) {
		t.Errorf("a value that is too long: %v", err)
	}
	if err := s.SetValue(scope.Daemon("a test"), diskUUID, nil); !fault.Is(err, fault.NotFound) {
		t.Errorf("a value for a missing secret: %v", err)
	}
	s.holds(private)
}

// TestSecrets_Damage: a key that is missing, truncated or readable by others, or a damaged record, costs the
// values and not the daemon.
//
// Promise: K3
func TestSecrets_Damage(t *testing.T) {
	for name, damage := range map[string]func(key string) error{
		"lost":   os.Remove,
		"cut":    func(key string) error { return os.Truncate(key, 5) },
		"open":   func(key string) error { return os.Chmod(key, 0o644) },
		"other":  func(key string) error { return os.WriteFile(key, bytes.Repeat([]byte{7}, keySize), 0o600) },
		"folder": func(key string) error { return os.Rename(filepath.Dir(key)+"/folder", key) },
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			id := s.define("", "/a")
			s.close()
			if err := os.Mkdir(filepath.Join(s.dir, "folder"), 0o700); err != nil {
				t.Fatal(err)
			}
			if name == "folder" {
				_ = os.Remove(s.Key)
			}
			if err := damage(s.Key); err != nil {
				t.Fatal(err)
			}
			s.reopen()
			_, err := s.Value(id)
			if !fault.Is(err, fault.Failed) || !strings.Contains(err.Error(), "secret.key") {
				t.Errorf("the value can be had, or the error names no file: %v", err)
			}
			ephemeral := s.define("ephemeral='yes'", "/b")
			s.holds(ephemeral)
		})
	}
}

// TestSecrets_KeyFileRemoved: the key file is written again while the daemon has the key, and a key that has
// encrypted values is never replaced.
//
// Promise: K3
func TestSecrets_KeyFileRemoved(t *testing.T) {
	s := open(t)
	id := s.define("", "/a")
	for _, use := range []func() error{
		func() error { _, err := s.Value(id); return err },
		func() error { return s.SetValue(scope.Daemon("a test"), id, []byte(value)) },
	} {
		if err := errors.Join(os.Remove(s.Key), use()); err != nil {
			t.Fatal(err)
		}
		s.close()
		s.reopen()
		s.holds(id)
	}

	away := s.Key + ".away"
	if err := errors.Join(os.Rename(s.Key, away), os.WriteFile(s.Key, bytes.Repeat([]byte{7}, keySize), 0o600)); err != nil {
		t.Fatal(err)
	}
	s.holds(id)
	if err := s.SetValue(scope.Daemon("a test"), id, []byte("x")); err == nil || !strings.Contains(err.Error(), "not the key") {
		t.Errorf("a value is sealed that the next daemon cannot open: %v", err)
	}
	s.close()
	if err := os.Remove(s.Key); err != nil {
		t.Fatal(err)
	}
	s.reopen()
	if err := s.SetValue(scope.Daemon("a test"), id, []byte("x")); err == nil || !strings.Contains(err.Error(), "restore it") {
		t.Errorf("another key takes the place of the one that has gone: %v", err)
	}
	if err := os.Rename(away, s.Key); err != nil {
		t.Fatal(err)
	}
	s.holds(id)
	if err := errors.Join(s.Undefine(scope.Daemon("a test"), id), os.Remove(s.Key)); err != nil {
		t.Fatal(err)
	}
	s.close()
	s.reopen()
	s.holds(s.define("", "/b"))
}

// Promise: K3
func TestOpen_DamagedRecord(t *testing.T) {
	s := open(t)
	id := s.define("", "/a")
	if err := s.kept.Put(recordKind, diskUUID, "nonsense"); err != nil {
		t.Fatal(err)
	}
	s.close()
	s.reopen()
	s.holds(id)
	if n := len(s.List()); n != 1 {
		t.Errorf("%d secrets are known", n)
	}
}

// TestValue_SwappedBetweenSecrets: an attacker who can write the store cannot make the daemon use another
// secret's value for a guest's disk.
func TestValue_SwappedBetweenSecrets(t *testing.T) {
	s := open(t)
	a, b := s.define("private='yes'", "/a"), s.define("", "/b")
	stolen := s.all[b]
	stolen.Sealed = s.all[a].Sealed
	s.all[b] = stolen
	if got, err := s.Value(b); err == nil {
		t.Errorf("the value of another secret: %q", got)
	}
}

func TestDefinition_RoundTrip(t *testing.T) {
	const doc = `<secret ephemeral='no' private='yes'>
  <uuid>11111111-2222-3333-4444-555555555555</uuid>
  <description>a &lt;disk&gt;</description>
  <usage type='volume'>
    <volume>/var/lib/a</volume>
  </usage>
</secret>
`
	d, err := Parse(doc, true)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := d.XML(); err != nil || got != doc {
		t.Errorf("printed as %s (%v)", got, err)
	}
}

// Usages appear in each list of secrets.
//
// Promise: X9
func TestParse_UsageBound(t *testing.T) {
	doc := func(length int) string {
		return "<secret><usage type='volume'><volume>" + strings.Repeat("x", length) + "</volume></usage></secret>"
	}
	if _, err := Parse(doc(maxUsage), true); err != nil {
		t.Error(err)
	}
	if _, err := Parse(doc(maxUsage+1), true); !fault.Is(err, fault.Invalid) {
		t.Errorf("longer: %v", err)
	}
}
