package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/savestate"
	"github.com/lodge-kvm/lodge/internal/mechanism/store"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// imageShelf is a daemon that has nothing but saved images.
type imageShelf struct {
	*machine.Registry
	t    *testing.T
	path string // of an image
}

// stream is what stands behind the headers of a shelf's images.
var stream = bytes.Repeat([]byte("memory"), 20<<10)

func newImageShelf(t *testing.T) *imageShelf {
	t.Helper()
	s := &imageShelf{t: t, path: filepath.Join(t.TempDir(), "image")}
	s.begin()
	t.Cleanup(func() { _ = s.Store.Close() })
	s.save(s.path, title("first"))
	return s
}

// begin has another daemon take the shelf over.
func (s *imageShelf) begin() {
	s.t.Helper()
	if s.Registry != nil {
		s.must(s.Store.Close())
	}
	records, err := store.Open(filepath.Dir(s.path))
	s.must(err)
	s.Registry = newRegistry(machine.Config{DataDir: filepath.Dir(s.path), Store: records, Log: slog.New(slog.DiscardHandler)})
	s.must(savestate.SettleHeaders(s.Registry))
	s.Loops.Wait()
}

func (s *imageShelf) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func title(text string) string {
	return fmt.Sprintf("<domain type='qemu'><name>saved</name><uuid>c0ffee00-0000-4000-8000-000000000001</uuid><title>%s</title>"+
		"<memory>65536</memory><os><type arch='x86_64' machine='q35'>hvm</type></os><description>%s</description></domain>", text, strings.Repeat("long ", 400))
}

func (s *imageShelf) save(path, doc string) {
	s.t.Helper()
	f, err := os.Create(path)
	s.must(err)
	defer f.Close()
	h := &savestate.SaveHeader{XML: doc, Running: true}
	s.must(h.Write(f))
	_, err = f.Write(stream)
	s.must(err)
	s.must(h.Complete(f))
}

// says gives what the image's definition is called.
func (s *imageShelf) says() string {
	s.t.Helper()
	i, err := savestate.OpenSaved(s.t.Context(), s.Registry, s.path, savestate.SaveOptions{})
	s.must(err)
	defer i.Close()
	rest := make([]byte, len(stream))
	if _, err := i.File.Read(rest); err != nil || !bytes.Equal(rest, stream) {
		s.t.Fatalf("the stream behind the header is damaged (%v)", err)
	}
	return i.Def.Title
}

// noted says whether a change is noted that did not come to its end.
func (s *imageShelf) noted() bool {
	found := false
	s.must(s.Store.Each(savestate.HeaderChanges, func(string, func(any) error) error { found = true; return nil }))
	return found
}

// begun gives a change of the image, as far as it is noted, with the open image.
func (s *imageShelf) begun(doc string) (savestate.HeaderChange, *os.File) {
	s.t.Helper()
	f, err := os.OpenFile(s.path, os.O_RDWR, 0)
	s.must(err)
	s.t.Cleanup(func() { _ = f.Close() })
	c, err := savestate.PlanHeader(f, savestate.SaveOptions{XML: doc, Then: domain.Paused})
	s.must(err)
	s.must(s.Store.Put(savestate.HeaderChanges, s.path, c))
	return c, f
}

// cutOff leaves an image as a daemon does that is killed when it has written n blocks of
// its new header: all but the first, and then that.
func (s *imageShelf) cutOff(f *os.File, blocks [][]byte, n int) {
	s.t.Helper()
	if n == len(blocks) {
		s.must(savestate.WriteHeader(f, bytes.Join(blocks, nil)))
		return
	}
	at := int64(savestate.HeaderBlock)
	_, err := f.WriteAt([]byte(savestate.SaveChanging), 0)
	s.must(err)
	for _, block := range blocks[1 : n+1] {
		_, err := f.WriteAt(block, at)
		s.must(err)
		at += int64(len(block))
	}
}

// alike is a definition of the first one's length that differs in every block: either half
// of it goes with the other's.
var alike = strings.ReplaceAll(title("other"), "long ", "LONG ")

