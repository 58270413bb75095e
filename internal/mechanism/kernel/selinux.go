package kernel

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// SELinux is the state of SELinux in the kernel, and the part of its policy that guests' labels depend on.
type SELinux struct {
	// Enforcing says that what the policy does not allow is refused; else it is only
	// logged.
	Enforcing bool
	// MCS says that contexts have levels, with categories that keep guests apart.
	MCS bool
	// Own is the context of this process.
	Own string
	// Processes and Images are the contexts that the policy keeps for guests, a line
	// each: of QEMU under KVM and under emulation; of images that one guest writes, and
	// of content that guests read. Either is empty where the policy has none.
	Processes, Images []string
}

// SELinux reads how SELinux is set; false where it is off.
func (r Root) SELinux() (SELinux, bool) {
	enforce := r.attr("sys/fs/selinux/enforce")
	if enforce == "" {
		return SELinux{}, false
	}
	s := SELinux{Enforcing: enforce == "1", MCS: r.attr("sys/fs/selinux/mls") == "1", Own: r.ownLabel()}
	policy := "targeted"
	if text, err := r.read("etc/selinux/config"); err == nil {
		keyed(text, "=", func(key, value string) {
			if key == "SELINUXTYPE" && fs.ValidPath(value) {
				policy = value
			}
		})
	}
	s.Processes = r.contexts(policy, "virtual_domain_context")
	s.Images = r.contexts(policy, "virtual_image_context")
	return s, true
}

// ownLabel returns the label of this process.
func (r Root) ownLabel() string { return strings.TrimRight(r.attr("proc/self/attr/current"), "\x00\n") }

// contexts reads one of the policy's lists for guests.
func (r Root) contexts(policy, name string) []string {
	text, err := r.read("etc/selinux", policy, "contexts", name)
	if err != nil {
		return nil
	}
	var all []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			all = append(all, line)
		}
	}
	return all
}

// ProcessLabels are the labels of all processes, in no order.
func (r Root) ProcessLabels() []string {
	var all []string
	var line [brief]byte
	for _, pid := range sortedNumbers(r.list("proc"), "") {
		if text, err := r.readBrief(line[:], "proc", strconv.Itoa(pid), "attr/current"); err == nil {
			all = append(all, strings.TrimRight(text, "\x00\n"))
		}
	}
	return all
}

// Forbidden names which of the permissions of a class the policy in force does not
// give source over target.
func (r Root) Forbidden(source, target, class string, permissions ...string) ([]string, error) {
	index := r.number(0, "sys/fs/selinux/class", class, "index")
	if index <= 0 {
		return nil, fault.New(fault.Unsupported, fault.Host, "the SELinux policy does not define %s", class)
	}
	allowed, err := r.askPolicy(fmt.Sprintf("%s %s %d", source, target, index))
	if err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot ask the policy of SELinux what %s may do to %s", source, target)
	}
	var forbidden []string
	for _, name := range permissions {
		bit := r.number(0, "sys/fs/selinux/class", class, "perms", name) // from 1 on
		if bit > 0 && bit <= 32 && allowed&(1<<(bit-1)) == 0 {
			forbidden = append(forbidden, name)
		}
	}
	return forbidden, nil
}

// askPolicy has the kernel decide. The question is written, and the answer read,
// in one opening of one file; a recorded tree holds the answer.
func (r Root) askPolicy(question string) (allowed uint64, err error) {
	how := os.O_RDWR
	if !r.isLive() {
		how = os.O_RDONLY
	}
	f, err := os.OpenFile(r.path("sys/fs/selinux/access"), how, 0)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if r.isLive() {
		if _, err := f.WriteAt([]byte(question), 0); err != nil {
			return 0, err
		}
	}
	var answer [brief]byte
	n, err := f.ReadAt(answer[:], 0)
	first, _, _ := strings.Cut(string(answer[:n]), " ")
	if allowed, e := strconv.ParseUint(first, 16, 32); e == nil {
		return allowed, nil
	}
	return 0, errors.Join(err, errors.New("the kernel's answer is none"))
}

// The files of a thread that set the label of the next object that it makes.
const (
	execLabel   = "exec"       // a program
	socketLabel = "sockcreate" // a socket
)

// ExecLabel is the file where a thread sets the context of the program that it, or
// a process that it forks, executes next.
func (s SELinux) ExecLabel(r Root) string { return r.path("proc/thread-self/attr", execLabel) }

// WithSocketLabel has do make sockets that the kernel takes for those of another
// context.
func (r Root) WithSocketLabel(context string, do func() error) error {
	runtime.LockOSThread()
	file := r.path("proc/thread-self/attr", socketLabel)
	if err := os.WriteFile(file, []byte(context), 0o600); err != nil {
		runtime.UnlockOSThread()
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot label the guest's sockets")
	}
	err := do()
	if e := os.WriteFile(file, []byte("\n"), 0o600); e != nil {
		return errors.Join(err, e) // the thread stays locked, and ends: no other guest's sockets get the label
	}
	runtime.UnlockOSThread()
	return err
}

// fileLabel is the extended attribute that a file's context is in.
const fileLabel = "security.selinux"

// maxFileLabel bounds the length of a file's context, in bytes.
const maxFileLabel = 4 << 10

// FileLabel is the context of an open file; empty: it has none. Unsupported says
// that its file system keeps none.
func FileLabel(f *os.File) (label string, err error) {
	var text [maxFileLabel]byte
	e := control(f, func(fd int) {
		var n int
		if n, err = unix.Fgetxattr(fd, fileLabel, text[:]); err == nil {
			label = string(bytes.TrimRight(text[:n], "\x00"))
		}
	})
	if errors.Is(err, unix.ENODATA) {
		err = nil
	}
	return label, labelFault(errors.Join(e, err), f)
}

// SetFileLabel gives an open file a context, or takes it away where it is empty.
func SetFileLabel(f *os.File, label string) (err error) {
	e := control(f, func(fd int) {
		if label == "" {
			err = unix.Fremovexattr(fd, fileLabel)
		} else {
			err = unix.Fsetxattr(fd, fileLabel, append([]byte(label), 0), 0)
		}
	})
	if errors.Is(err, unix.ENODATA) {
		err = nil
	}
	return labelFault(errors.Join(e, err), f)
}

func labelFault(err error, f *os.File) error {
	if errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.EROFS) {
		return fault.Wrap(err, fault.Unsupported, fault.Host, "its file system takes none")
	}
	return fault.Wrap(err, fault.Failed, fault.Host, "cannot label %s", f.Name())
}

func control(f *os.File, do func(fd int)) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Control(func(fd uintptr) { do(int(fd)) })
}
