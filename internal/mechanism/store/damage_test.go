package store

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"hash/fnv"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// many are enough records for a tree of several pages.
const many = 200

func filled(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	s := reopen(t, dir)
	fill(t, s)
	must(t, s.Close())
	return dir
}

// fill writes many records at once, in a few transactions.
func fill(t *testing.T, s *Store) {
	t.Helper()
	var writers sync.WaitGroup
	for i := range many {
		writers.Go(func() {
			if err := s.Put(guests, key(i), guest{Name: strings.Repeat(fmt.Sprintf("%03d ", i), 200)}); err != nil {
				t.Error(err)
			}
		})
	}
	writers.Wait()
}

func key(i int) string { return fmt.Sprintf("guest-%03d", i) }

// readable returns the records that can be read, by key, and the keys that are refused.
func readable(t *testing.T, s *Store) (whole map[string]string, bad []string) {
	t.Helper()
	whole = map[string]string{}
	must(t, s.Each(guests, func(key string, decode func(any) error) error {
		var g guest
		if err := decode(&g); err != nil {
			bad = append(bad, key)
			return nil
		}
		whole[key] = g.Name
		return nil
	}))
	return whole, bad
}

// damage changes a store's file.
func damage(t *testing.T, dir string, change func(file []byte) []byte) {
	t.Helper()
	file, err := os.ReadFile(Path(dir))
	must(t, err)
	must(t, os.WriteFile(Path(dir), change(file), 0o600))
}

// Promise: S3
func TestOpen_OneDamagedRecord(t *testing.T) {
	dir := filled(t)
	damage(t, dir, func(file []byte) []byte {
		return bytes.ReplaceAll(file, []byte(`{"Name":"042 `), []byte(`{"Name":"O42 `))
	})
	r, err := Check(dir)
	must(t, err)
	if len(r.Problems) != 1 || r.Problems[0].Key != key(42) || r.Records["guest"] != many-1 {
		t.Fatalf("check says %v, and %d records", r.Problems, r.Records["guest"])
	}
	s := reopen(t, dir)
	defer closeStore(t, s)
	whole, bad := readable(t, s)
	if len(whole) != many-1 || len(bad) != 1 || bad[0] != key(42) {
		t.Fatalf("%d records can be read, and %v cannot", len(whole), bad)
	}
	must(t, s.Put(guests, key(42), guest{Name: "again"}))
	if whole, _ := readable(t, s); whole[key(42)] != "again" {
		t.Error("a damaged record cannot be written anew")
	}
}

// A record that lies in the place of another is not returned for it. That happens, for example,
// when a page of the file was written to the wrong block.
// Promise: S3
func TestOpen_RecordInWrongPlace(t *testing.T) {
	sealed := encodeRecord("guest", "a", 1, 1, []byte("{}"))
	for _, c := range []struct {
		kind, key string
		own       bool
	}{{"guest", "a", true}, {"guest", "b", false}, {"network", "a", false}} {
		if r, err := decodeAs(c.kind, c.key, sealed); (err == nil) != c.own || r.kind != c.kind || r.key != c.key {
			t.Errorf("as %s %q: %+v, %v", c.kind, c.key, r, err)
		}
	}
}

// Whatever damage the file has: the store opens, returns only data that was written,
// accepts changes, and keeps the damaged file.
// Promise: S2
func TestOpen_AnyDamage(t *testing.T) {
	pristine, err := os.ReadFile(Path(filled(t)))
	must(t, err)
	for seed := range uint64(90) {
		random := rand.New(rand.NewPCG(seed, 1))
		file := bytes.Clone(pristine)
		switch page := random.IntN(len(file)/4096) * 4096; seed % 6 {
		case 0:
			clear(file[page : page+4096])
		case 1:
			for i := range 4096 {
				file[page+i] = byte(random.Uint32())
			}
		case 2:
			for range 20 {
				file[random.IntN(len(file))] ^= byte(1 + random.IntN(255))
			}
		case 3:
			copy(file[page:page+4096], file[random.IntN(len(file)/4096)*4096:])
		case 4:
			for range 3 { // heads of pages, where bbolt's own assertions are
				file[random.IntN(len(file)/4096)*4096+random.IntN(64)] ^= byte(1 + random.IntN(255))
			}
		case 5:
			file = file[:random.IntN(len(file))]
		}
		dir := t.TempDir()
		must(t, os.WriteFile(Path(dir), file, 0o600))
		checkWorks(t, dir, seed, file)
	}
}

