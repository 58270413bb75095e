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

// MaxVolumes is the maximum number of entries in a pool's directory: the longest list of libvirt's protocol.
const MaxVolumes = 16384

// poolContents is the result of reading a pool.
type poolContents struct {
	volumes []*Volume
	space   space
	perms   permissions
	// unread are the names of existing files that could not be read.
	unread []string
	folder uint64 // the inode of the directory; 0 for block devices
}

// read reads the whole pool. It runs in the pool's worker.
func (p *Pool) read(d *definition, declared map[string]declaration) (poolContents, error) {
	if c := d.blockBackend(); c != nil {
		return c.readContents(p.pools.life)
	}
	if err := d.mounted(); err != nil {
		return poolContents{}, err
	}
	return p.readDir(d.target, declared)
}

func (p *Pool) readDir(target string, declared map[string]declaration) (poolContents, error) {
	var r poolContents
	dir, err := openDir(target)
	if err != nil {
		return r, err
	}
	defer dir.Close()
	listed, err := reopenDir(dir, target, unix.O_RDONLY)
	if err != nil {
		return r, err
	}
	defer listed.Close()
	if r.space, r.perms, err = readSizes(dir); err != nil {
		return r, wrapDirError(err, target)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return r, wrapDirError(err, target)
	}
	r.folder = st.Ino
	entries, err := listed.ReadDir(MaxVolumes + 1)
	if err != nil && len(entries) == 0 && !errors.Is(err, io.EOF) {
		return r, wrapDirError(err, target)
	}
	if len(entries) > MaxVolumes {
		return r, fault.New(fault.NoCapacity, fault.Pool, "%s has more than %d entries; distribute them over several pools", target, MaxVolumes)
	}
	for _, entry := range entries {
		p.worker.progress()
		v, err := readVolume(p.name, dir, entry.Name(), declared[entry.Name()])
		if err != nil {
			p.pools.log.Warn("volume not readable", "pool", p.name, "volume", entry.Name(), "error", err)
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

func wrapDirError(err error, target string) error {
	return fault.Wrap(err, fileKind(err), fault.File, "cannot read directory %s", target)
}

// fileKind maps an error about a file or a directory to a kind.
func fileKind(err error) fault.Kind {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fault.NotFound
	case fault.Is(err, fault.Denied):
		return fault.Denied
	}
	return fault.Failed
}

// readSizes reads the sizes of the file system and the permissions of the directory.
func readSizes(dir *os.File) (space, permissions, error) {
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

// readVolume reads one entry; nil if it is no volume: a broken link, a link that users other than root can
// make, a pipe, a socket, or removed in the meantime. A link of root's to an image outside the pool is shown
// and can be read; nothing is changed through it.
func readVolume(pool string, dir *os.File, name string, d declaration) (*Volume, error) {
	if checkName(fault.Volume, name) != nil || name == "lost+found" {
		return nil, nil
	}
	path := filepath.Join(dir.Name(), name)
	f, err := safepath.OpenAt(dir, name, 0)
	if err == nil && isLink(f) {
		_ = f.Close() // opened with O_PATH only
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

// inspect reads the header. The format that was declared when the volume was made is valid as long as the
// inode is the same.
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
		v.claimedBacking = strconv.Quote(info.Backing.Name)
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

// isUnprintable finds what an XML document cannot hold.
func isUnprintable(r rune) bool { return r == utf8.RuneError || unicode.IsControl(r) }

func sortVolumes(volumes []*Volume) {
	slices.SortFunc(volumes, func(a, b *Volume) int { return strings.Compare(a.Name, b.Name) })
}
