// Package bare runs QEMU by itself, with the arguments that a daemon gave a
// guest: what is left when the daemon is taken away, and so the measure of it.
//
// It knows QEMU's command line as far as it needs to replace what only that one
// process had (its monitor's descriptor, files that it was handed, the file of its
// master key), and of its monitor the greeting, query-status and the end.
package bare

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Command is a command line of QEMU that can be run any number of times, one at
// a time.
type Command struct {
	Binary string
	Args   []string // without the binary's name
	Env    []string
	guest  string // whose it is
	dir    string // where its monitor listens
}

// For is the command of another guest, whose arguments differ by its name only:
// in paths of its disks, say. What it needs for itself lies in dir, which must
// exist. Commands in directories of their own can run at the same time.
func (c *Command) For(guest, dir string) *Command {
	other := *c
	other.guest, other.dir = guest, dir
	other.Args = make([]string, len(c.Args))
	for i, arg := range c.Args {
		other.Args[i] = strings.ReplaceAll(arg, c.guest, guest)
	}
	return &other
}

// monitorFD is the number that the monitor's listening socket has in a process
// that Run starts: the first behind the standard ones.
const monitorFD = 3

// Sizes of what is read of a process, in bytes.
const (
	maxArguments = 4 << 20
	maxKey       = 4 << 10
)

// Of copies the command of the running guest of that name. Files that belong to
// that process alone are copied to dir, which is the caller's and must outlast
// the command.
func Of(guest, dir string) (*Command, error) {
	pid, args, err := find("/proc", guest)
	if err != nil {
		return nil, err
	}
	process := filepath.Join("/proc", strconv.Itoa(pid))
	binary, err := program(process, args[0])
	if err != nil {
		return nil, fault.Wrap(err, fault.Of(err), fault.Domain, "cannot tell the binary of guest %q", guest)
	}
	env, err := words(filepath.Join(process, "environ"))
	if err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Domain, "cannot read the environment of guest %q", guest)
	}
	args, err = handed(args[1:])
	if err == nil {
		args, err = detach(args, filepath.Join(process, "root"), dir)
	}
	if err != nil {
		return nil, fault.Wrap(err, fault.Of(err), fault.Domain, "cannot run the arguments of guest %q bare", guest)
	}
	return &Command{Binary: binary, Args: args, Env: env, guest: guest, dir: dir}, nil
}

// program is the path of what a process runs. A process with a root of its own has
// another path for it than this one: the name that it was called by is used, if it
// leads to the same file.
func program(process, called string) (string, error) {
	exe := filepath.Join(process, "exe")
	runs, err := os.Stat(exe)
	if err != nil {
		return "", fault.Wrap(err, fault.Failed, fault.Domain, "cannot look at %s", exe)
	}
	if here, err := os.Stat(called); err == nil && filepath.IsAbs(called) && os.SameFile(here, runs) {
		return called, nil
	}
	path, err := os.Readlink(exe)
	if err != nil {
		return "", fault.Wrap(err, fault.Failed, fault.Domain, "cannot read %s", exe)
	}
	return path, nil
}

// find looks for the QEMU process of a guest.
func find(proc, guest string) (pid int, args []string, err error) {
	err = each(proc, func(p int, name string, words []string) bool {
		if name == guest {
			pid, args = p, words
		}
		return name == guest
	})
	if err == nil && pid == 0 {
		err = fault.New(fault.NotFound, fault.Domain, "no QEMU process on this host has -name guest=%s; is the guest running, and on this host?", guest)
	}
	return pid, args, err
}

// Processes gives the QEMU processes of the guests whose name has a prefix, by
// the guest's name.
func Processes(prefix string) (map[string]int, error) {
	found := map[string]int{}
	err := each("/proc", func(pid int, name string, _ []string) bool {
		if strings.HasPrefix(name, prefix) {
			found[name] = pid
		}
		return false
	})
	return found, err
}

// each shows QEMU's processes, whose own arguments say their guest's name, until
// one is the last that is wanted.
func each(proc string, last func(pid int, guest string, args []string) bool) error {
	processes, err := os.ReadDir(proc)
	if err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot list processes")
	}
	for _, entry := range processes {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		args, err := words(filepath.Join(proc, entry.Name(), "cmdline"))
		if err != nil { // it has ended
			continue
		}
		if name := named(args); name != "" && last(pid, name, args) {
			return nil
		}
	}
	return nil
}

