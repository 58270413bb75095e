package machine

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemuprocess"
)

// MakeDirs makes the missing folders of the data directory, also those that were removed while the daemon
// ran.
func (r *Registry) MakeDirs() error {
	for _, dir := range []string{r.LogDir(), r.SaveDir(), r.nvramDir(), r.CoreDir()} {
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return fault.Wrap(err, fault.Failed, fault.Host, "cannot make %s", dir)
		}
	}
	return nil
}

// KillAndWait kills a process and waits, at most nowPatience, until it has ended. A process that hangs in
// the kernel is reported as an error.
func KillAndWait(p *qemuprocess.Process) error {
	if err := p.Kill(); err != nil {
		return err
	}
	late := time.NewTimer(nowPatience)
	defer late.Stop()
	select {
	case <-p.Exited():
		return nil
	case <-late.C:
		p.Release()
		return fault.New(fault.Timeout, fault.Host, "process %d was killed and does not end", p.PID)
	}
}

// IsGuest reports whether a command line is a QEMU that was launched for the guest of a run directory. The
// directory's name is the UUID. Only the first -uuid counts: arguments from the document (<cmdline>) come
// later.
func IsGuest(command []string, dir string) bool {
	at := slices.Index(command, "-uuid") + 1
	return at > 0 && at < len(command) && command[at] == filepath.Base(dir) &&
		slices.ContainsFunc(command, func(word string) bool { return strings.HasPrefix(word, "guest=") })
}

// NvramPath is the default path of a guest's UEFI variables.
func (r *Registry) NvramPath(uuid string) string { return filepath.Join(r.nvramDir(), uuid+"_VARS.fd") }

// LogDir is where the logs of QEMUs are.
func (r *Registry) LogDir() string { return filepath.Join(r.DataDir, "log") }

// SaveDir is where managed save images are.
func (r *Registry) SaveDir() string { return filepath.Join(r.DataDir, "save") }

// CoreDir is where dumps of crashed guests are.
func (r *Registry) CoreDir() string { return filepath.Join(r.DataDir, "core") }

func (r *Registry) nvramDir() string { return filepath.Join(r.DataDir, "nvram") }

// GuestDir returns the private run directory of a guest. Its name is the UUID, which has a fixed length:
// socket paths must stay below 108 bytes.
func (r *Registry) GuestDir(uuid string) string { return filepath.Join(r.RunDir, uuid) }
