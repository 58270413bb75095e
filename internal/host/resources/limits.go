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

// Need is what a guest takes of the limits of the host and of its processes.
type Need struct {
	Threads uint64
	Files   uint64
	PTYs    uint64
	// AIO counts places for native asynchronous I/O (fs.aio-max-nr). QEMU takes
	// AIOContext for each of its threads that serves such disks.
	AIO uint64
	// Maps are the areas of QEMU's address space, roughly.
	Maps uint64
	// Locked is memory that may not leave RAM, in bytes.
	Locked uint64
	// DaemonFiles are files that the daemon keeps open for the guest.
	DaemonFiles uint64
	// Bridges are the bridges that the guest's NICs go to, one entry for each.
	Bridges []string
	// Pages are huge pages; the ledger holds them against the pools, and their
	// control group here.
	Pages []topology.PageDemand
}

// AIOContext is what one QEMU thread with native asynchronous I/O takes of
// fs.aio-max-nr: QEMU's own constant in its Linux AIO code, and why a host with
// the kernel's default of 65536 stops at 64 such guests.
const AIOContext = 1024

// maxBridgePorts is how many ports the kernel gives a bridge: it numbers them in
// ten bits, and does not use 0.
const maxBridgePorts = 1<<10 - 1

// bound is a limit that guests may hit.
type bound struct {
	kernel.Ceiling
	// of says what a need takes of it.
	of func(Need) uint64
	// remedy is the one command that lifts it to n.
	remedy func(n uint64) string
	// step is a sensible raise, for many more guests of the same need.
	step uint64
}

const (
	// limitsAge is how old what was read of the host's limits may be when a guest
	// starts. What was granted since is added.
	limitsAge = 100 * time.Millisecond
	// room is for how many more guests alike a limit is meant to suffice once it
	// was raised.
	room = 4096
)

// Limits holds what starting guests need against the limits of the host, of its
// control groups and of the daemon, so that a start which would fail in the
// middle is refused before anything is made, and says what to do. What the daemon
// can raise for itself, it raises.
//
// The kernel's counters are read ten times a second at most, and once more before
// somebody is refused what another has just given back. A guest that was granted
// something counts besides, until they were read after it had taken it.
type Limits struct {
	root kernel.Root
	log  *slog.Logger
	// threads are the groups that bound the daemon's threads and its guests', pages
	// those that bound the guests' huge pages, of these sizes.
	threads, pages []string
	sizes          []uint64

	reading sync.Mutex // held by the one who reads
	raising sync.Mutex // held by the one who raises a limit of the daemon's own

	mu     sync.Mutex
	read   time.Time // when reading began
	freed  time.Time // when a guest last gave back what it held
	bounds []bound
	// bridges are the ports of bridges, each read when somebody asks for it.
	bridges map[string]bridgePorts
	// held are the needs of guests that start or run. Starting are those that the
	// counters as they were read may lack, with the time when they had taken what
	// they need; zero: not yet.
	held     map[string]Need
	starting map[string]time.Time
	// others is what all else took of each bound when last no guest was starting.
	others map[string]uint64
}

type bridgePorts struct {
	read time.Time
	used uint64
}

