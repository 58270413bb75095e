package resources

import (
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/word/topology"
)

// Need is how much a guest takes of the limits of the host and of its processes.
type Need struct {
	Threads uint64
	Files   uint64
	PTYs    uint64
	// AIO counts contexts of native asynchronous I/O (fs.aio-max-nr). QEMU takes AIOContext for each thread
	// that serves such disks.
	AIO uint64
	// Maps is the approximate number of areas in QEMU's address space.
	Maps uint64
	// Locked is memory that must stay in RAM, in bytes.
	Locked uint64
	// DaemonFiles counts files that the daemon keeps open for the guest.
	DaemonFiles uint64
	// Bridges are the bridges of the guest's NICs, one entry per NIC.
	Bridges []string
	// Pages are huge pages. The ledger checks them against the pools; Limits checks them against their control
	// group.
	Pages []topology.PageDemand
}

// AIOContext is the share of fs.aio-max-nr that one QEMU thread with native asynchronous I/O takes. It is a
// constant in QEMU's Linux AIO code. A host with the kernel's default of 65536 stops at 64 such guests.
const AIOContext = 1024

// maxBridgePorts is how many ports the kernel gives a bridge: it numbers them with ten bits and does not use
// 0.
const maxBridgePorts = 1<<10 - 1

// hostLimit is a limit that guests may reach.
type hostLimit struct {
	kernel.Ceiling
	// need returns how much of the limit a need takes.
	need func(Need) uint64
	// remedy is the command that raises the limit to n.
	remedy func(n uint64) string
	// headroom is a sensible raise: enough for many more guests with the same need.
	headroom uint64
}

const (
	// limitsAge is how old the readings of the host's limits may be when a guest starts. Later grants are
	// added to them.
	limitsAge = 100 * time.Millisecond
	// raiseForGuests is how many more guests of the same kind a raised limit is meant for.
	raiseForGuests = 4096
)

// Limits checks the needs of starting guests against the limits of the host, of its control groups and of the
// daemon. A start that would fail half way is refused before anything is made, with the remedy. The daemon
// raises its own limits where it can.
//
// The kernel's counters are read at most ten times a second, and once more before a refusal if another guest
// has just released something. A guest's grant is added to the counters until they are read after the guest
// has taken it.
type Limits struct {
	root kernel.Root
	log  *slog.Logger
	// threads are the control groups that bound the threads of the daemon and its guests. pages are those that
	// bound the guests' huge pages, of the sizes below.
	threads, pages []string
	sizes          []uint64

	reading sync.Mutex // held while the counters are read
	raising sync.Mutex // held while a limit of the daemon is raised

	mu     sync.Mutex
	read   time.Time // when the last reading began
	freed  time.Time // when a guest last released something
	limits []hostLimit
	// bridges are the port counts of bridges, each read on demand.
	bridges map[string]bridgePorts
	// held are the needs of guests that start or run. starting are the guests that the last counters may lack,
	// with the time when they had taken their needs; zero: not yet.
	held     map[string]Need
	starting map[string]time.Time
	// others is what the rest of the host took of each limit when no guest was starting.
	others map[string]uint64
}

type bridgePorts struct {
	read time.Time
	used uint64
}

// NewLimits finds the limits of a host with its guests in these groups. groups is nil on a host without
// control groups.
func NewLimits(root kernel.Root, groups *kernel.Cgroups, log *slog.Logger) *Limits {
	l := &Limits{
		root: root, log: log, threads: root.OwnGroups("pids"), pages: root.OwnGroups("hugetlb"),
		bridges: map[string]bridgePorts{}, held: map[string]Need{}, starting: map[string]time.Time{}, others: map[string]uint64{},
	}
	if groups != nil {
		for _, dir := range groups.Groups(kernel.PIDsController) {
			if !slices.Contains(l.threads, dir) {
				l.threads = append(l.threads, dir)
			}
		}
		if groups.Version() == 2 { // version 2 has one tree, and guests are moved within it
			l.pages = groups.Groups(kernel.PIDsController)
		}
	}
	if pools, err := root.HostPages(); err == nil && len(pools) > 1 {
		for _, pool := range pools[1:] {
			l.sizes = append(l.sizes, pool.Size)
		}
	}
	return l
}

// reserve grants a guest its need, or refuses with the limit, its value, the need and the command that raises the
// limit.
func (l *Limits) reserve(guest string, n Need) error {
	if l == nil {
		return nil
	}
	if err := l.checkProcess(n); err != nil {
		return err
	}
	err := l.grant(guest, n, limitsAge)
	if err != nil && l.outdated() {
		err = l.grant(guest, n, 0)
	}
	return err
}

