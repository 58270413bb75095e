package guest_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/mechanism/store"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// The escape attempt: the daemon runs the test's own program in QEMU's place. The program tries
// to escape as a compromised QEMU would, and writes down the results. Then it becomes QEMU, so that
// the daemon notices nothing.

// escapist is the name under which the test's own binary acts as that program.
const escapist = "escapist"

func TestMain(m *testing.M) {
	if slices.Contains(os.Args, oldDoor) {
		os.Exit(throughOldDoor())
	}
	if name := filepath.Base(os.Args[0]); name == escapist || name == liarName {
		isGuest := slices.ContainsFunc(os.Args, func(w string) bool { return strings.HasPrefix(w, "guest=") })
		switch {
		case slices.Contains(os.Args, lingers):
			linger()
			os.Exit(0)
		case slices.Contains(os.Args, takesPages):
			takePages()
			os.Exit(0)
		case isGuest && name == liarName:
			playLiar()
		case isGuest:
			tryToEscape()
		}
		fmt.Fprintln(os.Stderr, syscall.Exec(emulator, append([]string{emulator}, os.Args[1:]...), os.Environ()))
		os.Exit(1)
	}
	if filepath.Base(os.Args[0]) == swtpm {
		if slices.Contains(os.Args, givesRoot) {
			giveRoot()
			os.Exit(0)
		}
		escapeFromTPM()
	}
	os.Exit(m.Run())
}

// targets are the objects that it tries to reach.
type targets struct {
	Victim, Daemon     int      // processes
	VictimDisk, Disk   string   // another's, and one that it may only read
	Store, Record      string   // files of the daemon's
	Monitor            string   // another's
	Abstract, Loopback string   // listen on the host's network
	Scratch            string   // where it may write, if anywhere
	DiskInode, Threads uint64   // of Disk; the daemon's bound
	Calls              []string // of those below, what this kernel has
	Linger             bool     // leave a program behind: see squatter_test.go
	Handle             []byte   // the file handle of the victim's disk on its file system
	HandleType         int32
	Device             string // the host's, that it may read; empty: there is none
	DeviceNumber       uint64
	Segment            int    // the key of memory that others share
	Queue              string // others' messages
	InTPM, HasTPM      bool   // it is in swtpm's place; such a program gives it a folder: see tpmescape_test.go
}

const targetsVariable = "LODGE_ESCAPE_TARGETS"

// attempts give nil when they succeed.
func (t targets) attempts() map[string]func() error {
	all := map[string]func() error{
		"read another guest's disk":     func() error { return opens(t.VictimDisk, os.O_RDONLY) },
		"write a disk that it may read": func() error { return opens(t.Disk, os.O_RDWR) },
		"write to what it was handed":   t.writesHanded,
		"signal another guest":          func() error { return unix.Kill(t.Victim, 0) },
		"signal the daemon":             func() error { return unix.Kill(t.Daemon, 0) },
		"trace another guest":           func() error { return traces(t.Victim) },
		"read the daemon's store":       func() error { return opens(t.Store, os.O_RDONLY) },
		"read its own run record":       func() error { return opens(t.Record, os.O_RDONLY) },
		"connect to another's monitor":  func() error { return connects("unix", t.Monitor) },
		"read what another was told":    func() error { return opens(fmt.Sprintf("/proc/%d/environ", t.Victim), os.O_RDONLY) },
		"mount":                         t.mounts,
		"make a user namespace":         makesUserNamespace,
		"make a device node":            t.makesNode,
		"change its root":               func() error { return unix.Chroot("/") },
		"become root":                   func() error { return syscall.Setuid(0) },
		"reach an abstract socket":      func() error { return connects("unix", t.Abstract) },
		"reach the host's network":      func() error { return connects("tcp", t.Loopback) },
		"raise a limit":                 t.raises,
		"multiply":                      multiplies,
		"trace what runs as its user":   tracesItsOwn,
		"signal the daemon by a descriptor": func() error {
			return withProcess(t.Daemon, func(fd int) error { return unix.PidfdSendSignal(fd, 0, nil, 0) })
		},
		"take a descriptor of another guest's": func() error {
			return withProcess(t.Victim, func(fd int) error { return closed(unix.PidfdGetfd(fd, 0, 0)) })
		},
		"enter a namespace of the daemon's": func() error { return withProcess(t.Daemon, enters) },
		"leave for a user namespace":        leavesForUserNamespace,
		"lock memory":                       locks,
	}
	if t.InTPM {
		delete(all, "write to what it was handed") // the TPM emulator gets no descriptors
	} else if t.HasTPM {
		all["reach the store from a folder that it was given"] = func() error { return fromGiven(strings.Repeat("../", 10)+t.Store, unix.O_RDONLY) }
		all["reach terminals from a folder that it was given"] = func() error {
			if fromGiven("../ptys/ptmx", unix.O_PATH) == nil { // as the template has them
				return nil
			}
			return fromGiven("../dev/pts/ptmx", unix.O_PATH)
		}
	}
	for _, name := range t.Calls {
		all[name] = func() error { return calls[name](t) }
	}
	return all
}