// NewLimits finds the limits of a host, whose guests are in these groups; nil on
// one without any.
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
		if groups.Version() == 2 { // there is one tree, and guests are moved in it
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

// take grants a guest what it needs, or refuses with the limit, its value, what is
// needed and the command that raises it.
func (l *Limits) take(guest string, n Need) error {
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

// grant holds a need against bounds that are no older than age.
func (l *Limits) grant(guest string, n Need, age time.Duration) error {
	if err := l.refresh(age); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for slices.ContainsFunc(n.Bridges, l.unread) {
		l.mu.Unlock()
		l.readBridges(n.Bridges)
		l.mu.Lock()
	}
	for _, b := range l.bounds {
		if err := l.fits(b, n); err != nil {
			return err
		}
	}
	for _, bridge := range n.Bridges {
		if err := l.fits(l.bridgeBound(bridge), n); err != nil {
			return err
		}
	}
	l.held[guest], l.starting[guest] = n, time.Time{}
	return nil
}

// extend grants a running guest huge pages besides, which the kernel counts as
// soon as it has them.
func (l *Limits) extend(guest string, pages []topology.PageDemand) error {
	if l == nil || len(pages) == 0 {
		return nil
	}
	if err := l.refresh(0); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range l.bounds {
		if err := l.fits(b, Need{Pages: pages}); err != nil {
			return err
		}
	}
	if n, is := l.held[guest]; is {
		n.Pages = slices.Concat(n.Pages, pages)
		l.held[guest] = n
	}
	return nil
}

// reduce forgets huge pages that a guest has given back.
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

// outdated says whether a guest has given something back since the bounds were
// read.
func (l *Limits) outdated() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.freed.Before(l.read)
}

// started says that a guest has taken what it was granted: the kernel counts it.
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

// restore enters what a guest has that an earlier daemon started: the kernel
// counts it, and what was read before does not tell it from what others have.
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

// release forgets a guest.
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

// fits holds a need against a bound. What starting guests were granted may be
// among what the kernel counts, or not yet: they are counted twice only where the
// sum of all that is held does not show that there is room.
func (l *Limits) fits(b bound, n Need) error {
	need := b.of(n)
	if need == 0 {
		return nil
	}
	var starting, held uint64
	for guest := range l.starting {
		starting += b.of(l.held[guest])
	}
	if b.Used+starting+need <= b.Max {
		return nil
	}
	if starting > 0 && b.Used+need <= b.Max {
		for _, other := range l.held {
			held += b.of(other)
		}
		if others, known := l.others[b.Name]; known && others+held+need <= b.Max {
			return nil
		}
	}
	return fault.New(fault.NoCapacity, fault.Host, "the guest needs %d of %s, which is %d and of which %d are in use and %d promised to guests that are starting; %s",
		need, b.Name, b.Max, b.Used, starting, b.remedy(b.Used+starting+need+b.step))
}

// refresh reads the bounds anew when they are older than age. Whoever finds
// another at it goes on with what is known, unless that must not be.
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
		return nil // by the one who was waited for
	}
	at := time.Now()
	all, err := l.readBounds()
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bounds, l.read = all, at
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

// noteOthers tells what is used of a bound by all that is not Lodge's, when that
// can be told.
func (l *Limits) noteOthers(b bound) {
	if len(l.starting) > 0 {
		return
	}
	var held uint64
	for _, n := range l.held {
		held += b.of(n)
	}
	l.others[b.Name] = b.Used - min(held, b.Used)
}

func (l *Limits) readBounds() ([]bound, error) {
	ceilings, err := l.root.Ceilings()
	if err != nil {
		return nil, err
	}
	all := make([]bound, 0, len(ceilings)+4)
	for _, c := range ceilings {
		of := hostWide[c.Name]
		all = append(all, bound{c, of, sysctl(c.Name), of(plainGuest) * room})
	}
	for _, c := range l.root.GroupCeilings(l.threads, "pids.max", "pids.current") {
		all = append(all, bound{c, threadsOf, groupRemedy(c.Name), plainGuest.Threads * room})
	}
	return append(all, l.pageBounds()...), nil
}