// The header change of an image is interrupted, and the image is moved or copied before the next daemon starts.
// The daemon repairs it on its next use. If nothing is recorded about the image it is refused with a reason,
// whatever part of the new definition it has.
// Promise: F14
func TestHeaderChange_InterruptedThenMoved(t *testing.T) {
	s := newImageShelf(t)
	c, _ := s.begun(alike)
	blocks := slices.Collect(slices.Chunk(c.After, savestate.HeaderBlock))
	first, elsewhere := s.path, filepath.Join(t.TempDir(), "elsewhere")
	for n := range blocks {
		s.path = first
		s.save(first, title("first"))
		_, f := s.begun(alike)
		s.cutOff(f, blocks, n)
		torn, err := os.ReadFile(first)
		s.must(err)
		s.must(os.Rename(first, elsewhere))
		s.begin()
		s.path = elsewhere
		if is := s.says(); is != "first" || s.noted() {
			t.Errorf("%d of %d blocks: moved away it is %q; noted: %v", n, len(blocks), is, s.noted())
		}
		s.must(os.WriteFile(elsewhere, torn, 0o600)) // a copy without any record
		i, err := savestate.OpenSaved(t.Context(), s.Registry, elsewhere, savestate.SaveOptions{})
		if err == nil {
			i.Close()
			t.Fatalf("%d of %d blocks: half a header is taken, that of %q", n, len(blocks), i.Def.Title)
		}
		if !strings.Contains(err.Error(), elsewhere) || !strings.Contains(err.Error(), "was interrupted") || !strings.Contains(err.Error(), "use another copy") {
			t.Errorf("the refusal is %v", err)
		}
		if err := savestate.RedefineSaved(t.Context(), s.Registry, scope.Daemon("a test"), elsewhere, savestate.SaveOptions{XML: alike}); err == nil {
			t.Error("half a header is changed once more")
		}
		if after, err := os.ReadFile(elsewhere); err != nil || !bytes.Equal(after, torn) {
			t.Errorf("a refused image is changed (%v)", err)
		}
	}
}

// A change that is under way goes on in the file that it began in, wherever that is moved to.
// Promise: F14
func TestHeaderChange_MovedDuringChange(t *testing.T) {
	s := newImageShelf(t)
	c, f := s.begun(alike)
	_, leave, err := savestate.LockHeader(t.Context(), s.Registry, f)
	s.must(err)
	s.cutOff(f, slices.Collect(slices.Chunk(c.After, savestate.HeaderBlock)), 2)
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	s.must(os.Rename(s.path, elsewhere))
	hurried, stop := context.WithCancelCause(t.Context())
	stop(nil)
	if i, err := savestate.OpenSavedNoWait(hurried, s.Registry, elsewhere, savestate.SaveOptions{}); err == nil {
		i.Close()
		t.Error("an image is read while it is changed")
	}
	s.must(savestate.WriteHeader(f, c.After))
	leave()
	if s.path = elsewhere; s.says() != "other" {
		t.Errorf("it is %q", s.says())
	}
}

// A copy is mended, and the image that it was copied from, too.
// Promise: F14
func TestHeaderChange_InterruptedThenCopied(t *testing.T) {
	s := newImageShelf(t)
	c, f := s.begun(alike)
	s.cutOff(f, slices.Collect(slices.Chunk(c.After, savestate.HeaderBlock)), 2)
	torn, err := os.ReadFile(s.path)
	s.must(err)
	first, copied := s.path, filepath.Join(t.TempDir(), "copy")
	s.must(os.WriteFile(copied, torn, 0o600))
	for _, s.path = range []string{copied, first} {
		if is := s.says(); is != "first" {
			t.Errorf("%s is %q", s.path, is)
		}
	}
	if s.noted() {
		t.Error("the note stays")
	}
}

// Promise: F14
func TestHeaderChange_InterruptedAtEachBlock(t *testing.T) {
	s := newImageShelf(t)
	c, _ := s.begun(title("the second one"))
	blocks := slices.Collect(slices.Chunk(c.After, savestate.HeaderBlock))
	if len(blocks) < 3 {
		t.Fatalf("the header changes in %d blocks, which cannot be told apart", len(blocks))
	}
	for _, reader := range []string{"the next daemon", "who reads it"} {
		for n := range len(blocks) + 1 {
			s.save(s.path, title("first"))
			c, f := s.begun(title("the second one"))
			s.cutOff(f, blocks, n)
			if reader == "the next daemon" {
				s.begin()
				if s.noted() {
					t.Errorf("%d of %d blocks: the next daemon leaves the change", n, len(blocks))
				}
			}
			want := "first"
			if n == len(blocks) {
				want = "the second one"
			}
			if is := s.says(); is != want || s.noted() {
				t.Errorf("%d of %d blocks, seen by %s: the definition is that of %q, and not of %q; noted: %v", n, len(blocks), reader, is, want, s.noted())
			}
			if len(c.Before) != len(c.After) {
				t.Fatalf("%d bytes become %d", len(c.Before), len(c.After))
			}
		}
	}
	s.must(savestate.RedefineSaved(t.Context(), s.Registry, scope.Daemon("a test"), s.path, savestate.SaveOptions{XML: title("third")}))
	if is := s.says(); is != "third" || s.noted() {
		t.Errorf("changed once more it is %q; noted: %v", is, s.noted())
	}
}

