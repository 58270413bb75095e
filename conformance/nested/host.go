package nested

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/lodge-kvm/lodge/internal/testguest/line"
)

// Bounds on what a host may take.
const (
	bootPatience  = 3 * time.Minute
	statePatience = 2 * time.Minute // for saving and rewinding
	// reserve is how late an answer may come on a busy machine.
	reserve = 20 * time.Second
)

// nodes is the number of NUMA nodes of a host, each with nodeMemory MiB. The first two have a processor.
const (
	nodes      = 4
	nodeMemory = 1024
)

// Options configure the boot of a host.
type Options struct {
	Image Image
	// Files are copied into the host's folder /srv/lodge: paths on this machine by names there. The host needs the
	// program "agent".
	Files map[string]string
	// Arguments are additional ones for QEMU, mostly devices.
	Arguments []string
}

// Host is a booted host. Its methods must not be called from two goroutines.
type Host struct {
	dir     string // gone with Close
	qemu    *exec.Cmd
	ended   chan struct{} // closed when QEMU has
	monitor *monitor
	agent   *line.Host
}

// Boot boots a host and waits until systemd has finished starting units.
func Boot(ctx context.Context, o Options) (*Host, error) {
	ctx, stop := context.WithTimeout(ctx, bootPatience)
	defer stop()
	dir, err := os.MkdirTemp("", "lodge-nested-")
	if err != nil {
		return nil, err
	}
	h := &Host{dir: dir, ended: make(chan struct{})}
	if err := h.boot(ctx, o); err != nil {
		said, _ := os.ReadFile(h.path("qemu"))
		err = fmt.Errorf("cannot boot the nested host: %w\n%s%s", err, said, h.console())
		return nil, errors.Join(err, h.Close())
	}
	return h, nil
}

func (h *Host) path(name string) string { return filepath.Join(h.dir, name) }

// console returns the end of the kernel's output.
func (h *Host) console() []byte {
	text, _ := os.ReadFile(h.path("console"))
	return text[max(0, len(text)-4000):]
}

func (h *Host) boot(ctx context.Context, o Options) error {
	if err := h.makeDisks(ctx, o); err != nil {
		return err
	}
	said, err := os.Create(h.path("qemu"))
	if err != nil {
		return err
	}
	defer said.Close()
	if err := h.launch(ctx, o, said); err != nil {
		return err
	}
	if err := h.connect(ctx); err != nil {
		return err
	}
	if _, err := h.agent.Ping(ctx); err != nil {
		return err
	}
	// "degraded" means that a unit failed to start. Tests check the units that they need.
	_, err = h.Run(ctx, "systemctl is-system-running --wait || true", bootPatience)
	return err
}

// launch starts QEMU. Close ends it, or the kernel does when this process ends. For the kernel that is the end of
// the thread that started QEMU, so launch keeps the thread until QEMU has ended.
func (h *Host) launch(ctx context.Context, o Options, said *os.File) error {
	h.qemu = exec.CommandContext(context.WithoutCancel(ctx), "qemu-system-x86_64", h.arguments(o)...)
	h.qemu.Stdout, h.qemu.Stderr = said, said
	h.qemu.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := h.qemu.Start()
		started <- err
		if err == nil {
			_ = h.qemu.Wait() // it is killed
			close(h.ended)
		}
	}()
	err := <-started
	if err != nil {
		h.qemu = nil
	}
	return err
}

// makeDisks creates the root disk, an overlay that also stores saved states, and a disk with Lodge's files.
func (h *Host) makeDisks(ctx context.Context, o Options) error {
	tree := h.path("files")
	if err := os.Mkdir(tree, 0o755); err != nil {
		return err
	}
	var size int64
	for name, from := range o.Files {
		info, err := os.Stat(from)
		if err != nil {
			return err
		}
		size += info.Size()
		to := filepath.Join(tree, name)
		if err := errors.Join(copyFile(to, from), os.Chmod(to, info.Mode())); err != nil {
			return err
		}
	}
	const slack = 16 << 20
	size = (size + size/8 + slack) >> 10
	err := run(ctx, "mke2fs", "-q", "-F", "-t", "ext4", "-m", "0", "-O", "^has_journal", "-d", tree, h.path("files.ext4"), strconv.FormatInt(size, 10)+"k")
	if err != nil {
		return err
	}
	return run(ctx, "qemu-img", "create", "-q", "-f", "qcow2", "-b", o.Image.Root, "-F", "raw", h.path("root.qcow2"))
}

