package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// room is what making an image takes on disk while it lasts: the tree and what is
// made of it.
const room = 3 << 30

// How is what an image is made with.
type How struct {
	Cache string       // a folder to keep images in
	Agent string       // the static program built from lab/agent/cmd
	Say   func(string) // told what goes on; may be nil
}

// DefaultAgent is where the agent lies beside the program that runs.
func DefaultAgent() string {
	self, err := os.Executable()
	if err != nil {
		return "lodge-lab-agent"
	}
	return filepath.Join(filepath.Dir(self), "lodge-lab-agent")
}

// Build makes the image, or finds it in the cache. It takes a minute or two and
// downloads 220 MB the first time; with the same recipe it then needs no network.
// Cancelled, it leaves nothing that could be found. Another Build in the same
// cache is waited for.
func Build(ctx context.Context, how How) (Image, error) {
	if how.Say == nil {
		how.Say = func(string) {}
	}
	agent, err := os.ReadFile(how.Agent)
	if err != nil {
		return Image{}, fault.Wrap(err, fault.NotFound, fault.Host, "cannot make the lab's guest image without its agent: make build makes it")
	}
	how.Cache, err = filepath.Abs(how.Cache) // tools run elsewhere
	if err != nil {
		return Image{}, err
	}
	if err := os.MkdirAll(how.Cache, 0o755); err != nil {
		return Image{}, fmt.Errorf("cannot make the lab's guest image: %w", err)
	}
	unlock, err := lock(ctx, how)
	if err != nil {
		return Image{}, err
	}
	defer unlock()
	if err := sweep(how.Cache); err != nil {
		return Image{}, err
	}
	tree, err := how.tree(ctx)
	if err != nil {
		return Image{}, err
	}
	return how.image(ctx, tree, agent)
}

// tree makes the part that takes long: everything but the agent.
func (h How) tree(ctx context.Context) (string, error) {
	dir := filepath.Join(h.Cache, "debian-"+recipe())
	return dir, h.once(dir, func(part string) error {
		if os.Geteuid() != 0 {
			return fault.New(fault.Denied, fault.Host, "only root can make the lab's guest image: it has files of many users")
		}
		if err := enough(h.Cache); err != nil {
			return err
		}
		return debian(ctx, part, h.Say)
	})
}

// image makes the rest and lets "current" name it.
func (h How) image(ctx context.Context, tree string, agent []byte) (Image, error) {
	var made contents
	text, err := os.ReadFile(filepath.Join(tree, facts))
	if err == nil {
		err = json.Unmarshal(text, &made)
	}
	if err != nil {
		return Image{}, fmt.Errorf("cannot read what is in %s: %w", tree, err)
	}
	sum := sha256.New()
	fmt.Fprintf(sum, "%s %s %x", recipe(), genericDrivers, sha256.Sum256(agent))
	for _, name := range slices.Sorted(maps.Keys(made.Packages)) {
		fmt.Fprintf(sum, " %s=%s", name, made.Packages[name])
	}
	i := Image{
		Kernel: filepath.Join("..", filepath.Base(tree), "vmlinuz"), Initrd: "initrd",
		Usr: filepath.Join("..", filepath.Base(tree), "usr.erofs"), Root: filepath.Join("..", filepath.Base(tree), "root.raw"),
		Digest: hex.EncodeToString(sum.Sum(nil)), Packages: made.Packages,
		Generic: Kernel{filepath.Join("..", filepath.Base(tree), genericKernel), "initrd-generic"},
	}
	dir := filepath.Join(h.Cache, "image-"+i.Digest[:16])
	err = h.once(dir, func(part string) error {
		h.Say("making the guest's first file systems")
		if err := initrd(ctx, filepath.Join(part, i.Initrd), filepath.Join(tree, "modules"), drivers, agent); err != nil {
			return err
		}
		if err := initrd(ctx, filepath.Join(part, i.Generic.Initrd), filepath.Join(tree, genericModulesDir), genericDrivers, agent); err != nil {
			return err
		}
		return writeFacts(part, i)
	})
	if err != nil {
		return Image{}, err
	}
	if err := point(filepath.Join(h.Cache, current), filepath.Base(dir)); err != nil {
		return Image{}, err
	}
	return read(dir)
}

// once makes a folder whole or not at all.
func (h How) once(dir string, fill func(part string) error) error {
	if _, err := os.Stat(filepath.Join(dir, facts)); err == nil {
		return nil
	}
	part, err := os.MkdirTemp(h.Cache, parts)
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(part) }() // gone when all went well
	if err := fill(part); err != nil {
		return fault.Wrap(err, fault.Of(err), fault.Host, "cannot make the lab's guest image")
	}
	if err := os.Chmod(part, 0o755); err != nil {
		return err
	}
	unix.Sync() // a name must not outlive a crash that its content does not
	return os.Rename(part, dir)
}

// parts names what is being made; "*" becomes something unique.
const parts = ".part-*"

// sweep removes what a killed Build left. The lock is held.
func sweep(cache string) error {
	left, err := filepath.Glob(filepath.Join(cache, parts))
	if err != nil {
		return err
	}
	for _, dir := range left {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("cannot remove what was left half made: %w", err)
		}
	}
	return nil
}

// lock waits until no other Build works in the cache.
func lock(ctx context.Context, how How) (unlock func(), err error) {
	file, err := os.OpenFile(filepath.Join(how.Cache, "lock"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("cannot make the lab's guest image: %w", err)
	}
	for said := false; ; said = true {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { file.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			file.Close()
			return nil, fmt.Errorf("cannot lock %s: %w", file.Name(), err)
		}
		if !said {
			how.Say("waiting for another who makes the image")
		}
		select { // a wait for the lock itself could not be ended
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			file.Close()
			return nil, context.Cause(ctx)
		}
	}
}

func enough(dir string) error {
	var free unix.Statfs_t
	if err := unix.Statfs(dir, &free); err != nil {
		return err
	}
	if have := free.Bavail * uint64(free.Bsize); have < room {
		return fault.New(fault.NoCapacity, fault.Host, "it takes %d MiB in %s while it is made, and %d MiB are free", room>>20, dir, have>>20)
	}
	return nil
}

// point makes a name lead to a folder beside it, at once.
func point(name, to string) error {
	if now, err := os.Readlink(name); err == nil && now == to {
		return nil
	}
	if err := os.Remove(name + ".new"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(to, name+".new"); err != nil {
		return err
	}
	return os.Rename(name+".new", name)
}

func writeFacts(dir string, v any) error {
	text, err := json.MarshalIndent(v, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, facts), append(text, '\n'), 0o644)
}

// contents is what a tree was made of.
type contents struct {
	Packages map[string]string `json:"packages"`
}

// installed reads dpkg's list.
func installed(status string) map[string]string {
	found := map[string]string{}
	for paragraph := range strings.SplitSeq(status, "\n\n") {
		var name, version, state string
		for line := range strings.Lines(paragraph) {
			key, value, _ := strings.Cut(strings.TrimRight(line, "\n"), ": ") // what goes on on further lines begins with a blank
			switch key {
			case "Package":
				name = value
			case "Version":
				version = value
			case "Status":
				state = value
			}
		}
		if name != "" && strings.HasSuffix(state, " installed") {
			found[name] = version
		}
	}
	return found
}
