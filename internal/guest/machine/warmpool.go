package machine

import (
	"log/slog"
	"sync"
	"time"

	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemucaps"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemuprocess"
	"github.com/lodge-kvm/lodge/internal/mechanism/sandbox"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// WarmPool keeps QEMUs prepared for guests that are started often. Its lock guards the maps and is held only
// while they are read or changed. One goroutine prepares and discards QEMUs, one at a time, while no guest
// is being started.
type WarmPool struct {
	Reg   *Registry
	Log   *slog.Logger
	Limit int // how many may be kept; 0: the pool is off
	Wake  chan struct{}

	Mu      sync.Mutex
	Asked   map[string][]time.Time        // by UUID: the newest starts, at most often of them
	Ready   map[string]*PreparedQEMU      // by UUID
	Refused map[string]*domain.Definition // definitions that cannot be prepared, until they change
	Last    time.Time                     // when a guest was last started
	Busy    map[string]chan struct{}      // guests with a preparation or an end in progress; closed when it is done
}

// PreparedQEMU is a QEMU that was started for a guest ahead of time, with exactly the arguments that a start
// would use now. It waits with its vCPUs stopped, in a directory of its own and in the guest's control
// group. It is put there early because moving a process between groups takes the kernel longer than the
// rest of a prepared start.
type PreparedQEMU struct {
	Reg        *Registry
	UUID, Name string
	Def        *domain.Definition // as read, to notice a change
	Command    *qemu.Command
	Binary     qemucaps.Identity
	Read       map[string]FileIdentity // the files that QEMU read while it made the machine
	Process    *qemuprocess.Process
	Group      *kernel.Group
	Dir        string
	User       *sandbox.User // nil: it runs as the daemon
	Made       time.Time
	Memory     uint64 // bytes that only this process holds
}

// FileIdentity tells whether a file has changed, without reading it.
type FileIdentity struct {
	Device, Inode         uint64
	Size, ModTime, Change int64
}