func checkWorks(t *testing.T, dir string, seed uint64, file []byte) {
	t.Helper()
	s, err := OpenLogged(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatalf("damage %d: %v", seed, err)
	}
	whole, _ := readable(t, s)
	for k, name := range whole {
		if want := strings.Repeat(strings.TrimPrefix(k, "guest-")+" ", 200); name != want {
			t.Fatalf("damage %d: %s has become %.20q", seed, k, name)
		}
	}
	if len(file) > 4096*many/2 && seed%6 != 5 && len(whole) < many/2 {
		t.Errorf("damage %d: only %d of %d records are left", seed, len(whole), many)
	}
	must(t, s.Put(guests, "new", guest{Name: "new"}))
	must(t, s.Put(guests, key(1), guest{Name: "001"}))
	must(t, s.Close())
	r, err := Check(dir)
	must(t, err)
	if r.Broken {
		t.Errorf("damage %d is still there after the store was opened: %v", seed, r.Problems)
	}
	kept := false
	for _, name := range s.DamagedFiles() {
		aside, err := os.ReadFile(name)
		must(t, err)
		kept = kept || bytes.Equal(aside, file)
	}
	if len(whole) < many-25 && !kept {
		t.Errorf("damage %d: %d records are left, and the damaged file was not kept", seed, len(whole))
	}
}

// A record with whole bytes is recovered when the end in its leaf element is wrong.
// Promise: S3
func TestRepair_DamagedLeafElement(t *testing.T) {
	dir := filled(t)
	damage(t, dir, func(file []byte) []byte {
		const head, size = 16, 12 // of a page; and where an element of its says how long its value is
		at := bytes.LastIndex(file, []byte(`"guest-100"`)) / 4096 * 4096
		file[at+head+size]--
		return file
	})
	s := reopen(t, dir)
	whole, bad := readable(t, s)
	must(t, s.Close())
	if len(whole) != many || len(bad) != 0 {
		t.Errorf("%d records can be read, and %v cannot", len(whole), bad)
	}
	r, err := Check(dir)
	must(t, err)
	if !r.Whole() {
		t.Errorf("the file that was made anew has %v", r.Problems)
	}
}

// Records in a page that the tree no longer reaches are recovered: their
// first lines tell them from rubbish wherever they lie.
// Promise: S3
func TestRepair_LostPage(t *testing.T) {
	dir := filled(t)
	s := reopen(t, dir)
	must(t, s.Delete(guests, key(199)))
	must(t, s.Close())
	damage(t, dir, func(file []byte) []byte {
		at := bytes.LastIndex(file, []byte(`"guest-100"`)) / 4096 * 4096
		file[at+8] = 0x77 // no page has these flags
		return file
	})
	r, aside, err := Repair(dir, slog.New(slog.DiscardHandler))
	must(t, err)
	if aside == "" || r.Whole() {
		t.Fatalf("repair says that nothing was wrong: %v", r.Problems)
	}
	s = reopen(t, dir)
	defer closeStore(t, s)
	whole, bad := readable(t, s)
	if len(whole) < many-1 || len(bad) > 0 || s.Complete() {
		t.Fatalf("%d of %d records are left, %v bad, sound: %v", len(whole), many-1, bad, s.Complete())
	}
}

// A client that may write its own record puts the bytes of another record into it, with a later serial.
// If one head is damaged, the file is searched for the latest copies, and must not take the forged one.
// Promise: S3
func TestRepair_ForgedRecordInAnother(t *testing.T) {
	for head := range 2 {
		dir := t.TempDir()
		s := reopen(t, dir)
		must(t, s.Put(guests, "theirs", guest{Name: "as it was"}))
		const line, behind = " 0 18446744073709551615 1 `guest` `theirs`", "\"}\n"
		sum := crc32.Checksum([]byte(line+behind), castagnoli)
		must(t, s.Put(guests, "own", guest{Name: fmt.Sprintf("%s%08x%s", recordMark, sum, line)}))
		must(t, s.Put(guests, "last", guest{}))
		must(t, s.Close())
		damage(t, dir, func(file []byte) []byte {
			clear(file[head*4096 : head*4096+pageHeader+metaSize])
			return file
		})
		s = reopen(t, dir)
		if whole, bad := readable(t, s); whole["theirs"] != "as it was" || whole["own"] == "" || len(bad) > 0 {
			t.Errorf("without head %d there are %q, and %v cannot be read", head, whole, bad)
		}
		closeStore(t, s)
	}
}