// hostWide says what of a need counts against the kernel's bounds on the host.
var hostWide = map[string]func(Need) uint64{
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

// groupRemedy lifts the bound of a control group, the way of systemd where the
// group is one of systemd's: a bare write would be undone.
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

// pageBounds are the bounds that control groups put on huge pages, in bytes. Their
// files are named by version: hugetlb.2MB.max, hugetlb.2MB.limit_in_bytes.
func (l *Limits) pageBounds() (all []bound) {
	for _, size := range l.sizes {
		of := func(n Need) (sum uint64) {
			for _, d := range n.Pages {
				if d.Size == size {
					sum += d.Count * d.Size
				}
			}
			return sum
		}
		prefix := "hugetlb." + strings.ReplaceAll(strings.ReplaceAll(bytes(size), " ", ""), "iB", "B")
		for _, files := range [][2]string{{".max", ".current"}, {".limit_in_bytes", ".usage_in_bytes"}} {
			for _, c := range l.root.GroupCeilings(l.pages, prefix+files[0], prefix+files[1]) {
				all = append(all, bound{c, of, groupRemedy(c.Name), 0})
			}
		}
	}
	return all
}

// unread says that a bridge was not looked at since the bounds were read: guests
// that started in between would not be counted at all.
func (l *Limits) unread(bridge string) bool { return l.bridges[bridge].read.Before(l.read) }

// readBridges counts the ports of bridges.
func (l *Limits) readBridges(names []string) {
	for _, name := range names {
		now := bridgePorts{time.Now(), l.root.BridgePorts(name)}
		l.mu.Lock()
		maps.DeleteFunc(l.bridges, func(name string, old bridgePorts) bool {
			forget := now.read.Sub(old.read) > time.Minute
			if forget {
				delete(l.others, l.bridgeBound(name).Name)
			}
			return forget
		})
		l.bridges[name] = now
		l.noteOthers(l.bridgeBound(name))
		l.mu.Unlock()
	}
}

func (l *Limits) bridgeBound(name string) bound {
	return bound{
		Ceiling: kernel.Ceiling{Name: "the ports of bridge " + name, Max: maxBridgePorts, Used: l.bridges[name].used},
		of: func(n Need) (count uint64) {
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

// checkProcess holds a need against what bounds each process, and raises what is
// the daemon's own.
func (l *Limits) checkProcess(n Need) error {
	if limit, err := l.root.Sysctl("vm.max_map_count"); err == nil && n.Maps > limit {
		return fault.New(fault.NoCapacity, fault.Host, "the guest's process needs about %d memory areas, and vm.max_map_count is %d; %s",
			n.Maps, limit, sysctl("vm.max_map_count")(2*n.Maps))
	}
	if n.Locked > 0 && !l.root.MayLock() {
		if err := l.raise(kernel.LockedMemory, n.Locked, n.Locked); err != nil {
			return err
		}
	}
	if err := l.raise(kernel.OpenFiles, n.Files, n.Files); err != nil { // QEMU inherits it
		return err
	}
	if n.DaemonFiles == 0 {
		return nil
	}
	return l.raiseFiles(n.DaemonFiles)
}

// raiseFiles makes room for so many more files in the daemon, and for as many
// again.
func (l *Limits) raiseFiles(more uint64) error {
	used := l.root.OpenFileCount()
	return l.raise(kernel.OpenFiles, used+more, 2*(used+more))
}

// raise lifts a limit of the daemon's own to wanted when it is below needed. What
// it starts inherits the limit. Only what is needed is insisted on.
func (l *Limits) raise(limit kernel.ProcessLimit, needed, wanted uint64) error {
	l.raising.Lock()
	defer l.raising.Unlock()
	soft, hard, err := limit.Get()
	if err != nil || soft >= needed {
		return err
	}
	for _, to := range []uint64{max(wanted, needed), needed} {
		if err = limit.Set(to); err == nil {
			l.log.Info("raised a limit of this process", "limit", limit.Name, "from", soft, "to", to)
			return nil
		}
	}
	remedy := fmt.Sprintf("prlimit --pid %d --%s=%d:%d", os.Getpid(), limit.Name, wanted, max(wanted, hard))
	if most, err := l.root.Sysctl("fs.nr_open"); limit == kernel.OpenFiles && err == nil && needed > most {
		remedy = fmt.Sprintf("sysctl -w fs.nr_open=%d", 2*wanted)
	}
	return fault.Wrap(err, fault.NoCapacity, fault.Host, "the guest needs %d of this daemon's limit %s, which is %d; raise it with: %s", needed, limit.Name, soft, remedy)
}

// plainGuest is a guest of a plain kind, with a pty and with disks on native I/O.
var plainGuest = Need{Threads: 8, Files: 64, PTYs: 1, AIO: AIOContext, DaemonFiles: 8}

// fewestFiles is the least bound on open files that the daemon asks for, and that
// QEMU gets with it: many times what a guest with many disks and queues opens.
const fewestFiles = 1 << 16

// Prepare sets, when the daemon starts, its own limits for so many guests, and
// says which others will stop this host before it has them.
func (l *Limits) Prepare(guests uint64) (warnings []string, err error) {
	soft, hard, err := kernel.OpenFiles.Get()
	if err != nil {
		return nil, err
	}
	needed := l.root.OpenFileCount() + guests*plainGuest.DaemonFiles
	wanted := max(2*needed, fewestFiles)
	if err = kernel.OpenFiles.Set(wanted); err != nil {
		wanted = hard
		if err = kernel.OpenFiles.Set(hard); err == nil && hard < needed {
			warnings = append(warnings, fmt.Sprintf("this daemon may open %d files: it stops this host after about %d more guests; raise it with: prlimit --pid %d --nofile=%d:%d",
				hard, (hard-min(l.root.OpenFileCount(), hard))/plainGuest.DaemonFiles, os.Getpid(), needed, needed))
		}
	}
	if err != nil {
		return nil, err
	}
	if soft != wanted {
		l.log.Info("set the bound on open files of this daemon and of what it starts", "from", soft, "to", wanted)
	}
	if err := l.refresh(limitsAge); err != nil {
		return warnings, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range l.bounds {
		each := b.of(plainGuest)
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
