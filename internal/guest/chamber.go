package guest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/fsguard"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/mechanism/safepath"
	"github.com/lodge-kvm/lodge/internal/mechanism/sandbox"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// A guest's QEMU runs as a user of its own in a chamber, where it sees what it
// needs and nothing else. Its disks, its firmware and what its serial ports write
// to are opened by the daemon and handed over, so that no file changes its owner:
// nothing has to be given back, and nothing is lost when the daemon dies.

// ownDir is the one directory, in its run directory, that a guest's QEMU may write
// to, and only until it is sealed. What the daemon keeps of the guest lies outside of it.
const ownDir = "own"

// ownPath is where a guest's QEMU makes its sockets.
func (r *run) ownPath() string {
	if r.User == nil {
		return r.dir // it was started without a chamber
	}
	return filepath.Join(r.dir, ownDir)
}

// takeUser gives the guest a user, and a directory that is the user's own.
func (l *launching) takeUser(context.Context) error {
	r := l.g.reg
	if r.Quarters == nil {
		return nil
	}
	if l.run.User == nil { // what was prepared has one
		user, err := r.userOf(l.run.def)
		if err != nil {
			return err
		}
		l.run.User = &user
		if err := makeOwn(l.run.dir, user); err != nil {
			return err
		}
	}
	l.run.label()
	l.run.Isolation = r.barriers(l.run.def)
	return nil
}

// userOf gives the user that a definition names, or a new one.
func (r *Registry) userOf(def *domain.Definition) (sandbox.User, error) {
	for _, label := range def.SecLabels {
		if label.Model == dac && label.Type == "static" {
			u, err := parseUser(label.Label)
			for _, id := range []uint32{u.UID, u.GID} {
				if err == nil && r.Quarters.Users.Has(id) {
					err = fault.New(fault.Invalid, fault.Config, "seclabel %q of model dac: number %d is one of those that guests are given one by one", label.Label, id)
				}
			}
			return u, err
		}
	}
	return r.Quarters.Users.Take(def.UUID)
}

// parseUser reads a label of model dac: "+107:+107". Names are not looked up: they
// may be others tomorrow.
func parseUser(label string) (u sandbox.User, err error) {
	uid, gid, both := strings.Cut(label, ":")
	for _, id := range []struct {
		text string
		to   *uint32
	}{{uid, &u.UID}, {cmp.Or(gid, uid), &u.GID}} {
		n, e := strconv.ParseUint(strings.TrimPrefix(id.text, "+"), 10, 32)
		*id.to, err = uint32(n), errors.Join(err, e)
	}
	if err != nil || both && gid == "" {
		return u, fault.New(fault.Invalid, fault.Config, "seclabel %q of model dac: say numbers, as in +107:+107", label)
	}
	return u, nil
}

func makeOwn(dir string, u sandbox.User) error {
	own := filepath.Join(dir, ownDir)
	err := os.Mkdir(own, 0o700)
	if err == nil {
		err = os.Lchown(own, int(u.UID), int(u.GID))
	}
	return fault.Wrap(err, fault.Failed, fault.Host, "cannot make the guest's own directory")
}

// surveyUsers finds which users' processes and directories earlier daemons left.
func (r *Registry) surveyUsers() error {
	if r.Quarters == nil {
		return nil
	}
	if err := r.holdRecordedUsers(); err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot find out which users guests run as")
	}
	left, err := filepath.Glob(filepath.Join(r.RunDir, "*", ownDir))
	if err == nil {
		err = r.Quarters.Users.Survey(left)
	}
	return fault.Wrap(err, fault.Failed, fault.Host, "cannot find out which users guests run as")
}

// holdRecordedUsers holds the users that run records name: their programs may have ended,
// and the guest still frees the user later. A record that cannot be read is reported when
// its guest is adopted. A guest's own user goes before that of a user network, which
// another guest may have been given since.
func (r *Registry) holdRecordedUsers() error {
	dirs, err := filepath.Glob(filepath.Join(r.RunDir, "*"))
	if err != nil {
		return err
	}
	networks := map[string][]sandbox.User{}
	for _, dir := range dirs {
		rec, err := readRunRecord(dir)
		if rec == nil || err != nil {
			continue
		}
		if rec.User != nil {
			r.Quarters.Users.Hold(*rec.User, rec.UUID)
		}
		networks[rec.UUID] = append(networks[rec.UUID], userNetworks(rec, dir)...)
	}
	for guest, users := range networks {
		for _, user := range users {
			r.Quarters.Users.Hold(user, guest)
		}
	}
	return nil
}