// A crash in the middle of a transaction leaves some of its pages, in any order.
// Promise: S4
func TestOpen_TornTransaction(t *testing.T) {
	dir := filled(t)
	before, err := os.ReadFile(Path(dir))
	must(t, err)
	s := reopen(t, dir)
	must(t, s.Put(guests, key(7), guest{Name: strings.Repeat("x", 30000)}))
	must(t, s.Close())
	after, err := os.ReadFile(Path(dir))
	must(t, err)
	before = append(before, make([]byte, max(0, len(after)-len(before)))...)
	for seed := range uint64(24) {
		random := rand.New(rand.NewPCG(seed, 2))
		torn := bytes.Clone(before)
		for at := 8192; at < len(after); at += 512 {
			if random.IntN(2) == 0 {
				copy(torn[at:at+512], after[at:])
			}
		}
		if half := random.IntN(64); seed%2 == 0 { // the head is written last
			copy(torn[:16+half], after)
		}
		dir := t.TempDir()
		must(t, os.WriteFile(Path(dir), torn, 0o600))
		s := reopen(t, dir)
		whole, bad := readable(t, s)
		if len(whole) < many || len(bad) > 0 || whole[key(8)] == "" {
			t.Errorf("torn %d: %d records of %d, %v bad", seed, len(whole), many, bad)
		}
		must(t, s.Close())
	}
}

// Another program shortens the file under a daemon, or writes to it. Neither a reader nor a
// writer ends, and no record is lost, whether another change follows or the daemon stops.
// Promise: S15
func TestPut_FileCutWhileOpen(t *testing.T) {
	cut := func(length int) func([]byte) []byte { return func(file []byte) []byte { return file[:length] } }
	for what, spoil := range map[string]func([]byte) []byte{
		"six pages": cut(6 * 4096), "a tree's beginning": cut(4 * 4096), "one head": cut(4096), "nothing": cut(0),
		"zeros":             func(file []byte) []byte { return make([]byte, len(file)) },
		"the first records": func(file []byte) []byte { clear(file[2*4096 : len(file)/2]); return file },
	} {
		for _, change := range []bool{true, false} {
			dir := filled(t)
			s, err := OpenLogged(dir, quiet)
			must(t, err)
			must(t, s.Put(guests, key(1), guest{Name: "later"}))
			must(t, s.Delete(guests, key(2)))
			damage(t, dir, spoil) // in its place: it is the same file
			spoilt, err := os.ReadFile(Path(dir))
			must(t, err)
			if whole, bad := readable(t, s); len(whole) != many-1 || len(bad) > 0 {
				t.Errorf("of a file of which %s is left %d records are read, and %v are bad", what, len(whole), bad)
			}
			want := many - 1
			if change {
				must(t, s.Put(guests, "new", guest{Name: "new"}))
				want++
			}
			must(t, s.Close())
			aside := s.DamagedFiles()
			if what != "nothing" {
				if len(aside) != 1 {
					t.Fatalf("%s, a change %v: the damaged file is not kept: %v", what, change, aside)
				}
				now, err := os.ReadFile(aside[0])
				noticed := !change || what != "the first records" // otherwise it is written to before
				if err != nil || noticed && !bytes.Equal(now, spoilt) {
					t.Errorf("%s: what was put aside is not the damaged file (%v)", what, err)
				}
			}
			s = reopen(t, dir)
			whole, bad := readable(t, s)
			if len(whole) != want || whole[key(1)] != "later" || (whole["new"] == "new") != change || len(bad) > 0 {
				t.Errorf("%s, a change %v: %d records are left of %d, and %v are bad", what, change, len(whole), want, bad)
			}
			must(t, s.Close())
		}
	}
}

// Another store is copied over the file under a daemon. Only the user knows which of the two
// counts, and neither is lost.
// Promise: S15
func TestPut_FileOverwrittenWhileOpen(t *testing.T) {
	dir := filled(t)
	backup, err := os.ReadFile(Path(dir))
	must(t, err)
	s := reopen(t, dir)
	must(t, s.Put(guests, "later", guest{Name: "later"}))
	must(t, os.WriteFile(Path(dir), backup, 0o600))
	must(t, s.Put(guests, "new", guest{Name: "new"}))
	aside := s.DamagedFiles()
	if len(aside) != 1 {
		t.Fatalf("what was copied over it is not kept: %v", aside)
	}
	if now, err := os.ReadFile(aside[0]); err != nil || !bytes.Equal(now, backup) {
		t.Errorf("what was put aside is not what was copied over it (%v)", err)
	}
	must(t, s.Close())
	s = reopen(t, dir)
	defer closeStore(t, s)
	if whole, bad := readable(t, s); len(whole) != many+2 || len(bad) > 0 {
		t.Errorf("%d records are left of %d, and %v are bad", len(whole), many+2, bad)
	}
}

