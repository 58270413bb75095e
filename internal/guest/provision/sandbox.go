package provision

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

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/mechanism/fsguard"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemuprocess"
	"github.com/lodge-kvm/lodge/internal/mechanism/safepath"
	"github.com/lodge-kvm/lodge/internal/mechanism/sandbox"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// A guest's QEMU runs as a user of its own in a sandbox, where it sees only the files that it needs. The
// daemon opens its disks, its firmware and the output files of its serial ports, and passes the descriptors
// on. So no file changes its owner: nothing must be restored, and nothing is lost if the daemon dies.

// OwnDir is the one directory, inside the run directory, that a guest's QEMU may write to, and only until
// it is sealed. The daemon keeps its own files of the guest outside of it.
const OwnDir = "own"

// OwnPath returns the directory where the guest's QEMU makes its sockets.
func OwnPath(r *machine.Instance) string {
	if r.User == nil {
		return r.Dir // it was started without a sandbox
	}
	return filepath.Join(r.Dir, OwnDir)
}

// UserOf returns the user that the definition names in a static seclabel of model dac, or else a new one.
func UserOf(r *machine.Registry, def *domain.Definition) (sandbox.User, error) {
	for _, label := range def.SecLabels {
		if label.Model == dac && label.Type == "static" {
			u, err := parseUser(label.Label)
			for _, id := range []uint32{u.UID, u.GID} {
				if err == nil && r.Quarters.Users.Has(id) {
					err = fault.New(fault.Invalid, fault.Config, "seclabel %q of model dac: number %d is in the range that Lodge assigns to guests; choose another one", label.Label, id)
				}
			}
			return u, err
		}
	}
	return r.Quarters.Users.Take(def.UUID)
}

// parseUser parses a seclabel of model dac, such as "+107:+107". Names are not looked up, because a name
// may belong to another user tomorrow.
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
		return u, fault.New(fault.Invalid, fault.Config, "seclabel %q of model dac: use numbers, as in +107:+107", label)
	}
	return u, nil
}

// MakeOwn makes the directory in dir that user u owns.
func MakeOwn(dir string, u sandbox.User) error {
	own := filepath.Join(dir, OwnDir)
	err := os.Mkdir(own, 0o700)
	if err == nil {
		err = os.Lchown(own, int(u.UID), int(u.GID))
	}
	return fault.Wrap(err, fault.Failed, fault.Host, "cannot make the guest's own directory")
}

// SurveyUsers finds the users that still have processes or directories of earlier daemons, so that none is
// given out twice.
func SurveyUsers(r *machine.Registry) error {
	if r.Quarters == nil {
		return nil
	}
	if err := holdRecordedUsers(r); err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot find out which users guests run as")
	}
	left, err := filepath.Glob(filepath.Join(r.RunDir, "*", OwnDir))
	if err == nil {
		err = r.Quarters.Users.ReserveInUse(left)
	}
	return fault.Wrap(err, fault.Failed, fault.Host, "cannot find out which users guests run as")
}

// holdRecordedUsers reserves the users that instance records name. A guest still owns its user after its
// processes have ended, until it releases the user. A record that cannot be read is reported when its guest
// is adopted. The guests' own users come first, then the users of user networks, which another guest may
// have been given since.
func holdRecordedUsers(r *machine.Registry) error {
	dirs, err := filepath.Glob(filepath.Join(r.RunDir, "*"))
	if err != nil {
		return err
	}
	networks := map[string][]sandbox.User{}
	for _, dir := range dirs {
		rec, err := machine.ReadRecord(dir)
		if rec == nil || err != nil {
			continue
		}
		if rec.User != nil {
			r.Quarters.Users.Reserve(*rec.User, rec.UUID)
		}
		networks[rec.UUID] = append(networks[rec.UUID], userNetworks(rec, dir)...)
	}
	for guest, users := range networks {
		for _, user := range users {
			r.Quarters.Users.Reserve(user, guest)
		}
	}
	return nil
}

