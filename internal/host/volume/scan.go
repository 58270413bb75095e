package volume

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/mechanism/safepath"
)

// MaxVolumes is how many entries a pool's directory may have: what a list of
// volumes can carry over libvirt's wire.
const MaxVolumes = 16384

// reading is what a look at a pool found.
type reading struct {
	volumes []*Volume
	space   space
	perms   permissions
	// unread are the names of files that are there and could not be read.
	unread []string
	folder uint64 // the inode of the directory; 0 of block devices
}

// read looks at the whole pool. It runs in the pool's lane.
func (p *Pool) read(d *definition, declared map[string]declaration) (reading, error) {
	if c := d.carver(); c != nil {
		return c.survey(p.pools.life)
	}
	if err := d.mounted(); err != nil {
		return reading{}, err
	}
	return p.readDir(d.target, declared)
}

func (p *Pool) readDir(target string, declared map[string]declaration) (reading, error) {
	var r reading
	dir, err := openDir(target)
	if err != nil {
		return r, err
	}
	defer dir.Close()
	listed, err := list(dir, target, unix.O_RDONLY)
	if err != nil {
		return r, err
	}
	defer listed.Close()
	if r.space, r.perms, err = measure(dir); err != nil {
		return r, dirFault(err, target)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return r, dirFault(err, target)
	}
	r.folder = st.Ino
	entries, err := listed.ReadDir(MaxVolumes + 1)
	if err != nil && len(entries) == 0 && !errors.Is(err, io.EOF) {
		return r, dirFault(err, target)
	}
	if len(entries) > MaxVolumes {
		return r, fault.New(fault.NoCapacity, fault.Pool, "%s has more than %d entries; spread them over several pools", target, MaxVolumes)
	}
	for _, entry := range entries {
		p.lane.beat()
		v, err := readVolume(p.name, dir, entry.Name(), declared[entry.Name()])
		if err != nil {
			p.pools.log.Warn("cannot read volume", "pool", p.name, "volume", entry.Name(), "error", err)
			r.unread = append(r.unread, entry.Name())
			continue
		}
		if v != nil {
			r.volumes = append(r.volumes, v)
		}
	}
	sortVolumes(r.volumes)
	return r, nil
}

func dirFault(err error, target string) error {
	return fault.Wrap(err, fileKind(err), fault.File, "cannot read directory %s", target)
}

// fileKind is the kind of a fault of a file or a directory.
func fileKind(err error) fault.Kind {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fault.NotFound
	case fault.Is(err, fault.Denied):
		return fault.Denied
	}
	return fault.Failed
}

// measure takes the space of the file system and the permissions of the directory.
func measure(dir *os.File) (space, permissions, error) {
	var (
		fsys unix.Statfs_t
		st   unix.Stat_t
	)
	if err := unix.Fstatfs(int(dir.Fd()), &fsys); err != nil {
		return space{}, noPermissions, err
	}
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return space{}, noPermissions, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return space{}, noPermissions, unix.ENOTDIR
	}
	unit := uint64(fsys.Frsize)
	s := space{capacity: fsys.Blocks * unit, available: fsys.Bavail * unit}
	s.allocation = s.capacity - min(s.available, s.capacity)
	return s, permissions{int(st.Mode & 0o777), int(st.Uid), int(st.Gid)}, nil
}

// readVolume looks at one entry; nil is one that is no volume: a broken link, one that
// others than root can make, a pipe, a socket, or gone in the meantime. A link of root's to
// an image outside of the pool is shown, for reading; nothing is changed through it.
func readVolume(pool string, dir *os.File, name string, d declaration) (*Volume, error) {
	if checkName(fault.Volume, name) != nil || name == "lost+found" {
		return nil, nil
	}
	path := filepath.Join(dir.Name(), name)
	f, err := safepath.OpenAt(dir, name, 0)
	if err == nil && isLink(f) {
		_ = f.Close() // opened to be named
		f, err = safepath.Open(path)
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ELOOP) || fault.Is(err, fault.Denied) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fd := int(f.Fd())
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &st); err != nil {
		return nil, err
	}
	v := &Volume{
		Name: name, Pool: pool, Path: path, inode: st.Ino,
		perms: permissions{int(st.Mode & 0o777), int(st.Uid), int(st.Gid)},
		atime: st.Atime, mtime: st.Mtime, ctime: st.Ctime, btime: st.Btime,
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		v.Kind = File
	case unix.S_IFBLK:
		v.Kind = Block
	case unix.S_IFDIR:
		v.Kind, v.Format = Directory, "dir"
		return v, nil
	default:
		return nil, nil
	}
	return v, v.inspect(fd, d)
}

// readVolumeIn is readVolume for a directory that is not open.
func readVolumeIn(pool, target, name string, d declaration) (*Volume, error) {
	dir, err := openDir(target)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return readVolume(pool, dir, name, d)
}

// inspect reads the header. The format that was declared when the volume was
// made holds for as long as it is the same file.
func (v *Volume) inspect(fd int, d declaration) error {
	f, err := image.Reopen(fd, v.Path, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer f.Close()
	format := image.Format("")
	if d.Inode == v.inode {
		format, v.encryption = d.Format, d.Encryption
	}
	info, err := image.Inspect(f, format)
	v.Info = info
	if format == "" && info.Backing != nil {
		v.claims = strconv.Quote(info.Backing.Name)
	}
	if err != nil {
		v.Virtual, v.Problem = info.Physical, err.Error()
		v.Backing = nil
	}
	if v.Backing != nil {
		if path, err := image.Locate(v.Path, v.Backing.Name); err == nil {
			v.backingPath = path
		}
		if strings.ContainsFunc(v.Backing.Name, isUnprintable) || strings.ContainsFunc(string(v.Backing.Format), isUnprintable) {
			v.Backing, v.Problem = nil, "the name of the backing file is no text"
		}
	}
	return nil
}

// isUnprintable finds what a document cannot hold.
func isUnprintable(r rune) bool { return r == utf8.RuneError || unicode.IsControl(r) }

func sortVolumes(volumes []*Volume) {
	slices.SortFunc(volumes, func(a, b *Volume) int { return strings.Compare(a.Name, b.Name) })
}
