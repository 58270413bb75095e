package image

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

func TestWhatTheKernelIsTold(t *testing.T) {
	got := CommandLine(Boot{
		Name: "web1", TSC: 2445422, Extra: []string{"swiotlb=512"},
		Nets: []Net{
			{"52:54:00:77:00:01", netip.MustParsePrefix("10.77.0.2/16")},
			{"52:54:00:77:00:02", netip.MustParsePrefix("10.78.0.2/16")},
		},
	})
	const want = "console=ttyS0 quiet mitigations=off panic=1 tsc=reliable no_timer_check tsc_early_khz=2445422 lab.name=web1 " +
		"lab.net=52:54:00:77:00:01@10.77.0.2/16,52:54:00:77:00:02@10.78.0.2/16 swiotlb=512"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := CommandLine(Boot{Name: "idle"}); strings.Contains(got, "khz") || strings.Contains(got, "lab.net") {
		t.Errorf("of what is not known it says %s", got)
	}
}

func TestInstalledPackages(t *testing.T) {
	got := installed("Package: fio\nStatus: install ok installed\nVersion: 3.33-3\nDescription: x\n Package: not\n\n" +
		"Package: gone\nStatus: deinstall ok config-files\nVersion: 1\n\nPackage: nginx-light\nStatus: install ok installed\nVersion: 1.22.1-9+deb12u3\n")
	if diff := cmp.Diff(map[string]string{"fio": "3.33-3", "nginx-light": "1.22.1-9+deb12u3"}, got); diff != "" {
		t.Error(diff)
	}
}

// cached is a cache with a tree in it, as it is once Debian's part was made.
func cached(t *testing.T) How {
	t.Helper()
	h := How{Cache: t.TempDir(), Agent: filepath.Join(t.TempDir(), "agent"), Say: func(string) {}}
	tree := filepath.Join(h.Cache, "debian-"+recipe())
	for _, name := range []string{"vmlinuz", "usr.erofs", "root.raw", "modules/kernel/none", genericKernel, genericModulesDir + "/kernel/none"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(tree, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(tree, name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := writeFacts(tree, contents{Packages: map[string]string{"fio": "1"}}); err != nil {
		t.Fatal(err)
	}
	agent(t, h, "agent 1")
	return h
}

func agent(t *testing.T, h How, content string) {
	t.Helper()
	if err := os.WriteFile(h.Agent, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Promise: L8
func TestAnImageIsMadeOnceForWhatItIsMadeOf(t *testing.T) {
	h := cached(t)
	first, err := Build(t.Context(), h)
	if err != nil {
		t.Fatal(err)
	}
	if found, err := Find(h.Cache); err != nil || found.Digest != first.Digest || found.Initrd != first.Initrd {
		t.Errorf("found %+v, %v", found, err)
	}
	if err := os.WriteFile(first.Initrd, []byte("not made again"), 0o600); err != nil {
		t.Fatal(err)
	}
	if again, err := Build(t.Context(), h); err != nil || again.Digest != first.Digest {
		t.Errorf("%s and then %s, %v", first.Digest, again.Digest, err)
	}
	if text, _ := os.ReadFile(first.Initrd); string(text) != "not made again" {
		t.Error("what was there was made again")
	}
	agent(t, h, "agent 2")
	other, err := Build(t.Context(), h)
	if err != nil || other.Digest == first.Digest || other.Usr != first.Usr {
		t.Errorf("with another agent it is %+v, %v", other, err)
	}
	if found, err := Find(h.Cache); err != nil || found.Digest != other.Digest {
		t.Errorf("found %s, %v", found.Digest, err)
	}
}

// Promise: L8
func TestAHalfMadeImageIsNeverFound(t *testing.T) {
	h := cached(t)
	if _, err := Find(h.Cache); !fault.Is(err, fault.NotFound) || !strings.Contains(err.Error(), "make lab-image") {
		t.Errorf("in an empty cache: %v", err)
	}
	broken := errors.New("broken off")
	dir := filepath.Join(h.Cache, "image-x")
	err := h.once(dir, func(part string) error {
		if err := writeFacts(part, Image{}); err != nil {
			return err
		}
		return broken
	})
	if !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	// And what a kill leaves is removed by the next.
	killed := filepath.Join(h.Cache, ".part-123")
	if err := os.Mkdir(killed, 0o755); err != nil {
		t.Fatal(err)
	}
	made, err := Build(t.Context(), h)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, killed} {
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s is left", path)
		}
	}
	if err := os.Remove(made.Root); err != nil {
		t.Fatal(err)
	}
	if _, err := Find(h.Cache); !fault.Is(err, fault.NotFound) || !strings.Contains(err.Error(), "not whole") {
		t.Errorf("with a file gone: %v", err)
	}
}

func TestTwoDoNotMakeItAtOnce(t *testing.T) {
	h := cached(t)
	unlock, err := lock(t.Context(), h)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	gaveUp := errors.New("gave up")
	h.Say = func(string) { cancel(gaveUp) } // once it waits
	if _, err := Build(ctx, h); !errors.Is(err, gaveUp) {
		t.Errorf("got %v", err)
	}
	unlock()
	if _, err := Build(t.Context(), h); err != nil {
		t.Error(err)
	}
}

func TestWhatAToolSays(t *testing.T) {
	var told []string
	err := run(t.Context(), func(s string) { told = append(told, s) }, "sh", "-c", "echo one; printf 'tw'; printf 'o\n'; echo the reason >&2; exit 3")
	if err == nil || !strings.Contains(err.Error(), "the reason") {
		t.Errorf("got %v", err)
	}
	if diff := cmp.Diff([]string{"one", "two", "the reason"}, told); diff != "" {
		t.Error(diff)
	}
}