// grant checks a need against limits that are no older than age.
func (l *Limits) grant(guest string, n Need, age time.Duration) error {
	if err := l.refresh(age); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for slices.ContainsFunc(n.Bridges, l.isBridgeStale) {
		l.mu.Unlock()
		l.readBridges(n.Bridges)
		l.mu.Lock()
	}
	for _, b := range l.limits {
		if err := l.check(b, n); err != nil {
			return err
		}
	}
	for _, bridge := range n.Bridges {
		if err := l.check(l.bridgeLimit(bridge), n); err != nil {
			return err
		}
	}
	l.held[guest], l.starting[guest] = n, time.Time{}
	return nil
}

// extend grants a running guest additional huge pages. The kernel counts them as soon as the guest has them.
func (l *Limits) extend(guest string, pages []topology.PageDemand) error {
	if l == nil || len(pages) == 0 {
		return nil
	}
	if err := l.refresh(0); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range l.limits {
		if err := l.check(b, Need{Pages: pages}); err != nil {
			return err
		}
	}
	if n, is := l.held[guest]; is {
		n.Pages = slices.Concat(n.Pages, pages)
		l.held[guest] = n
	}
	return nil
}

// reduce releases huge pages of a guest.
func (l *Limits) reduce(guest string, pages []topology.PageDemand) {
	if l == nil || len(pages) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if n, is := l.held[guest]; is {
		n.Pages = topology.Reservation{Pages: n.Pages}.Minus(topology.Reservation{Pages: pages}).Pages
		l.held[guest], l.freed = n, time.Now()
	}
}

// outdated says whether a guest has released something since the limits were read.
func (l *Limits) outdated() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.freed.Before(l.read)
}

// started says that a guest has taken its grant: the kernel counts it.
func (l *Limits) started(guest string) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, is := l.starting[guest]; is {
		l.starting[guest] = time.Now()
	}
}

// restore adds a guest that an earlier daemon started. The kernel already counts it, so the readings so far do
// not separate it from the rest of the host.
func (l *Limits) restore(guest string, n Need) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held[guest] = n
	l.read = time.Time{}
	clear(l.others)
}

// release removes a guest.
func (l *Limits) release(guest string) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, has := l.held[guest]; has {
		l.freed = time.Now()
	}
	delete(l.held, guest)
	delete(l.starting, guest)
}

// check checks a need against a limit. The kernel's counter may or may not include the grants of starting
// guests. They are counted twice unless the sum of all held needs proves that there is room.
func (l *Limits) check(b hostLimit, n Need) error {
	need := b.need(n)
	if need == 0 {
		return nil
	}
	var starting, held uint64
	for guest := range l.starting {
		starting += b.need(l.held[guest])
	}
	if b.Used+starting+need <= b.Max {
		return nil
	}
	if starting > 0 && b.Used+need <= b.Max {
		for _, other := range l.held {
			held += b.need(other)
		}
		if others, known := l.others[b.Name]; known && others+held+need <= b.Max {
			return nil
		}
	}
	return fault.New(fault.NoCapacity, fault.Host, "the guest needs %d of %s, which is %d, with %d in use and %d promised to starting guests; %s",
		need, b.Name, b.Max, b.Used, starting, b.remedy(b.Used+starting+need+b.headroom))
}

// refresh reads the limits if they are older than age. If another goroutine is reading, it keeps the last
// figures, unless there are none or age is zero.
func (l *Limits) refresh(age time.Duration) error {
	l.mu.Lock()
	fresh := time.Since(l.read) < age
	must := l.read.IsZero() || age == 0
	l.mu.Unlock()
	asked := time.Now()
	if fresh {
		return nil
	}
	if must {
		l.reading.Lock()
	} else if !l.reading.TryLock() {
		return nil
	}
	defer l.reading.Unlock()
	if l.readSince(asked) {
		return nil // the goroutine that held the lock has read them
	}
	at := time.Now()
	all, err := l.readLimits()
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.limits, l.read = all, at
	maps.DeleteFunc(l.starting, func(_ string, taken time.Time) bool { return !taken.IsZero() && taken.Before(at) })
	for _, b := range all {
		l.noteOthers(b)
	}
	return nil
}

func (l *Limits) readSince(asked time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.read.After(asked)
}

