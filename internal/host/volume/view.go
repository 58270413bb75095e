package volume

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/host/volume/blockdev"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// State is the state of a pool.
type State int

// The states. Building appears only while Build runs. Inaccessible: the pool is active and its file system does
// not answer.
const (
	Inactive State = iota
	Building
	Running
	Inaccessible
)

// View is a pool at one moment. It is immutable.
type View struct {
	Name, UUID string
	Type       Type
	Target     string
	State      State
	Persistent bool
	Autostart  bool
	// Capacity, Allocation and Available are the sizes of the file system, the volume group or the disk, in
	// bytes.
	Capacity, Allocation, Available uint64
	// Volumes by name.
	Volumes []*Volume
	// ReadAt is when the volumes were last read; zero before the first time.
	ReadAt time.Time
	// Stale says why the view may be out of date, or is "".
	Stale string

	storageID     string
	nextStorageID string // that of the saved definition; "" for a transient pool
}

// Active says whether the pool is started, whether its file system answers or not.
func (v View) Active() bool { return v.State == Running || v.State == Inaccessible }

// Kind is the kind of a volume.
type Kind string

// The kinds.
const (
	File      Kind = "file"
	Block     Kind = "block"
	Directory Kind = "dir"
)

// Volume is a volume at one moment. It is immutable.
type Volume struct {
	Name string
	// Pool is the name of its pool.
	Pool string
	Path string
	Kind Kind
	// Info is the image's header. For a broken header only the format and the sizes on disk are set, and
	// Problem gives the reason.
	image.Info
	Problem string

	claimedBacking             string // the backing file by an undeclared header, quoted; empty: none
	perms                      permissions
	inode                      uint64
	atime, mtime, ctime, btime unix.StatxTimestamp
	backingPath                string
	encryption                 *encryption       // as declared; nil for a volume that was encrypted elsewhere
	extents                    []blockdev.Extent // its place on block devices; nil for files
	usage                      string            // the type of a partition
}

// Key identifies the volume on this host: its path.
func (v *Volume) Key() string { return v.Path }

// XML returns the volume's document.
func (v *Volume) XML() (string, error) { return xmltree.Format(v.document()) }

// indexOf returns the index of a name among sorted volumes.
func indexOf(volumes []*Volume, name string) (int, bool) {
	return slices.BinarySearchFunc(volumes, name, func(v *Volume, name string) int { return strings.Compare(v.Name, name) })
}

// with and without return a changed copy, because views share the slice.
func with(volumes []*Volume, v *Volume) []*Volume {
	i, ok := indexOf(volumes, v.Name)
	if ok {
		volumes = slices.Clone(volumes)
		volumes[i] = v
		return volumes
	}
	return slices.Insert(slices.Clip(volumes), i, v)
}

func without(volumes []*Volume, name string) []*Volume {
	i, ok := indexOf(volumes, name)
	if !ok {
		return volumes
	}
	return slices.Delete(slices.Clone(volumes), i, i+1)
}

// View returns the pool's state as last known. It never waits.
func (p *Pool) View() View {
	v := *p.published.Load()
	if d := p.worker.stuck(); d > staleAfter && v.Active() {
		v.State = Inaccessible
		v.Stale = fmt.Sprintf("its file system has not answered for %v", d.Round(time.Second))
	}
	return v
}

// Volume returns a volume of an active pool as last known.
func (p *Pool) Volume(name string) (*Volume, error) {
	view := p.View()
	if !view.Active() {
		return nil, p.inactiveError()
	}
	if i, ok := indexOf(view.Volumes, name); ok {
		return view.Volumes[i], nil
	}
	return nil, fault.New(fault.NotFound, fault.Volume, "no volume %q in pool %q", name, p.name)
}

// Volumes returns the volumes of an active pool as last known, by name.
func (p *Pool) Volumes() ([]*Volume, error) {
	view := p.View()
	if !view.Active() {
		return nil, p.inactiveError()
	}
	return view.Volumes, nil
}

func (p *Pool) inactiveError() error {
	return fault.New(fault.WrongState, fault.Pool, "pool %q is not active; start it first", p.name)
}