// tryToEscape writes down what became of each attempt.
func tryToEscape() {
	var t targets
	text := os.Getenv(targetsVariable)
	if err := json.Unmarshal([]byte(text), &t); err != nil {
		fmt.Fprintln(os.Stderr, "no targets:", err)
		return
	}
	if t.Linger {
		if err := leaveBehind(); err != nil {
			fmt.Fprintln(os.Stderr, "nothing is left behind:", err)
		}
		return
	}
	for _, fd := range descriptors() {
		fmt.Fprintln(os.Stdout, "escape: has", fd)
	}
	t.tell(os.Stdout)
}

// tell tries all, and says what became of it.
func (t targets) tell(w io.Writer) {
	for name, attempt := range t.attempts() {
		if err := attempt(); err != nil {
			fmt.Fprintf(w, "escape: cannot %s: %v\n", name, err)
		} else {
			fmt.Fprintf(w, "escape: can %s\n", name)
		}
	}
}

// descriptors lists the inodes of all open files except the standard descriptors, with their types.
func descriptors() []string {
	var all []string
	for fd := 3; fd < 1024; fd++ {
		var st unix.Stat_t
		if unix.Fstat(fd, &st) == nil {
			flags, _ := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
			if flags&unix.FD_CLOEXEC == 0 { // and not the runtime's own
				all = append(all, fmt.Sprintf("%o:%d", st.Mode&unix.S_IFMT, st.Ino))
			}
		}
	}
	return all
}