// noteOthers stores how much of a limit the rest of the host uses, if no guest is starting.
func (l *Limits) noteOthers(b hostLimit) {
	if len(l.starting) > 0 {
		return
	}
	var held uint64
	for _, n := range l.held {
		held += b.need(n)
	}
	l.others[b.Name] = b.Used - min(held, b.Used)
}

func (l *Limits) readLimits() ([]hostLimit, error) {
	ceilings, err := l.root.Ceilings()
	if err != nil {
		return nil, err
	}
	all := make([]hostLimit, 0, len(ceilings)+4)
	for _, c := range ceilings {
		of := needOf[c.Name]
		all = append(all, hostLimit{c, of, sysctl(c.Name), of(typicalGuest) * raiseForGuests})
	}
	for _, c := range l.root.GroupCeilings(l.threads, "pids.max", "pids.current") {
		all = append(all, hostLimit{c, threadsOf, groupRemedy(c.Name), typicalGuest.Threads * raiseForGuests})
	}
	return append(all, l.pageLimits()...), nil
}

// needOf maps the kernel's limits to the part of a need that counts against them.
var needOf = map[string]func(Need) uint64{
	"fs.aio-max-nr":      func(n Need) uint64 { return n.AIO },
	"fs.file-max":        func(n Need) uint64 { return n.Files },
	"kernel.pty.max":     func(n Need) uint64 { return n.PTYs },
	"kernel.threads-max": threadsOf,
	"kernel.pid_max":     threadsOf,
}

func threadsOf(n Need) uint64 { return n.Threads }

func sysctl(name string) func(uint64) string {
	return func(n uint64) string { return fmt.Sprintf("raise it with: sysctl -w %s=%d", name, n) }
}

// groupRemedy returns the command that raises a control group's limit. For a systemd unit it is systemctl,
// because systemd would undo a plain write.
func groupRemedy(file string) func(uint64) string {
	dir, knob := path.Split(file)
	unit := path.Base(dir)
	return func(n uint64) string {
		switch path.Ext(unit) {
		case ".service", ".slice", ".scope":
			if knob == "pids.max" {
				return fmt.Sprintf("raise it with: systemctl set-property %s TasksMax=%d", unit, n)
			}
		}
		return fmt.Sprintf("raise it with: echo %d > %s", n, file)
	}
}

// pageLimits returns the limits of control groups on huge pages, in bytes. The file names depend on the
// version: hugetlb.2MB.max, hugetlb.2MB.limit_in_bytes.
func (l *Limits) pageLimits() (all []hostLimit) {
	for _, size := range l.sizes {
		of := func(n Need) (sum uint64) {
			for _, d := range n.Pages {
				if d.Size == size {
					sum += d.Count * d.Size
				}
			}
			return sum
		}
		prefix := "hugetlb." + strings.ReplaceAll(strings.ReplaceAll(formatBytes(size), " ", ""), "iB", "B")
		for _, files := range [][2]string{{".max", ".current"}, {".limit_in_bytes", ".usage_in_bytes"}} {
			for _, c := range l.root.GroupCeilings(l.pages, prefix+files[0], prefix+files[1]) {
				all = append(all, hostLimit{c, of, groupRemedy(c.Name), 0})
			}
		}
	}
	return all
}

// isBridgeStale says that a bridge was not read since the limits were. Guests that started in between would not be
// counted at all.
func (l *Limits) isBridgeStale(bridge string) bool { return l.bridges[bridge].read.Before(l.read) }

// readBridges counts the ports of bridges.
func (l *Limits) readBridges(names []string) {
	for _, name := range names {
		now := bridgePorts{time.Now(), l.root.BridgePorts(name)}
		l.mu.Lock()
		maps.DeleteFunc(l.bridges, func(name string, old bridgePorts) bool {
			forget := now.read.Sub(old.read) > time.Minute
			if forget {
				delete(l.others, l.bridgeLimit(name).Name)
			}
			return forget
		})
		l.bridges[name] = now
		l.noteOthers(l.bridgeLimit(name))
		l.mu.Unlock()
	}
}

func (l *Limits) bridgeLimit(name string) hostLimit {
	return hostLimit{
		Ceiling: kernel.Ceiling{Name: "the ports of bridge " + name, Max: maxBridgePorts, Used: l.bridges[name].used},
		need: func(n Need) (count uint64) {
			for _, b := range n.Bridges {
				if b == name {
					count++
				}
			}
			return count
		},
		remedy: func(uint64) string {
			return "no setting raises that: add a bridge with: ip link add NAME type bridge, and connect the guest there"
		},
	}
}

