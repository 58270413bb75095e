// Package native runs what a guest of the lab runs without a guest around it: the
// same files, the same services and the same agent, in name spaces and a control
// group, so that the difference is what virtualization costs.
//
// The agent is the first process of a PID name space and ends with its
// connection; the kernel then ends everything else: processes, mounts, loop
// devices and interfaces, also when the lab was killed. Only the control groups
// are left then, which Sweep takes away, and the folder that a place was given.
//
// What belongs here: making such a place. What is measured in it is steered by a
// session, as in a guest.
package native

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/remote/pair"
	"github.com/lodge-kvm/lodge/lab/image"
	"github.com/lodge-kvm/lodge/lab/session"
	"github.com/lodge-kvm/lodge/lab/wire"
)

// How is what a place is like.
type How struct {
	Name  string
	Image image.Image
	Agent string // image.DefaultAgent, if nothing is said
	// Dir is a folder for the place's own root: of its own, and empty.
	Dir string
	// CPUs are the processors that it may use; none means all.
	CPUs []int
	// Memory bounds what it holds, in bytes, with the files that it has read; 0
	// means all there is.
	Memory int64
	// Host and Address are the two ends of its network, in one subnet.
	Host, Address netip.Prefix
}

// Place is a running one.
type Place struct {
	*session.Session

	process *os.Process
	ended   chan struct{} // the process has, and said is whole
	said    bytes.Buffer
	group   group
	link    string // the host's end of its network; "" as long as there is none
	root    string
}

// farewell bounds how long the place may take to end by itself.
const farewell = 10 * time.Second

// Possible says why there can be no place with a bound on this host.
func Possible() error {
	if err := asRoot(); err != nil {
		return err
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		return fault.Wrap(err, fault.Unsupported, fault.Host, "this host makes no block devices of files")
	}
	_, err := find(groups)
	return err
}

func asRoot() error {
	if os.Geteuid() == 0 {
		return nil
	}
	return fault.New(fault.Denied, fault.Host, "only root can run the lab's services outside of a guest: it takes name spaces and mounts")
}

// Start makes a place. Should it fail, nothing of it is left.
func Start(ctx context.Context, how How) (*Place, error) {
	if err := asRoot(); err != nil {
		return nil, err
	}
	if how.Agent == "" {
		how.Agent = image.DefaultAgent()
	}
	p := &Place{ended: make(chan struct{}), root: filepath.Join(how.Dir, "root.raw")}
	conn, err := p.launch(ctx, how)
	if err != nil {
		return nil, fault.Wrap(errors.Join(err, p.clear()), fault.Failed, fault.Host, "cannot start %s outside of a guest", how.Name)
	}
	p.Session, err = session.Open(ctx, conn)
	if err != nil {
		closed := p.Close()
		return nil, fault.Wrap(errors.Join(err, closed), fault.Failed, fault.Host, "cannot start %s outside of a guest: %s", how.Name, bytes.TrimSpace(p.said.Bytes()))
	}
	return p, nil
}

// launch starts the agent, and gives it a control group and an interface. It
// begins once it has those.
func (p *Place) launch(ctx context.Context, how How) (net.Conn, error) {
	at := filepath.Join(how.Dir, "at")
	if err := os.MkdirAll(at, 0o755); err != nil {
		return nil, err
	}
	if said, err := exec.CommandContext(ctx, "cp", "--sparse=always", "--reflink=auto", how.Image.Root, p.root).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("cannot copy the root: %w: %s", err, said)
	}
	mac := hardware(how.Address.Addr())
	told, err := json.Marshal(wire.Outside{
		Name: how.Name, Root: p.root, Usr: how.Image.Usr, At: at, CPUs: how.CPUs, Net: mac.String() + "@" + how.Address.String(),
	})
	if err != nil {
		return nil, err
	}
	ours, theirs, err := pair.New()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	// Not the context's: it bounds the start only.
	agent := exec.CommandContext(context.WithoutCancel(ctx), how.Agent, "outside", string(told))
	agent.ExtraFiles = []*os.File{theirs}
	agent.Stderr = &p.said
	agent.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
		Setsid:     true,
	}
	if err := agent.Start(); err != nil {
		ours.Close()
		return nil, err
	}
	p.process = agent.Process
	go func() {
		defer close(p.ended)
		_ = agent.Wait()
	}()
	if p.group, err = confine(how.Name, agent.Process.Pid, how.Memory); err == nil {
		err = p.connect(how, agent.Process.Pid, mac)
	}
	if err != nil {
		ours.Close()
		return nil, err
	}
	return ours, nil
}

// Close ends the place with all that is in it.
func (p *Place) Close() error {
	if p.Session != nil {
		_ = p.Session.Close()
	}
	return p.clear()
}

func (p *Place) clear() error {
	if p.process != nil {
		select {
		case <-p.ended:
		case <-time.After(farewell):
			_ = p.process.Kill()
			<-p.ended
		}
	}
	return errors.Join(p.disconnect(), remove(p.group.dirs), os.RemoveAll(p.root))
}

// hardware makes an address for an interface out of its IPv4 one: two places on a
// host have two.
func hardware(of netip.Addr) net.HardwareAddr {
	four := of.As4()
	return net.HardwareAddr{0x52, 0x54, four[0], four[1], four[2], four[3]}
}

// connect gives the place an interface, whose other end is the host's. Both go
// with the place.
func (p *Place) connect(how How, pid int, mac net.HardwareAddr) error {
	four := how.Address.Addr().As4()
	attributes := netlink.NewLinkAttrs()
	attributes.Name = fmt.Sprintf("lab%02x%02x%02x%02x", four[0], four[1], four[2], four[3])
	veth := &netlink.Veth{LinkAttrs: attributes, PeerName: "eth0", PeerHardwareAddr: mac, PeerNamespace: netlink.NsPid(pid)}
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("cannot make interface %s: %w", attributes.Name, err)
	}
	p.link = attributes.Name
	addr, err := netlink.ParseAddr(how.Host.String())
	if err != nil {
		return err
	}
	if err := netlink.AddrAdd(veth, addr); err != nil {
		return fmt.Errorf("cannot give %s the address %s: %w", attributes.Name, how.Host, err)
	}
	return netlink.LinkSetUp(veth)
}

// disconnect takes the interface away at once: the kernel would some time after the
// place has ended, and another place may want the address before.
func (p *Place) disconnect() error {
	if p.link == "" {
		return nil
	}
	link, err := netlink.LinkByName(p.link)
	if _, gone := errors.AsType[netlink.LinkNotFoundError](err); gone {
		return nil
	}
	if err == nil {
		err = netlink.LinkDel(link)
	}
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("cannot take interface %s away: %w", p.link, err)
	}
	return nil
}