// arguments returns QEMU's arguments. One thread runs all processors. With several threads the host hangs when KVM
// creates its first guest, because the threads continue with code that the kernel has patched.
func (h *Host) arguments(o Options) []string {
	argv := []string{
		"-nodefaults", "-no-user-config", "-display", "none", "-machine", "q35,kernel-irqchip=split",
		"-accel", "tcg,thread=single,tb-size=512", "-cpu", "max",
		"-m", strconv.Itoa(nodes * nodeMemory), "-smp", "2,sockets=2,cores=1,threads=1",
	}
	for n := range nodes {
		node := fmt.Sprintf("node,nodeid=%d,memdev=m%d", n, n)
		if n < 2 {
			node += fmt.Sprintf(",cpus=%d", n)
		}
		argv = append(argv, "-object", fmt.Sprintf("memory-backend-ram,id=m%d,size=%dM", n, nodeMemory), "-numa", node)
	}
	argv = append(argv,
		"-device", "intel-iommu,intremap=on,caching-mode=on",
		"-drive", "file="+h.path("root.qcow2")+",if=none,id=root,format=qcow2,cache=unsafe,discard=unmap", "-device", "virtio-blk-pci,drive=root",
		"-drive", "file="+h.path("files.ext4")+",if=none,id=files,format=raw,readonly=on", "-device", "virtio-blk-pci,drive=files",
		"-device", "virtio-serial-pci", "-chardev", "socket,id=agent,path="+h.path("agent")+",server=on,wait=off",
		"-device", "virtserialport,chardev=agent,name="+line.Port,
		"-device", "virtio-rng-pci", "-serial", "file:"+h.path("console"), "-qmp", "unix:"+h.path("qmp")+",server=on,wait=off",
		"-kernel", o.Image.Kernel, "-initrd", o.Image.Initrd,
		"-append", "console=ttyS0 quiet loglevel=4 net.ifnames=0 mitigations=off panic=-1 no_timer_check intel_iommu=on apparmor=1 security=apparmor systemd.show_status=0",
		"-no-reboot")
	return append(argv, o.Arguments...)
}

// connect waits for QEMU's sockets.
func (h *Host) connect(ctx context.Context) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		var err error
		if h.monitor == nil {
			h.monitor, err = openMonitor(ctx, h.path("qmp"))
		}
		if err == nil {
			if h.agent, err = line.Dial(ctx, h.path("agent")); err == nil {
				return nil
			}
		}
		select {
		case <-tick.C:
		case <-h.ended:
			return errors.New("QEMU has ended")
		case <-ctx.Done():
			return errors.Join(err, context.Cause(ctx))
		}
	}
}

// Close ends the host at once and removes its files.
func (h *Host) Close() error {
	if h.agent != nil {
		h.agent.Close()
	}
	if h.monitor != nil {
		h.monitor.conn.Close()
	}
	if h.qemu != nil {
		_ = h.qemu.Process.Kill()
		<-h.ended
	}
	return os.RemoveAll(h.dir)
}

// Run runs a bash script in the host, as root, and returns its standard output and error together. It fails if the
// script fails, or does not end within the limit.
func (h *Host) Run(ctx context.Context, script string, limit time.Duration) (string, error) {
	exit, err := h.exec(ctx, limit, nil, "bash", "-euo", "pipefail", "-c", "exec 2>&1\n"+script)
	if err != nil {
		return "", err
	}
	out := string(exit.Stdout)
	switch {
	case exit.TimedOut:
		return out, fmt.Errorf("the script was not done within %v; it said:\n%s%s", limit, out, exit.Stderr)
	case exit.Code != 0:
		return out, fmt.Errorf("the script ended with status %d; it said:\n%s%s", exit.Code, out, exit.Stderr)
	}
	return out, nil
}