// HoldUser pushes the release of the guest's user. It runs after the releases of everything else; rehold
// keeps this order.
func HoldUser(r *machine.Registry, run *machine.Instance) {
	run.Hold("user", func(context.Context) error {
		if run.User == nil || r.Quarters == nil {
			return nil
		}
		return r.Quarters.Users.Free(*run.User)
	})
}

// emulatorOf finds the QEMU of a run directory by the user of that directory. It returns 0 if there is
// none, or if it has no user of its own.
func emulatorOf(r *machine.Registry, dir string) (int, error) {
	user := userIn(dir)
	if user == 0 {
		return 0, nil
	}
	pids, err := r.Kernel.RunningAs(user)
	if err != nil {
		return 0, err
	}
	return guestAmong(r, pids, dir)
}

// userIn returns the user of a guest's own directory, or 0 if there is none. Before the directory is sealed
// this is its owner. Afterwards the instance record names it. Without a record it is the directory's group,
// which has the user's number if Lodge chose the user.
func userIn(dir string) uint32 {
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(dir, OwnDir), &st); err != nil {
		return 0
	}
	if st.Uid != 0 {
		return st.Uid
	}
	if rec, err := machine.ReadRecord(dir); err == nil && rec != nil && rec.User != nil {
		return rec.User.UID
	}
	return st.Gid
}

// chamberOf returns the specification of the sandbox of a guest's QEMU. The caller must close the shown files.
func chamberOf(ctx context.Context, r *machine.Registry, sc scope.Scope, def *domain.Definition, u sandbox.User, dir string) (*sandbox.Spec, error) {
	c := &sandbox.Spec{
		User: u, WritableDirs: []sandbox.WritableDir{{HostPath: filepath.Join(dir, OwnDir), Path: filepath.Join(r.GuestDir(def.UUID), OwnDir)}},
		Terminals: hasTerminals(def), HostNetwork: needsNetwork(def), AllowIOUring: needsRings(def),
		Limits: sandbox.Limits{Threads: MaxThreads(def), Locked: MaxLocked(def), Open: max(2*Need(def).Files, freelyOpen)},
	}
	for _, path := range HostNodes(r, def) {
		node, err := nodeAt(ctx, path)
		if err != nil {
			return nil, err
		}
		c.Devices = append(c.Devices, node)
	}
	if err := placeDisplays(ctx, r, sc, def, c); err != nil {
		return nil, err
	}
	for _, path := range shownFiles(def) {
		f, err := openToShow(ctx, sc, path)
		if errors.Is(err, os.ErrNotExist) {
			continue // QEMU reports this with a message of its own
		}
		if err != nil {
			closeShown(c)
			return nil, fault.Wrap(err, fault.Of(err), fault.Host, "cannot open %s", path)
		}
		c.ReadOnlyFiles = append(c.ReadOnlyFiles, sandbox.ReadOnlyFile{Path: filepath.Clean(path), File: f})
	}
	read, err := OpenRead(ctx, sc, def)
	if err != nil {
		closeShown(c)
		return nil, err
	}
	for path, f := range read {
		c.ReadOnlyFiles = append(c.ReadOnlyFiles, sandbox.ReadOnlyFile{Path: filepath.Clean(path), File: f})
	}
	return c, nil
}

// nodeAt looks up the device node at a path. safepath refuses a link in a user's folder, which could lead
// to any disk of the host.
func nodeAt(ctx context.Context, path string) (sandbox.Device, error) {
	return fsguard.Do(ctx, path, func() (node sandbox.Device, err error) {
		at, err := safepath.Open(path)
		if err != nil {
			return node, fault.Wrap(err, machine.Failure(err), fault.Host, "cannot use the device %s", path)
		}
		defer at.Close()
		var st unix.Stat_t
		if err := unix.Fstat(int(at.Fd()), &st); err != nil {
			return node, fault.Wrap(err, fault.Failed, fault.Host, "cannot use the device %s", path)
		}
		kind := st.Mode & unix.S_IFMT
		if kind != unix.S_IFCHR && kind != unix.S_IFBLK {
			return node, fault.New(fault.Invalid, fault.Host, "%s is not a device", path)
		}
		return sandbox.Device{Path: path, Mode: kind, Dev: st.Rdev}, nil
	}, nil)
}