// holdUser gives the guest's user back when all else has been: see rehold, too.
func (r *Registry) holdUser(run *run) {
	run.hold("user", func(context.Context) error {
		if run.User == nil || r.Quarters == nil {
			return nil
		}
		return r.Quarters.Users.Free(*run.User)
	})
}

// emulatorOf finds the QEMU that has the directory as its own by the user; 0: there is
// none, or it has no user of its own.
func (r *Registry) emulatorOf(dir string) (int, error) {
	user := userIn(dir)
	if user == 0 {
		return 0, nil
	}
	pids, err := r.Kernel.RunningAs(user)
	if err != nil {
		return 0, err
	}
	return r.guestAmong(pids, dir)
}

// userIn tells who a guest's own directory is for; 0: nobody. Before it is sealed that is
// its owner. After that the run record says it, and without one the group, whose number
// is the user's where numbers are given out.
func userIn(dir string) uint32 {
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(dir, ownDir), &st); err != nil {
		return 0
	}
	if st.Uid != 0 {
		return st.Uid
	}
	if rec, err := readRunRecord(dir); err == nil && rec != nil && rec.User != nil {
		return rec.User.UID
	}
	return st.Gid
}

// isGuest tells a QEMU that was launched for the guest of a run directory, which has the
// UUID's name, from whatever else runs there or as the same user. The UUID is the first that is said: what
// the user adds (<cmdline>) comes later.
func isGuest(command []string, dir string) bool {
	at := slices.Index(command, "-uuid") + 1
	return at > 0 && at < len(command) && command[at] == filepath.Base(dir) &&
		slices.ContainsFunc(command, func(word string) bool { return strings.HasPrefix(word, "guest=") })
}

// chamberOf describes where a guest's QEMU runs. The files shown are the caller's
// to close.
func (r *Registry) chamberOf(ctx context.Context, def *domain.Definition, u sandbox.User, dir string) (*sandbox.Chamber, error) {
	c := &sandbox.Chamber{
		User: u, Own: []sandbox.Own{{Dir: filepath.Join(dir, ownDir), At: filepath.Join(r.guestDir(def.UUID), ownDir)}},
		Terminals: hasTerminals(def), Network: needsNetwork(def), Rings: needsRings(def),
		Limits: sandbox.Limits{Threads: maxThreads(def), Locked: maxLocked(def), Open: max(2*need(def).Files, freelyOpen)},
	}
	for _, path := range hostNodes(r, def) {
		node, err := nodeAt(ctx, path)
		if err != nil {
			return nil, err
		}
		c.Devices = append(c.Devices, node)
	}
	if err := r.placeDisplays(ctx, def, c); err != nil {
		return nil, err
	}
	for _, path := range shownFiles(def) {
		f, err := openToShow(ctx, path)
		if errors.Is(err, os.ErrNotExist) {
			continue // QEMU says so, in its own words
		}
		if err != nil {
			closeShown(c)
			return nil, fault.Wrap(err, fault.Of(err), fault.Host, "cannot open %s", path)
		}
		c.Shown = append(c.Shown, sandbox.Shown{Path: filepath.Clean(path), File: f})
	}
	read, err := openRead(ctx, def)
	if err != nil {
		closeShown(c)
		return nil, err
	}
	for path, f := range read {
		c.Shown = append(c.Shown, sandbox.Shown{Path: filepath.Clean(path), File: f})
	}
	return c, nil
}

