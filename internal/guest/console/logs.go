package console

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
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
)

// logSweep is how often the sizes of all guests' logs are checked.
const logSweep = 10 * time.Second

// keptLog is how many bytes of an oversized log are kept, in a second file.
const keptLog = 1 << 20

// LimitLogs keeps the logs of running guests from filling the disk. A guest can make QEMU and its helpers
// write any amount.
func LimitLogs(ctx context.Context, r *machine.Registry) {
	tick := time.NewTicker(logSweep)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			TrimLogs(r)
		case <-ctx.Done():
			return
		}
	}
}

// TrimLogs cuts the logs that exceed maxLog, and removes old logs of guests that no longer exist.
func TrimLogs(r *machine.Registry) {
	logs, err := filepath.Glob(filepath.Join(r.LogDir(), "*.log"))
	if err != nil {
		return // only a malformed pattern fails
	}
	var left []leftLog
	for _, path := range logs {
		info, err := os.Lstat(path)
		if err != nil || !info.Mode().IsRegular() {
			continue
		}
		if !hasLog(r, path) {
			left = append(left, leftLog{path, info.ModTime()})
		}
		if info.Size() < provision.MaxLog {
			continue
		}
		if err := trimLog(path); err != nil {
			r.Log.Error("cannot cut the log of a guest", "log", path, "error", err)
		}
	}
	dropLogs(r, left)
}

// leftLog is the log of a guest that no longer exists.
type leftLog struct {
	path string
	at   time.Time // the time of its last write
}

// maxLeft is how many logs of guests that no longer exist are kept. A user with permission to define guests
// can make any number of them.
const maxLeft = 1024

// hasLog reports whether there is a guest with that log, its own or its TPM's.
func hasLog(r *machine.Registry, path string) bool {
	stem := strings.TrimSuffix(filepath.Base(path), ".log")
	if r.StemTaken(stem) {
		return true
	}
	guest, is := strings.CutSuffix(stem, provision.TPMLog)
	return is && r.StemTaken(guest)
}

// dropLogs removes the oldest logs of guests that no longer exist.
func dropLogs(r *machine.Registry, left []leftLog) {
	if len(left) <= maxLeft {
		return
	}
	slices.SortFunc(left, func(a, b leftLog) int { return a.at.Compare(b.at) })
	for _, log := range left[:len(left)-maxLeft] {
		machine.RemoveFile(r.Log, log.path)
		machine.RemoveFile(r.Log, log.path+".0")
	}
}

// trimLog copies the end of a log to a second file and truncates the log. Its writers append, so they
// continue at the beginning. The log is truncated even if its end cannot be copied, because the disk may be
// full.
func trimLog(path string) error {
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