// checkProcess checks a need against the limits of each process, and raises the daemon's own.
func (l *Limits) checkProcess(n Need) error {
	if limit, err := l.root.Sysctl("vm.max_map_count"); err == nil && n.Maps > limit {
		return fault.New(fault.NoCapacity, fault.Host, "the guest's QEMU needs about %d memory areas, and vm.max_map_count is %d; %s",
			n.Maps, limit, sysctl("vm.max_map_count")(2*n.Maps))
	}
	if n.Locked > 0 && !l.root.MayLock() {
		if err := l.raise(kernel.LockedMemory, n.Locked, n.Locked); err != nil {
			return err
		}
	}
	if err := l.raise(kernel.OpenFiles, n.Files, n.Files); err != nil { // QEMU inherits this limit
		return err
	}
	if n.DaemonFiles == 0 {
		return nil
	}
	return l.raiseFiles(n.DaemonFiles)
}

// raiseFiles raises the daemon's limit of open files by more, and then doubles it.
func (l *Limits) raiseFiles(more uint64) error {
	used := l.root.OpenFileCount()
	return l.raise(kernel.OpenFiles, used+more, 2*(used+more))
}

// raise raises a limit of the daemon to wanted if it is below needed. Child processes inherit the limit. It
// fails only if the limit stays below needed.
func (l *Limits) raise(limit kernel.ProcessLimit, needed, wanted uint64) error {
	l.raising.Lock()
	defer l.raising.Unlock()
	soft, hard, err := limit.Get()
	if err != nil || soft >= needed {
		return err
	}
	for _, to := range []uint64{max(wanted, needed), needed} {
		if err = limit.Set(to); err == nil {
			l.log.Info("process limit raised", "limit", limit.Name, "from", soft, "to", to)
			return nil
		}
	}
	remedy := fmt.Sprintf("prlimit --pid %d --%s=%d:%d", os.Getpid(), limit.Name, wanted, max(wanted, hard))
	if most, err := l.root.Sysctl("fs.nr_open"); limit == kernel.OpenFiles && err == nil && needed > most {
		remedy = fmt.Sprintf("sysctl -w fs.nr_open=%d", 2*wanted)
	}
	return fault.Wrap(err, fault.NoCapacity, fault.Host, "the guest needs %d of the daemon's limit %s, which is %d; raise it with: %s", needed, limit.Name, soft, remedy)
}

// typicalGuest is the need of a usual guest with a pty and with disks on native I/O.
var typicalGuest = Need{Threads: 8, Files: 64, PTYs: 1, AIO: AIOContext, DaemonFiles: 8}

// minOpenFiles is the minimum limit of open files that the daemon sets for itself and for QEMU: many times the
// need of a guest with many disks and queues.
const minOpenFiles = 1 << 16

// Prepare sets the daemon's own limits for a number of guests when the daemon starts. Warnings name the limits
// that will stop this host earlier.
func (l *Limits) Prepare(guests uint64) (warnings []string, err error) {
	soft, hard, err := kernel.OpenFiles.Get()
	if err != nil {
		return nil, err
	}
	needed := l.root.OpenFileCount() + guests*typicalGuest.DaemonFiles
	wanted := max(2*needed, minOpenFiles)
	if err = kernel.OpenFiles.Set(wanted); err != nil {
		wanted = hard
		if err = kernel.OpenFiles.Set(hard); err == nil && hard < needed {
			warnings = append(warnings, fmt.Sprintf("this daemon may open %d files: it stops this host after about %d more guests; raise it with: prlimit --pid %d --nofile=%d:%d",
				hard, (hard-min(l.root.OpenFileCount(), hard))/typicalGuest.DaemonFiles, os.Getpid(), needed, needed))
		}
	}
	if err != nil {
		return nil, err
	}
	if soft != wanted {
		l.log.Info("open file limit set", "from", soft, "to", wanted)
	}
	if err := l.refresh(limitsAge); err != nil {
		return warnings, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range l.limits {
		each := b.need(typicalGuest)
		if each == 0 {
			continue
		}
		if fits := b.Left() / each; fits < guests {
			warnings = append(warnings, fmt.Sprintf("%s is %d (%d in use): it stops this host after about %d more guests; %s",
				b.Name, b.Max, b.Used, fits, b.remedy(b.Used+guests*each)))
		}
	}
	return warnings, nil
}