// nodeAt looks at the device node that a path leads to: in a user's folder a link could lead to
// any disk of the host's.
func nodeAt(ctx context.Context, path string) (sandbox.Device, error) {
	return fsguard.Do(ctx, path, func() (node sandbox.Device, err error) {
		at, err := safepath.Open(path)
		if err != nil {
			return node, fault.Wrap(err, failure(err), fault.Host, "cannot use the device %s", path)
		}
		defer at.Close()
		var st unix.Stat_t
		if err := unix.Fstat(int(at.Fd()), &st); err != nil {
			return node, fault.Wrap(err, fault.Failed, fault.Host, "cannot use the device %s", path)
		}
		kind := st.Mode & unix.S_IFMT
		if kind != unix.S_IFCHR && kind != unix.S_IFBLK {
			return node, fault.New(fault.Invalid, fault.Host, "%s is no device", path)
		}
		return sandbox.Device{Path: path, Mode: kind, Dev: st.Rdev}, nil
	}, nil)
}

// allowDevices has the guest's control group open the device nodes that are in its
// chamber, for these definitions, and no others: the kernel then refuses those that
// a QEMU which was taken over might come by in a way that nobody thought of.
func (r *Registry) allowDevices(ctx context.Context, uuid string, defs ...*domain.Definition) error {
	paths := sandbox.Nodes()
	var nodes []kernel.DeviceNode
	for _, def := range defs {
		paths = append(paths, hostNodes(r, def)...)
		if hasTerminals(def) {
			nodes = append(nodes, kernel.Terminals()...)
		}
	}
	for _, path := range paths {
		at, err := nodeAt(ctx, path)
		if err != nil {
			continue // told by who needs it
		}
		n := kernel.DeviceNode{Block: at.Mode == unix.S_IFBLK, Major: unix.Major(at.Dev), Minor: unix.Minor(at.Dev)}
		if !slices.Contains(nodes, n) {
			nodes = append(nodes, n)
		}
	}
	return r.Cgroups.Guest(uuid).AllowDevices(nodes)
}

// hasNodes says that the guest may have been let open a node for a device.
func (r *Registry) hasNodes(dev device.Device) bool {
	_, passed := dev.(*device.HostDevice) // the host may have lost it meanwhile
	return passed || len(r.nodesOf(dev)) > 0
}

// shortenNodes takes the nodes of devices that have gone off the list of what the
// guest may open. It runs in the loop; the list is written beside it, as work of its
// own: no plug is under way then whose node would be refused.
func (g *Guest) shortenNodes() {
	r := g.run
	if r == nil || !r.shorten || r.User == nil || r.ops.Has(attachKind.Name) || g.job != nil || g.over || r.ending() {
		return
	}
	r.shorten = false
	def := r.def
	g.startInternal(domain.JobModify, modifyLimit, func(ctx context.Context) (settle, error) {
		failpoint.Reach("unplug.nodes")
		if err := g.reg.allowDevices(ctx, r.UUID, def); err != nil {
			g.log.Warn("the guest may still open the nodes of a device that it has let go", "error", err)
			return nil, err
		}
		return func() error {
			r.Surplus = false
			g.keepRun()
			return nil
		}, nil
	})
}

func closeShown(c *sandbox.Chamber) {
	for _, s := range c.Shown {
		_ = s.File.Close() // opened to be looked at
	}
	c.Shown = nil
}

// freelyLocked is what any guest may lock: rings of requests to the kernel.
const freelyLocked = 64 << 20

// freelyOpen is how many files any guest's QEMU may have open, with what may be plugged in: more than it ever needs, and no
// more than a part of those that the host can have.
const freelyOpen = 1 << 16

// workers are those in the pool that each of QEMU's loops has: its main one, and each iothread.
const workers = 64

// spareThreads are those that QEMU makes for disks, displays and jobs.
const spareThreads = 3 * workers

// maxThreads bounds the threads of a guest's QEMU.
func maxThreads(def *domain.Definition) uint64 {
	return need(def).Threads + spareThreads + workers*uint64(def.IOThreads)
}

// openToShow opens a file that lies where whoever named it is held to.
func openToShow(ctx context.Context, path string) (*os.File, error) {
	held := heldTo(ctx, path)
	return fsguard.Do(ctx, path, func() (f *os.File, err error) {
		err = image.At(path, held, func(at string, nofollow int) error {
			f, err = openShown(at, nofollow)
			return err
		})
		return f, err
	}, func(f *os.File) { _ = f.Close() })
}