// Promise: S5
func TestOpen_OlderAndNewerFormats(t *testing.T) {
	dir := t.TempDir()
	db, err := bbolt.Open(Path(dir), 0o600, &bbolt.Options{NoFreelistSync: true})
	must(t, err)
	must(t, db.Update(func(tx *bbolt.Tx) error {
		b, err := tx.CreateBucket([]byte("guest"))
		return errors.Join(err, b.Put([]byte("old"), []byte(`{"version":1,"record":{"Title":"Ann"}}`)))
	}))
	must(t, db.Close())
	older := guests
	older.Older = func(version int, record json.RawMessage) (json.RawMessage, error) {
		if version != 1 {
			return nil, fmt.Errorf("layout %d", version)
		}
		return bytes.Replace(record, []byte("Title"), []byte("Name"), 1), nil
	}
	s := reopen(t, dir)
	var g guest
	must(t, s.Get(older, "old", &g))
	if g.Name != "Ann" {
		t.Errorf("the old record became %+v", g)
	}
	must(t, s.Put(formatKind, formatKey, presentFormat+1))
	if err := s.Put(Kind{Name: formatKind.Name, Version: 0}, formatKey, 1); !fault.Is(err, fault.Unsupported) {
		t.Errorf("a newer record was overwritten: %v", err)
	}
	must(t, s.Close())
	file, err := os.ReadFile(Path(dir))
	must(t, err)
	if !bytes.Contains(file, []byte(recordMark)) {
		t.Error("the old record was given no checksum")
	}
	if s, err := Open(dir); !fault.Is(err, fault.Unsupported) || !strings.Contains(err.Error(), "format 3") {
		t.Errorf("a newer format gave %v, %v", s, err)
	}
	now, err := os.ReadFile(Path(dir))
	must(t, err)
	if !bytes.Equal(file, now) {
		t.Error("a file of a newer format was changed")
	}
}

// Promise: S6
func TestOpen_DirectoryHeldByAnotherDaemon(t *testing.T) {
	dir := t.TempDir()
	s := reopen(t, dir)
	must(t, os.Rename(Path(dir), filepath.Join(dir, "elsewhere"))) // the lock is not the file's
	if _, err := Open(dir); !fault.Is(err, fault.Busy) {
		t.Errorf("a second daemon got %v", err)
	}
	if _, _, err := Repair(dir, slog.Default()); !fault.Is(err, fault.Busy) {
		t.Errorf("a repair under a daemon got %v", err)
	}
	must(t, s.Close())
}

// FuzzOpenFile writes bytes over a place of a store's file, and may then correct the checksums
// of both heads, as an attacker would. The store returns only data that was
// put into it, and accepts more.
// Promise: S2
func FuzzOpenFile(f *testing.F) {
	dir, log := f.TempDir(), slog.New(slog.DiscardHandler)
	s, err := OpenLogged(dir, log)
	for i := range 3 {
		err = errors.Join(err, s.Put(guests, key(i), guest{Name: key(i)}))
	}
	if err = errors.Join(err, s.Close()); err != nil {
		f.Fatal(err)
	}
	pristine, err := os.ReadFile(Path(dir))
	if err != nil {
		f.Fatal(err)
	}
	const page = 4096
	word := []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}
	for at := uint32(0); int(at) < len(pristine); at += page {
		// The number, kind, count and overflow of a page, and the first bytes of its elements.
		for _, field := range []uint32{0, 8, 10, 12, pageHeader, pageHeader + 4, pageHeader + 8, pageHeader + 12} {
			f.Add(word[:4], at+field, true)
		}
		f.Add([]byte{1, 0, 0}, at+8, true)
	}
	for field := uint32(pageHeader); field < pageHeader+metaSize; field += 8 {
		f.Add(word, field, true)
		f.Add([]byte{3}, field, false)
	}
	for at, rest := 0, pristine; ; {
		i := bytes.Index(rest, []byte(recordMark))
		if i < 0 {
			break
		}
		f.Add([]byte("9"), uint32(at+i+len(recordMark)+10), false)
		at, rest = at+i+1, rest[i+1:]
	}
	f.Fuzz(func(t *testing.T, part []byte, at uint32, sums bool) {
		file := bytes.Clone(pristine)
		copy(file[int(at)%len(file):], part)
		for head := pageHeader; sums && head < 2*page; head += page {
			sum := fnv.New64a()
			_, _ = sum.Write(file[head : head+metaSize-8])
			binary.NativeEndian.PutUint64(file[head+metaSize-8:], sum.Sum64())
		}
		if err := os.WriteFile(Path(dir), file, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := OpenLogged(dir, log)
		if fault.Is(err, fault.Unsupported) {
			return
		}
		must(t, err)
		defer func() { _ = s.Close() }() // otherwise a failure is tried again and finds the lock held
		for _, aside := range s.DamagedFiles() {
			must(t, os.Remove(aside))
		}
		whole, _ := readable(t, s)
		for key, name := range whole {
			if key != name {
				t.Fatalf("record %q has become %q", key, name)
			}
		}
		must(t, s.Put(guests, "new", guest{Name: "new"}))
		must(t, s.Close())
		if s, err = OpenLogged(dir, log); err != nil {
			t.Fatal(err)
		}
		if again, _ := readable(t, s); again["new"] != "new" || len(again) < len(whole) {
			t.Fatalf("%v and one more is read again as %v", whole, again)
		}
		must(t, s.Close())
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