// named is the guest that arguments are of; "" when they are not QEMU's.
func named(args []string) string {
	i := slices.Index(args, "-name")
	if i < 1 || i+1 == len(args) || !strings.Contains(filepath.Base(args[0]), "qemu") {
		return ""
	}
	first, _, _ := strings.Cut(args[i+1], ",")
	name, _ := strings.CutPrefix(first, "guest=")
	return name
}

// words reads a file of strings that each end with a zero byte.
func words(path string) ([]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxArguments))
	if err != nil || len(data) == 0 {
		return nil, err
	}
	return strings.Split(strings.TrimSuffix(string(data), "\x00"), "\x00"), nil
}

// descriptor finds what the process was given as an open file, in either form of
// an argument.
var descriptor = regexp.MustCompile(`(?:^|[,{])"?[a-z.]*fds?"?[=:]|/dev/fdset/`)

// detach gives the arguments a monitor that Run can listen for, and copies of
// the files that are the process's own, which are looked up below root.
// Whatever else cannot be had again is refused by name.
func detach(args []string, root, dir string) ([]string, error) {
	args = slices.Clone(args)
	monitor, err := monitorSocket(args)
	if err != nil {
		return nil, err
	}
	args[monitor] = fmt.Sprintf("%s,fd=%d,server=on,wait=off", characterDevice(args[monitor]), monitorFD)
	for i, arg := range args {
		switch {
		case i == monitor || i == 0:
		case args[i-1] == "-object":
			if args[i], err = ownSecret(arg, root, dir); err != nil {
				return nil, err
			}
		case arg == "-add-fd" || arg == "-daemonize" || arg == "-pidfile":
			return nil, fault.New(fault.Unsupported, fault.Domain, "argument %s belongs to one process", arg)
		}
		if i != monitor && descriptor.MatchString(args[i]) {
			return nil, fault.New(fault.Unsupported, fault.Domain, "argument %q names a descriptor of another process", arg)
		}
	}
	return args, nil
}

// monitorSocket is the place of the -chardev that carries the monitor.
func monitorSocket(args []string) (int, error) {
	for i, arg := range args {
		if i == 0 || args[i-1] != "-mon" || !strings.Contains(arg, "mode=control") {
			continue
		}
		id := parameter(arg, "chardev")
		for j, device := range args {
			if j > 0 && args[j-1] == "-chardev" && strings.HasPrefix(device, "socket,") && parameter(device, "id") == id {
				return j, nil
			}
		}
	}
	return 0, fault.New(fault.Unsupported, fault.Domain, "no -mon with mode=control has a -chardev socket")
}

func characterDevice(arg string) string { return "socket,id=" + parameter(arg, "id") }

func parameter(arg, key string) string {
	for item := range strings.SplitSeq(arg, ",") {
		if value, ok := strings.CutPrefix(item, key+"="); ok {
			return value
		}
	}
	return ""
}

// ownSecret copies the file that a secret object reads, because a daemon makes
// it for each start and takes it away afterwards. Other objects stay as they are.
func ownSecret(arg, root, dir string) (string, error) {
	var object map[string]any
	if json.Unmarshal([]byte(arg), &object) != nil || object["qom-type"] != "secret" {
		return arg, nil
	}
	file, ok := object["file"].(string)
	if !ok {
		return arg, nil
	}
	key, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		return "", fault.Wrap(err, fault.Failed, fault.Domain, "cannot copy the secret %s", file)
	}
	if len(key) > maxKey {
		return "", fault.New(fault.Unsupported, fault.Domain, "the secret %s has %d bytes, more than a key has", file, len(key))
	}
	path := filepath.Join(dir, fmt.Sprintf("%v.secret", object["id"]))
	if err := os.WriteFile(path, key, 0o600); err != nil {
		return "", fault.Wrap(err, fault.Failed, fault.Domain, "cannot copy the secret %s", file)
	}
	return strings.Replace(arg, string(quoted(file)), string(quoted(path)), 1), nil
}

func quoted(s string) []byte {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(s) // a string always can be
	return bytes.TrimSuffix(out.Bytes(), []byte("\n"))
}
