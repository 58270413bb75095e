package guest

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// logSweep is how often the sizes of all guests' logs are looked at, in one go.
const logSweep = 10 * time.Second

// keptLog is how much of a log that has grown too long is kept aside, in bytes.
const keptLog = 1 << 20

// boundLogs keeps the logs of guests that run from filling the disk. What QEMU and
// its helpers say can be brought about by the guest.
func (r *Registry) boundLogs(ctx context.Context) {
	tick := time.NewTicker(logSweep)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			r.cutLogs()
		case <-ctx.Done():
			return
		}
	}
}

func (r *Registry) cutLogs() {
	logs, err := filepath.Glob(filepath.Join(r.logDir(), "*.log"))
	if err != nil {
		return // only for a pattern that is wrong
	}
	var left []leftLog
	for _, path := range logs {
		info, err := os.Lstat(path)
		if err != nil || !info.Mode().IsRegular() {
			continue
		}
		if !r.logged(path) {
			left = append(left, leftLog{path, info.ModTime()})
		}
		if info.Size() < maxLog {
			continue
		}
		if err := cutLog(path); err != nil {
			r.log.Error("cannot cut the log of a guest", "log", path, "error", err)
		}
	}
	r.dropLogs(left)
}

// leftLog is the log of a guest that is no longer there.
type leftLog struct {
	path string
	at   time.Time // of what was last written
}

// maxLeft is how many logs are kept of guests that are no longer there: whoever may define
// guests can have any number of them, one after the other.
const maxLeft = 1024

// logged says whether there is a guest whose log that is, or whose TPM's.
func (r *Registry) logged(path string) bool {
	stem := strings.TrimSuffix(filepath.Base(path), ".log")
	if r.stemTaken(stem) {
		return true
	}
	guest, is := strings.CutSuffix(stem, tpmLog)
	return is && r.stemTaken(guest)
}

// dropLogs removes the oldest logs of guests that are no longer there.
func (r *Registry) dropLogs(left []leftLog) {
	if len(left) <= maxLeft {
		return
	}
	slices.SortFunc(left, func(a, b leftLog) int { return a.at.Compare(b.at) })
	for _, log := range left[:len(left)-maxLeft] {
		removeFile(r.log, log.path)
		removeFile(r.log, log.path+".0")
	}
}

// cutLog keeps a log's end aside and empties it. Its writers append, and so write
// on from the beginning. It is emptied even where its end cannot be kept: there
// may be no room for that.
func cutLog(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	var end []byte
	if err == nil {
		end = make([]byte, min(size, keptLog))
		_, err = f.ReadAt(end, size-int64(len(end)))
	}
	if err == nil {
		err = os.WriteFile(path+".0", end, 0o600)
	}
	return fault.Wrap(errors.Join(err, f.Truncate(0)), fault.Failed, fault.Host, "cannot keep its end, or empty it")
}