// AllowDevices lets the guest's control group open the device nodes of these definitions, and no others.
// The same nodes are in its sandbox. The kernel then refuses every other node, even if a compromised QEMU
// gets at one in an unforeseen way.
func AllowDevices(ctx context.Context, r *machine.Registry, uuid string, defs ...*domain.Definition) error {
	paths := sandbox.DeviceNodes()
	var nodes []kernel.DeviceNode
	for _, def := range defs {
		paths = append(paths, HostNodes(r, def)...)
		if hasTerminals(def) {
			nodes = append(nodes, kernel.Terminals()...)
		}
	}
	for _, path := range paths {
		at, err := nodeAt(ctx, path)
		if err != nil {
			continue // the caller that needs the node reports it
		}
		n := kernel.DeviceNode{Block: at.Mode == unix.S_IFBLK, Major: unix.Major(at.Dev), Minor: unix.Minor(at.Dev)}
		if !slices.Contains(nodes, n) {
			nodes = append(nodes, n)
		}
	}
	return r.Cgroups.Guest(uuid).AllowDevices(nodes)
}

// HasNodes reports whether the guest may have been allowed to open a node for dev.
func HasNodes(r *machine.Registry, dev device.Device) bool {
	_, passed := dev.(*device.HostDevice) // the host may have lost the device since
	return passed || len(nodesOf(r, dev)) > 0
}

// closeShown closes the files that a sandbox shows.
func closeShown(c *sandbox.Spec) {
	for _, s := range c.ReadOnlyFiles {
		_ = s.File.Close() // opened for reading only
	}
	c.ReadOnlyFiles = nil
}

// freelyLocked is how many bytes any guest may lock: 64 MiB, for io_uring's rings.
const freelyLocked = 64 << 20

// freelyOpen is how many files any guest's QEMU may have open, including those of devices attached later.
// It is more than QEMU ever needs, and only a part of what the host allows.
const freelyOpen = 1 << 16

// Workers is the size of the thread pool of each of QEMU's event loops: the main loop and each iothread.
const Workers = 64

// spareThreads are the threads that QEMU makes for disks, displays and jobs.
const spareThreads = 3 * Workers

// MaxThreads returns the largest number of threads that a guest's QEMU may have.
func MaxThreads(def *domain.Definition) uint64 {
	return Need(def).Threads + spareThreads + Workers*uint64(def.IOThreads)
}

// openToShow opens a file for the sandbox, if its path is permitted to the client that named it.
func openToShow(ctx context.Context, sc scope.Scope, path string) (*os.File, error) {
	held := sc.FoldersFor(path)
	return fsguard.Do(ctx, path, func() (f *os.File, err error) {
		err = image.WithFile(path, held, func(at string, nofollow int) error {
			f, err = OpenShown(at, nofollow)
			return err
		})
		return f, err
	}, func(f *os.File) { _ = f.Close() })
}