// openShown opens a file to be shown in a chamber; sockets, pipes and directories
// only by name. What is looked at is what is opened: the path is followed once.
func openShown(path string, nofollow int) (*os.File, error) {
	at, err := os.OpenFile(path, unix.O_PATH|nofollow, 0)
	if err != nil {
		return nil, err
	}
	info, err := at.Stat()
	if err == nil && info.Mode().Type() == os.ModeSymlink { // only where none is followed
		err = unix.ELOOP
	}
	if err == nil && !info.Mode().IsRegular() {
		return at, nil
	}
	defer at.Close()
	if err != nil {
		return nil, err
	}
	return os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", at.Fd()), unix.O_RDONLY|unix.O_NONBLOCK, 0)
}

// removeSockets removes what listenFor made, and nobody listens on any more.
func removeSockets(ctx context.Context, run *run) error {
	if run.User == nil {
		return nil
	}
	def := run.last()
	var failed []error
	for _, b := range backends(def) {
		if b.Listens() && !strings.HasPrefix(b.Path, run.dir+"/") { // which goes as a whole
			failed = append(failed, removeSocket(ctx, b.Path, qemu.RemoveDeserted))
		}
	}
	for _, path := range displaySockets(def, run.ownPath()) {
		failed = append(failed, removeSocket(ctx, path, func(at string) error { return unlinkSocket(at, run.dir) }))
	}
	return errors.Join(failed...)
}

// removeSocket has do remove what a path names. What is behind a link to what others have is none
// of the guest's any more.
func removeSocket(ctx context.Context, path string, do func(at string) error) error {
	err := fsguard.Run(ctx, path, func() error { return safepath.OpenLink(path, do) })
	if errors.Is(err, os.ErrNotExist) || fault.Is(err, fault.Denied) {
		return nil
	}
	return err
}

// admit gives the QEMU of a running guest what it needs to make one more device.
func (r *Registry) admit(ctx context.Context, run *run, p *qemu.Plan, dev device.Device) error {
	if run.User == nil {
		return nil
	}
	alone := &domain.Definition{}
	if err := alone.Devices.Add(dev); err != nil {
		return err
	}
	nic, isNIC := dev.(*device.NIC)
	served := isNIC && p.NICs[nic.Alias] != nil && p.NICs[nic.Alias].Wire != nil
	if needsNetwork(alone) && !served && r.lacksNetwork(run) {
		return fault.New(fault.Unsupported, fault.Config,
			"this guest was started without the host's network, which its %s needs: add it to the configuration (--config), and start the guest anew", dev.Kind())
	}
	if needsRings(alone) && slices.Contains(run.Isolation, ringBarrier) {
		return fault.New(fault.Unsupported, fault.Config,
			"this guest was started without io_uring, which its %s needs: add it to the configuration (--config), and start the guest anew", dev.Kind())
	}
	if err := r.allowDevices(ctx, run.UUID, p.Definition, alone); err != nil {
		return err
	}
	if modules := alone.Devices.Memories; len(modules) > 0 {
		if err := r.boundHugePages(run.UUID, p.Definition, modules); err != nil {
			return err
		}
	}
	if err := r.openBackends(ctx, run, p, []device.Device{dev}); err != nil {
		return err
	}
	c, err := r.chamberOf(ctx, alone, *run.User, run.dir)
	if err != nil {
		return err
	}
	defer closeShown(c)
	c.Label = run.labels.of()
	if err := run.labels.admit(ctx, p, dev, c); err != nil {
		return err
	}
	return c.Admit(run.PID)
}

// environment is what a QEMU in a chamber is told of the host's: nothing that
// could be a secret of the daemon's.
func environment(own string) []string {
	env := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + own, "TMPDIR=" + own}
	for _, e := range os.Environ() {
		name, _, _ := strings.Cut(e, "=")
		if name == "LANG" || name == "TZ" || strings.HasPrefix(name, "LC_") || strings.HasPrefix(name, "QEMU_") {
			env = append(env, e)
		}
	}
	return env
}

// overruled gives an environment in which what a definition says takes the place of what is called the same: of two QEMU
// finds the first.
func overruled(env, said []string) []string {
	called := func(variable string) string { name, _, _ := strings.Cut(variable, "="); return name }
	return append(slices.DeleteFunc(env, func(there string) bool {
		return slices.ContainsFunc(said, func(e string) bool { return called(e) == called(there) })
	}), said...)
}