// Promise: F14
func TestHeaderChange_FailureKeepsOldHeader(t *testing.T) {
	s := newImageShelf(t)
	c, _ := s.begun(title("second"))
	f, err := os.Open(s.path) // every write fails
	s.must(err)
	defer f.Close()
	if err := savestate.ChangeHeader(s.Registry, f, s.path, c); err == nil {
		t.Error("a header that cannot be written is changed")
	}
	if is := s.says(); is != "first" || s.noted() {
		t.Errorf("after a change that failed it is %q; noted: %v", is, s.noted())
	}

	before, err := os.ReadFile(s.path)
	s.must(err)
	newer := store.Kind{Name: savestate.HeaderChanges.Name, Version: savestate.HeaderChanges.Version + 1}
	s.must(s.Store.Put(newer, s.path, "a later daemon's")) // which the store keeps from being replaced
	if err := savestate.RedefineSaved(t.Context(), s.Registry, scope.Daemon("a test"), s.path, savestate.SaveOptions{XML: title("second")}); err == nil {
		t.Error("a header is changed of which nothing could be noted")
	}
	if after, err := os.ReadFile(s.path); err != nil || !bytes.Equal(after, before) {
		t.Errorf("the image was changed without a note (%v)", err)
	}
}

// Promise: F14
func TestHeaderChange_ImageReplaced(t *testing.T) {
	s := newImageShelf(t)
	s.begun(title("second"))
	s.save(s.path, title("another image"))
	before, err := os.ReadFile(s.path)
	s.must(err)
	s.begin()
	if is := s.says(); is != "another image" || s.noted() {
		t.Errorf("it is %q; noted: %v", is, s.noted())
	}
	if after, err := os.ReadFile(s.path); err != nil || !bytes.Equal(after, before) {
		t.Errorf("another image was changed (%v)", err)
	}
}

// The record of an image is kept while its file system may come back. With a managed save image it is removed.
func TestHeaderChange_RecordRemovedWithImage(t *testing.T) {
	s := newImageShelf(t)
	s.begun(title("second"))
	s.must(os.Rename(s.path, s.path+".away"))
	s.begin()
	if !s.noted() {
		t.Error("the change of an image is forgotten that cannot be seen at present")
	}
	s.must(os.Rename(s.path+".away", s.path))
	if is := s.says(); is != "first" || s.noted() {
		t.Errorf("it is %q; noted: %v", is, s.noted())
	}

	s.must(os.Mkdir(s.SaveDir(), 0o700))
	g := newGuest(s.Registry, "saved", "c0ffee00-0000-4000-8000-000000000001")
	s.path = savestate.ManagedSavePath(g)
	s.save(s.path, title("first"))
	s.begun(title("second"))
	savestate.RemoveUnrecordedSave(g)
	if _, err := os.Lstat(s.path); s.noted() || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("of an image that was removed something stays (%v)", err)
	}
}

// A reader during header changes sees a complete header of one writer, by every path of the image.
func TestHeaderChange_OneAtATime(t *testing.T) {
	s := newImageShelf(t)
	link := filepath.Join(t.TempDir(), "link")
	s.must(os.Symlink(s.path, link))
	names := []string{"first"}
	for n := range 8 {
		names = append(names, strings.Repeat(string(rune('a'+n)), 1+97*n))
	}
	var all sync.WaitGroup
	for n, name := range names[1:] {
		all.Go(func() {
			at := []string{s.path, link}[n%2]
			if err := savestate.RedefineSaved(t.Context(), s.Registry, scope.Daemon("a test"), at, savestate.SaveOptions{XML: title(name)}); err != nil {
				t.Error(err)
			}
		})
		all.Go(func() {
			i, err := savestate.OpenSaved(t.Context(), s.Registry, link, savestate.SaveOptions{})
			if err != nil {
				t.Error(err)
				return
			}
			defer i.Close()
			if !slices.Contains(names, i.Def.Title) {
				t.Errorf("a definition is read that was never written: %q", i.Def.Title)
			}
		})
	}
	all.Wait()
	if is := s.says(); !slices.Contains(names[1:], is) || s.noted() {
		t.Errorf("in the end it is %q; noted: %v", is, s.noted())
	}
}

func TestHeaderChange_TooLong(t *testing.T) {
	s := newImageShelf(t)
	err := savestate.RedefineSaved(t.Context(), s.Registry, scope.Daemon("a test"), s.path, savestate.SaveOptions{XML: title(strings.Repeat("x", savestate.SaveAlign))})
	if !fault.Is(err, fault.Invalid) && (err == nil || !strings.Contains(err.Error(), "too long")) {
		t.Errorf("a definition that has no room is taken: %v", err)
	}
	if is := s.says(); is != "first" || s.noted() {
		t.Errorf("it is %q; noted: %v", is, s.noted())
	}
}

// An image with a definition that could not be defined is refused, no matter which user wrote it.
// Promise: A3
func TestReadSaved_Bounded(t *testing.T) {
	s := newImageShelf(t)
	for word, part := range map[string]string{
		"iothreads": "<iothreads>18446744073709551615</iothreads>",
		"alias":     "<devices><channel type='unix'><target type='virtio' name='a'/><alias name='ua-/../a'/></channel></devices>",
	} {
		s.save(s.path, strings.Replace(title("first"), "</domain>", part+"</domain>", 1))
		if i, err := savestate.OpenSaved(t.Context(), s.Registry, s.path, savestate.SaveOptions{}); err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v", word, err)
			if err == nil {
				i.Close()
			}
		}
	}
}
