package target

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/lab/image"
	"github.com/lodge-kvm/lodge/lab/pool"
	"github.com/lodge-kvm/lodge/lab/scenario"
)

// Image is what guests boot: files that the daemon can read.
type Image struct {
	Kernel, Initrd string
	Generic        image.Kernel // with more drivers; none in older images
	Usr            string       // the same for all guests, never written
	Root           string       // the base of each guest's own
	Digest         string
}

// Site is where a run's guests live at a target: a network and a pool.
type Site struct {
	target *Target
	run    string // begins every name
	name   string // of the network and the pool: other targets of the run have others
	image  Image
	files  xdr.StoragePool
	dir    string
	subnet byte
}

// Open makes the network and the pool of a run. Number is that of the target among
// the run's own, from 1: daemons of one host share its links and addresses.
// Directory is the one for the guests' files; the daemon and the lab both see it.
func (t *Target) Open(ctx context.Context, run string, number int, directory string, image Image) (*Site, error) {
	s := &Site{target: t, run: run, name: fmt.Sprintf("%s-%d", run, number), image: image, subnet: Subnet(run, number)}
	err := s.place(ctx, directory, number)
	if err == nil {
		err = s.network(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close(context.WithoutCancel(ctx)))
	}
	return s, nil
}

// place makes the pool, and sees that the image is where the daemon can read it.
func (s *Site) place(ctx context.Context, directory string, number int) (err error) {
	if s.target.Away() {
		err = s.target.inStore(ctx, directory, func(store *imageStore) (err error) {
			s.image, err = store.keep(ctx, s.image)
			return err
		})
		if err == nil {
			s.dir = directoryAfar(directory, s.run, number)
			s.files, err = s.target.makePool(ctx, s.name+"-files", s.dir)
		}
		return err
	}
	s.dir = filepath.Join(directory, s.run, fmt.Sprint(number))
	// Open to all: a daemon may run each QEMU as an account of its own.
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot make a directory for the guests' files")
	}
	s.files, err = pool.Over(ctx, s.target, s.name+"-files", s.dir)
	return err
}

// Receive makes at another daemon of this host what the run's guests need there to
// be moved to it: their network, on the bridge that is there. Files they have.
func (s *Site) Receive(ctx context.Context, to *Target) error {
	document := fmt.Sprintf("<network>\n  <name>%s</name>\n  <forward mode='bridge'/>\n  <bridge name='%s'/>\n</network>\n", s.name, s.bridge())
	err := to.call(ctx, xdr.ProcNetworkCreateXML, &xdr.NetworkCreateXMLArgs{XML: document}, &xdr.NetworkCreateXMLRet{})
	return fault.Wrap(err, fault.Failed, fault.Network, "cannot make the guests' network at %s", to.Name)
}

// Close takes away what Open has made, and whatever guests there still are.
func (s *Site) Close(ctx context.Context) error {
	err := s.target.Sweep(ctx, s.run)
	if s.target.Away() {
		return err
	}
	err = errors.Join(err, os.RemoveAll(s.dir))
	_ = os.Remove(filepath.Dir(s.dir)) // the last of the run's targets leaves it empty
	return err
}

func (s *Site) network(ctx context.Context) error {
	document := fmt.Sprintf(`<network>
  <name>%[1]s</name>
  <bridge name='%[2]s' stp='off' delay='0'/>
  <dns enable='no'/>
  <ip address='%[3]s' netmask='255.255.0.0'/>
</network>
`, s.name, s.bridge(), s.address(0))
	var ret xdr.NetworkCreateXMLRet
	err := s.target.call(ctx, xdr.ProcNetworkCreateXML, &xdr.NetworkCreateXMLArgs{XML: document}, &ret)
	return fault.Wrap(err, fault.Failed, fault.Network, "cannot make the guests' network")
}

// bridge is a name that fits a link's 15 letters.
func (s *Site) bridge() string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(s.name))
	return fmt.Sprintf("lab%08x", h.Sum32())
}

// Subnet picks one of 10.64 to 10.127 for a run's target, so that targets never
// and runs side by side seldom meet; the daemon refuses one that is taken.
func Subnet(run string, number int) byte {
	h := fnv.New32a()
	_, _ = h.Write([]byte(run))
	return byte(64 + (h.Sum32()+uint32(number))%64)
}

// address is that of a guest by its number; 0 is the host.
func (s *Site) address(number int) string {
	return fmt.Sprintf("10.%d.%d.%d", s.subnet, number/250, 1+number%250)
}

// hardware is the address of a guest's NIC.
func (s *Site) hardware(number int) string {
	return fmt.Sprintf("52:54:%02x:%02x:%02x:%02x", s.subnet, byte(number>>16), byte(number>>8), byte(number))
}

// volume makes a file for a disk.
func (s *Site) volume(ctx context.Context, name, format string, size scenario.Size, full bool, backing string) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "<volume>\n  <name>%s</name>\n  <capacity unit='bytes'>%d</capacity>\n", name, size)
	if full {
		fmt.Fprintf(&b, "  <allocation unit='bytes'>%d</allocation>\n", size)
	} else if format == "raw" {
		b.WriteString("  <allocation>0</allocation>\n")
	}
	fmt.Fprintf(&b, "  <target><format type='%s'/></target>\n", format)
	if backing != "" {
		fmt.Fprintf(&b, "  <backingStore><path>%s</path><format type='%s'/></backingStore>\n", escape(backing), formatOf(backing))
	}
	b.WriteString("</volume>\n")
	const preallocate = 1 // metadata of qcow2 written beforehand
	var flags uint32
	if full && format == "qcow2" {
		flags = preallocate
	}
	var made xdr.StorageVolCreateXMLRet
	if err := s.target.call(ctx, xdr.ProcStorageVolCreateXML, &xdr.StorageVolCreateXMLArgs{Pool: s.files, XML: b.String(), Flags: flags}, &made); err != nil {
		return "", fault.Wrap(skip(err), fault.Failed, fault.Volume, "cannot make volume %s", name)
	}
	return filepath.Join(s.dir, name), nil
}

// drop takes a volume away.
func (s *Site) drop(ctx context.Context, name string) error {
	args := &xdr.StorageVolDeleteArgs{Volume: xdr.StorageVol{Pool: s.files.Name, Name: name, Key: filepath.Join(s.dir, name)}}
	return s.target.call(ctx, xdr.ProcStorageVolDelete, args, nil)
}

func formatOf(path string) string {
	if strings.HasSuffix(path, ".qcow2") {
		return "qcow2"
	}
	return "raw"
}
