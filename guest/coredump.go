package guest

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/lodge-kvm/lodge/fault"
	"github.com/lodge-kvm/lodge/lifecycle"
)

// A guest whose definition asks for it leaves its memory in the data directory when
// it panics (on_crash coredump-*). Guests decide how often that is: the newest dumps
// alone are kept, and none is begun that would fill the file system.
const keepCores = 8

// dumpCore dumps the memory of the guest, which has panicked, and lets its policy go
// on, whether that succeeds or not. It runs in the loop, or before that.
func (g *Guest) dumpCore() {
	r := g.run
	if r.dumping {
		return
	}
	r.dumping = true
	path := filepath.Join(g.reg.coreDir(), fmt.Sprintf("%s-%s.core", g.record.Name, time.Now().UTC().Format("20060102-150405")))
	memory := r.def.Memory
	g.reg.loops.Go(func() {
		err := g.reg.roomForCore(memory)
		if err == nil {
			err = g.Dump(g.reg.life, path, DumpOptions{Memory: "elf"})
		}
		if g.reg.life.Err() != nil {
			return // the next daemon begins again
		}
		if err != nil {
			g.log.Error("cannot dump the memory of a guest that has panicked", "error", err)
		} else {
			g.log.Warn("the guest has panicked; its memory was dumped", "path", path)
		}
		_ = g.change(g.reg.life, "", func() error { // or it has ended
			r.dumping = false
			if g.run == r {
				g.advance(lifecycle.Dumped{})
			}
			return nil
		})
	})
}

// roomForCore removes the oldest dumps, and tells whether another has room with as
// much left as it takes.
func (r *Registry) roomForCore(memory uint64) error {
	paths, err := filepath.Glob(filepath.Join(r.coreDir(), "*.core"))
	if err != nil {
		return err // only for a pattern that is wrong
	}
	written := map[string]time.Time{}
	for _, p := range paths {
		if info, err := os.Lstat(p); err == nil {
			written[p] = info.ModTime()
		}
	}
	slices.SortFunc(paths, func(a, b string) int { return cmp.Or(written[b].Compare(written[a]), cmp.Compare(a, b)) })
	for _, old := range paths[min(len(paths), keepCores-1):] {
		removeFile(r.log, old)
	}
	free, err := freeRoom(r.life, r.coreDir())
	if err != nil {
		return err
	}
	if free < 2*memory {
		return fault.New(fault.NoCapacity, fault.Host, "%s has %d MiB left, too few for a dump of %d MiB", r.coreDir(), free>>20, memory>>20)
	}
	return nil
}