func opens(path string, how int) error {
	f, err := os.OpenFile(path, how, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

// writesHanded writes to the descriptor of the disk, if it has one; without one
// nothing keeps it from it.
func (t targets) writesHanded() error {
	for fd := 3; fd < 1024; fd++ {
		var st unix.Stat_t
		if unix.Fstat(fd, &st) == nil && st.Ino == t.DiskInode {
			if _, err := unix.Pwrite(fd, []byte("x"), 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// traces reads unmapped memory of another process. Without the permission the error is not EFAULT.
func traces(pid int) error {
	local := make([]byte, 1)
	_, err := unix.ProcessVMReadv(pid, []unix.Iovec{{Base: &local[0], Len: 1}}, []unix.RemoteIovec{{Base: 0, Len: 1}}, 0)
	if errors.Is(err, unix.EFAULT) {
		return nil
	}
	return err
}

// tracesItsOwn does so to a process of its own user, as its guest's TPM emulator is one.
func tracesItsOwn() error {
	c := exec.Command("/bin/sleep", "600") //nolint:noctx // is killed
	if err := c.Start(); err != nil {
		return err
	}
	defer func() {
		_ = c.Process.Kill()
		_ = c.Wait() // killed
	}()
	return traces(c.Process.Pid)
}

func connects(kind, address string) error {
	c, err := net.Dial(kind, address) //nolint:noctx // no caller waits
	if err != nil {
		return err
	}
	return c.Close()
}

func (t targets) mounts() error {
	if err := unix.Mount("escape", t.Scratch, "tmpfs", 0, ""); err != nil {
		return err
	}
	return unix.Unmount(t.Scratch, 0)
}

func makesUserNamespace() error {
	c := exec.Command("/bin/true") //nolint:noctx // ends on its own
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER}
	return c.Run()
}

func (t targets) makesNode() error {
	path := filepath.Join(t.Scratch, "node")
	if err := unix.Mknod(path, unix.S_IFBLK|0o600, int(unix.Mkdev(7, 0))); err != nil {
		return err
	}
	return os.Remove(path)
}

// raises takes the daemon's own limit.
func (t targets) raises() error {
	return unix.Setrlimit(unix.RLIMIT_NPROC, &unix.Rlimit{Cur: t.Threads, Max: t.Threads})
}

// multiplies makes more processes than any QEMU needs threads.
func multiplies() error {
	var all []*exec.Cmd
	defer func() {
		for _, c := range all {
			_ = c.Process.Kill()
			_ = c.Wait() // killed
		}
	}()
	for range 300 {
		c := exec.Command("/bin/sleep", "600") //nolint:noctx // is killed
		if err := c.Start(); err != nil {
			return err
		}
		all = append(all, c)
	}
	return nil
}

// Promise: I1
func TestAQEMUThatWasTakenOverReachesNothing(t *testing.T) {
	for _, isolated := range []bool{true, false} {
		t.Run(fmt.Sprintf("isolated=%v", isolated), func(t *testing.T) { testEscape(t, isolated, false) })
	}
}

func testEscape(t *testing.T, isolated, withTPM bool) {
	d := newDaemonOf(t, isolated)
	disk := func(name string) string {
		path := filepath.Join(d.dir, name)
		if err := os.WriteFile(path, make([]byte, 1<<20), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	theirs, own := disk("theirs"), disk("own")
	victim := d.define(small("victim", `<disk type='file'><driver type='raw'/><source file='`+theirs+`'/><target dev='vda' bus='virtio'/></disk>`))
	ok(t, launch.Start(d.ctx(), victim, scope.Daemon("a test"), launch.StartOptions{}))

	const uuid = "4b1d6a2e-9f0c-4c57-8c1a-1e5ca9e00001"
	run := filepath.Join(d.dir, "run/guest", uuid)
	at := targets{
		Victim: d.pid("victim"), Daemon: os.Getpid(), VictimDisk: theirs, Disk: own,
		Store: store.Path(filepath.Join(d.dir, "data")), Record: filepath.Join(run, "run.json"),
		Monitor: filepath.Join(guest.RunDir(victim), "monitor.sock"), Scratch: t.TempDir(),
		Abstract: listens(t, "unix", "@lodge-escape-"+filepath.Base(d.dir)), Loopback: listens(t, "tcp", "127.0.0.1:0"),
	}
	var st unix.Stat_t
	ok(t, unix.Stat(own, &st))
	var threads unix.Rlimit
	ok(t, unix.Getrlimit(unix.RLIMIT_NPROC, &threads))
	at.DiskInode, at.Threads = st.Ino, threads.Max
	at.share(t)
	at.lend(t, disk("device"))
	at.tryCalls(t)
	if isolated {
		at.Scratch = filepath.Join(run, "own")
	}
	device := at.disk()
	if at.HasTPM = withTPM; withTPM {
		device += d.placeTPM(at, uuid)
	}
	text, err := json.Marshal(at)
	ok(t, err)
	taken := d.define(strings.NewReplacer("<domain type='qemu'>", "<domain type='qemu' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'><uuid>"+uuid+"</uuid>",
		"</domain>", "<qemu:commandline><qemu:env name='"+targetsVariable+"' value='"+html.EscapeString(string(text))+"'/></qemu:commandline></domain>",
		"<devices>", "<devices><emulator>"+copyOfTest(t, d.dir, escapist)+"</emulator>").Replace(small("taken",
		`<disk type='file'><driver type='raw'/><source file='`+own+`'/><target dev='vda' bus='virtio'/><readonly/></disk><graphics type='vnc' autoport='yes'/>`+device)))
	ok(t, launch.Start(d.ctx(), taken, scope.Daemon("a test"), launch.StartOptions{}))
	log, err := os.ReadFile(filepath.Join(d.dir, "data/guest/log/taken.log"))
	ok(t, err)
	d.judge(at, string(log), isolated)
	if isolated {
		d.judgeDescriptors(at, string(log))
	}
	if withTPM {
		d.judgeTPM(at, uuid, isolated)
	}
}

// judge compares the program's report with its permissions.
func (d *daemon) judge(at targets, log string, isolated bool) {
	d.t.Helper()
	for name := range at.attempts() {
		can := strings.Contains(log, "escape: can "+name+"\n")
		cannot := strings.Contains(log, "escape: cannot "+name+":")
		if can == cannot || can == isolated {
			d.t.Errorf("with isolated=%v a program that was taken over can %s: %v, cannot: %v", isolated, name, can, cannot)
		}
	}
	if d.t.Failed() {
		d.t.Logf("it says:\n%s", log)
	}
}

// judgeDescriptors checks that QEMU has only the files open that it needs.
func (d *daemon) judgeDescriptors(at targets, log string) {
	d.t.Helper()
	var has []string
	for line := range strings.Lines(log) {
		if fd, found := strings.CutPrefix(line, "escape: has "); found {
			has = append(has, strings.TrimSpace(fd))
		}
	}
	disk := fmt.Sprintf("%o:%d", unix.S_IFREG, at.DiskInode)
	socket := fmt.Sprintf("%o:", unix.S_IFSOCK)
	want := 2
	if at.Device != "" {
		want++
	}
	if len(has) != want || !slices.Contains(has, disk) || !slices.ContainsFunc(has, func(fd string) bool { return strings.HasPrefix(fd, socket) }) {
		d.t.Errorf("it has the descriptors %v, and should have its disk (%s), its monitor, and %q if there is one", has, disk, at.Device)
	}
}

func listens(t *testing.T, kind, address string) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), kind, address)
	ok(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().String()
}

// copyOfTest puts the test's own program where it has the other name.
func copyOfTest(t *testing.T, dir, name string) string {
	t.Helper()
	self, err := os.Executable()
	ok(t, err)
	text, err := os.ReadFile(self)
	ok(t, err)
	path := filepath.Join(dir, name)
	ok(t, os.WriteFile(path, text, 0o755))
	ok(t, os.Chmod(path, 0o755))
	return path
}