// exec runs a program. The host kills it at the limit. If the host itself hangs, exec fails a little later.
func (h *Host) exec(ctx context.Context, limit time.Duration, stdin []byte, argv ...string) (*line.Exit, error) {
	ctx, stop := context.WithTimeoutCause(ctx, limit+reserve, fmt.Errorf("the nested host hangs: it did not end a program of %v", limit))
	defer stop()
	r, err := h.agent.Ask(ctx, line.Request{Do: line.Exec, Argv: argv, Stdin: stdin, TimeoutMS: limit.Milliseconds()})
	if err != nil {
		return nil, err
	}
	if r.Exit == nil {
		return nil, errors.New("the nested host's agent did not say how a program ended")
	}
	return r.Exit, nil
}

// chunk is the number of bytes that Put and Fetch move at a time. It fits a line of the agent's protocol.
const chunk = line.MaxOutput

// filePatience bounds the move of one chunk.
const filePatience = 30 * time.Second

// Put writes a file of the host.
func (h *Host) Put(ctx context.Context, path string, content []byte) error {
	for first := true; first || len(content) > 0; first = false {
		part := content[:min(len(content), chunk)]
		content = content[len(part):]
		redirect := `cat >>"$0"`
		if first {
			redirect = `cat >"$0"`
		}
		exit, err := h.exec(ctx, filePatience, part, "sh", "-c", redirect, path)
		if err != nil {
			return err
		}
		if exit.Code != 0 {
			return fmt.Errorf("cannot write %s in the nested host: %s", path, exit.Stderr)
		}
	}
	return nil
}

// Fetch reads a file of the host.
func (h *Host) Fetch(ctx context.Context, path string) ([]byte, error) {
	var all bytes.Buffer
	for {
		exit, err := h.exec(ctx, filePatience, nil, "sh", "-c", `tail -c +"$1" "$0" | head -c "$2"`,
			path, strconv.Itoa(all.Len()+1), strconv.Itoa(chunk))
		if err != nil {
			return nil, err
		}
		if exit.Code != 0 || len(exit.Stderr) > 0 {
			return nil, fmt.Errorf("cannot read %s in the nested host: %s", path, exit.Stderr)
		}
		all.Write(exit.Stdout)
		if len(exit.Stdout) < chunk {
			return all.Bytes(), nil
		}
	}
}

// Save stores the host's whole state, memory and disks, under a name.
func (h *Host) Save(ctx context.Context, name string) error { return h.snapshot(ctx, "savevm", name) }

// Rewind takes the host back to a saved state, and sets its clock to now.
func (h *Host) Rewind(ctx context.Context, name string) error {
	if err := h.snapshot(ctx, "loadvm", name); err != nil {
		return err
	}
	_, err := h.Run(ctx, fmt.Sprintf("date --set=@%d", time.Now().Unix()), statePatience)
	return err
}

func (h *Host) snapshot(ctx context.Context, verb, name string) error {
	ctx, stop := context.WithTimeout(ctx, statePatience)
	defer stop()
	said, err := h.monitor.human(ctx, verb+" "+name)
	if err != nil {
		return err
	}
	if said != "" {
		return fmt.Errorf("cannot %s: %s", verb, said)
	}
	return nil
}

// Keep writes diagnostics of a failed test into a folder: the console, the journal, the kernel's log, and the
// processors' registers if the host does not answer.
func (h *Host) Keep(ctx context.Context, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	write := func(name, text string) error { return os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644) }
	errs := []error{copyFile(filepath.Join(dir, "console"), h.path("console")), copyFile(filepath.Join(dir, "qemu"), h.path("qemu"))}
	for name, script := range map[string]string{
		"journal": "journalctl --no-pager --boot", "kernel": "dmesg", "groups": "systemd-cgls --no-pager",
		"guests": "tail --verbose --lines=200 /var/lib/lodge/guest/log/*.log /var/log/*.console || true",
	} {
		out, err := h.Run(ctx, script, filePatience)
		errs = append(errs, write(name, out))
		if err != nil {
			registers, _ := h.monitor.human(ctx, "info registers -a")
			return errors.Join(append(errs, write("registers", strings.ReplaceAll(registers, "\r", "")), err)...)
		}
	}
	return errors.Join(errs...)
}

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
