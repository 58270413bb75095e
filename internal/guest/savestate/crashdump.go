package savestate

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/decision/lifecycle"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// A guest with on_crash coredump-* leaves its memory in the data directory when it panics. Guests decide
// how often that happens. So at most coresPerGuest dumps of each guest, and maxCores of all guests, are
// kept: the newest. No dump is begun that would fill the file system.
const coresPerGuest, maxCores = 4, 32

// coreDump is a dump of a guest's memory.
type coreDump struct {
	path, guest string // guest is empty if it no longer exists
	at          time.Time
}

// coreTime is the part of a dump's name after the guest's: when the dump began.
const coreTime, coreSuffix = "-20060102-150405", ".core"

// DumpCore dumps the memory of a panicked guest and then continues with its on_crash policy, even if the
// dump fails. It runs in the loop, or before the loop starts.
func DumpCore(g *machine.Guest) {
	r := g.Instance
	if r.Dumping {
		return
	}
	r.Dumping = true
	path := filepath.Join(g.Reg.CoreDir(), machine.FileStem(g.Record.Name)+time.Now().UTC().Format(coreTime)+coreSuffix)
	name, memory := g.Record.Name, r.Definition.Memory
	g.Reg.Loops.Go(func() {
		err := makeCoreSpace(g.Reg, name, memory)
		if err == nil {
			err = Dump(g.Reg.Life, g, scope.Daemon("the dump of a guest that has panicked"), path, DumpOptions{Memory: "elf", OnlyInstance: r})
		}
		if g.Reg.Life.Err() != nil {
			return // the next daemon begins again
		}
		if err != nil {
			g.Log.Error("cannot dump the memory of a guest that has panicked", "error", err)
		} else {
			g.Log.Warn("the guest has panicked; its memory was dumped", "path", path)
		}
		_ = machine.RetryUntilDone(g.Reg.Life, machine.MaxReleasePause, func() error { // or the daemon stops
			err := g.Perform(g.Reg.Life, scope.Daemon("the dump of a guest that has panicked"), "", domain.JobModify, machine.ModifyLimit, func() (machine.Work, error) {
				finishCoreDump(g, r)
				return nil, nil
			})
			if fault.Is(err, fault.Timeout) || fault.Is(err, fault.Busy) {
				return err
			}
			return nil // or it has ended
		})
	})
}

// finishCoreDump continues with the policy of a panicked guest, as a job. Outside of a job the guest could be
// restarted while it is being saved, and its disks would no longer fit the image. It runs in the loop.
func finishCoreDump(g *machine.Guest, r *machine.Instance) {
	r.Dumping = false
	if g.Instance == r {
		g.Advance(lifecycle.Dumped{})
	}
}

// makeCoreSpace removes surplus dumps before another one of the guest. It fails unless the file system has
// space for the dump and as much again.
func makeCoreSpace(r *machine.Registry, name string, memory uint64) error {
	paths, err := filepath.Glob(filepath.Join(r.CoreDir(), "*"+coreSuffix))
	if err != nil {
		return err // only a malformed pattern fails
	}
	var cores []coreDump
	for _, p := range paths {
		c := coreDump{path: p}
		if stem := strings.TrimSuffix(filepath.Base(p), coreSuffix); len(stem) > len(coreTime) {
			c.guest = stem[:len(stem)-len(coreTime)]
		}
		if !r.StemTaken(c.guest) {
			c.guest = ""
		}
		if info, err := os.Lstat(p); err == nil {
			c.at = info.ModTime()
		}
		cores = append(cores, c)
	}
	for _, c := range surplusCores(cores, machine.FileStem(name)) {
		machine.RemoveFile(r.Log, c.path)
	}
	free, err := provision.FreeSpace(r.Life, r.CoreDir())
	if err != nil {
		return err
	}
	if free < 2*memory {
		return fault.New(fault.NoCapacity, fault.Host, "%s has %d MiB of free space, too little for a dump of %d MiB; free some space", r.CoreDir(), free>>20, memory>>20)
	}
	return nil
}

// surplusCores returns the dumps to remove before the guest next gets another: its own oldest and, of all guests
// together, the oldest of the guest with the most dumps. Guests that no longer exist count as one.
// Otherwise a user could push out the dumps of others by defining ever new guests.
func surplusCores(cores []coreDump, next string) (gone []coreDump) {
	slices.SortFunc(cores, func(a, b coreDump) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.path, b.path)) })
	has := map[string]int{next: 1}
	for _, c := range cores {
		has[c.guest]++
	}
	for has[next] > coresPerGuest || len(cores) >= maxCores {
		from := next
		if has[next] <= coresPerGuest {
			from = slices.MaxFunc(cores, func(a, b coreDump) int { return cmp.Compare(has[a.guest], has[b.guest]) }).guest
		}
		i := slices.IndexFunc(cores, func(c coreDump) bool { return c.guest == from })
		gone = append(gone, cores[i])
		cores = slices.Delete(cores, i, i+1)
		has[from]--
	}
	return gone
}