// OpenShown opens a file for a sandbox. Sockets, pipes and directories are opened by name only (O_PATH).
// The path is followed once, so that the file which was checked is the one that is opened.
func OpenShown(path string, nofollow int) (*os.File, error) {
	at, err := os.OpenFile(path, unix.O_PATH|nofollow, 0)
	if err != nil {
		return nil, err
	}
	info, err := at.Stat()
	if err == nil && info.Mode().Type() == os.ModeSymlink { // only with nofollow
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

// RemoveSockets removes the sockets that listenFor made and on which no process listens any more.
func RemoveSockets(ctx context.Context, run *machine.Instance) error {
	if run.User == nil {
		return nil
	}
	def := run.LastDefinition()
	var failed []error
	for _, b := range Backends(def) {
		if b.Listens() && !strings.HasPrefix(b.Path, run.Dir+"/") { // those are removed with the run directory
			failed = append(failed, RemoveSocket(ctx, b.Path, qemuprocess.RemoveDeserted))
		}
	}
	for _, path := range displaySockets(def, OwnPath(run)) {
		failed = append(failed, RemoveSocket(ctx, path, func(at string) error { return unlinkSocket(at, run.Dir) }))
	}
	return errors.Join(failed...)
}

// RemoveSocket calls do to remove the socket at path. A socket behind another user's link is not the
// guest's and is skipped.
func RemoveSocket(ctx context.Context, path string, do func(at string) error) error {
	err := fsguard.Run(ctx, path, func() error { return safepath.OpenLink(path, do) })
	if errors.Is(err, os.ErrNotExist) || fault.Is(err, fault.Denied) {
		return nil
	}
	return err
}

// Admit gives a running guest's QEMU access to what dev needs: device nodes, memory, files and labels.
func Admit(ctx context.Context, r *machine.Registry, sc scope.Scope, run *machine.Instance, p *qemu.Plan, dev device.Device) error {
	if run.User == nil {
		return nil
	}
	alone := &domain.Definition{}
	if err := alone.Devices.Add(dev); err != nil {
		return err
	}
	nic, isNIC := dev.(*device.NIC)
	served := isNIC && p.NICs[nic.Alias] != nil && p.NICs[nic.Alias].Wire != nil
	if needsNetwork(alone) && !served && LacksNetwork(r, run) {
		return fault.New(fault.Unsupported, fault.Config,
			"this guest was started without the host's network, which its %s needs: add it to the configuration (--config), and start the guest again", dev.Kind())
	}
	if needsRings(alone) && slices.Contains(run.Isolation, ringBarrier) {
		return fault.New(fault.Unsupported, fault.Config,
			"this guest was started without io_uring, which its %s needs: add it to the configuration (--config), and start the guest again", dev.Kind())
	}
	if err := AllowDevices(ctx, r, run.UUID, p.Definition, alone); err != nil {
		return err
	}
	if modules := alone.Devices.Memories; len(modules) > 0 {
		if err := BoundHugePages(r, run.UUID, p.Definition, modules); err != nil {
			return err
		}
	}
	if err := OpenBackends(ctx, r, sc, run, p, []device.Device{dev}); err != nil {
		return err
	}
	c, err := chamberOf(ctx, r, sc, alone, *run.User, run.Dir)
	if err != nil {
		return err
	}
	defer closeShown(c)
	c.Label = run.Labels.LabelOf()
	if err := run.Labels.Admit(ctx, p, dev, c); err != nil {
		return err
	}
	return c.AddTo(run.PID)
}

// Environment returns the environment of a QEMU in a sandbox. It holds no variable that could be a secret
// of the daemon.
func Environment(own string) []string {
	env := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + own, "TMPDIR=" + own}
	for _, e := range os.Environ() {
		name, _, _ := strings.Cut(e, "=")
		if name == "LANG" || name == "TZ" || strings.HasPrefix(name, "LC_") || strings.HasPrefix(name, "QEMU_") {
			env = append(env, e)
		}
	}
	return env
}

// overruled returns env with the variables that the definition sets in place of those of the same name.
// With duplicates QEMU would find the first.
func overruled(env, said []string) []string {
	called := func(variable string) string { name, _, _ := strings.Cut(variable, "="); return name }
	return append(slices.DeleteFunc(env, func(there string) bool {
		return slices.ContainsFunc(said, func(e string) bool { return called(e) == called(there) })
	}), said...)
}
