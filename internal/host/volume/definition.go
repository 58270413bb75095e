package volume

import (
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"
	"libvirt.org/go/libvirtxml"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// Type is the type of a pool's storage.
type Type string

// The supported types.
const (
	Dir   Type = "dir"   // an existing directory
	FS    Type = "fs"    // a file system on a block device, mounted
	NetFS Type = "netfs" // an export of another host, mounted

	Logical Type = "logical" // an LVM volume group; its logical volumes are the volumes
	Disk    Type = "disk"    // a block device; its partitions are the volumes
)

// permissions are a file's mode and owner; -1: not set.
type permissions struct{ mode, owner, group int }

var noPermissions = permissions{-1, -1, -1}

// definition is the parsed document of a pool. It is immutable.
type definition struct {
	kind   Type
	name   string
	uuid   string
	target string // absolute path of the directory with the volumes
	perms  permissions

	device   string // fs, disk: the block device
	host     string // netfs
	dir      string // netfs: the path of the export
	format   string // fs, netfs: the file system, "auto" lets mount detect it; logical: lvm2; disk: the partition table
	protocol string // netfs: version of the protocol, "" for any

	copyOnWrite string // dir, fs: "yes" or "no" for new files in the target, on btrfs; "": the file system's default

	group   string   // logical: name of the volume group
	devices []string // logical: the group's devices, needed only by build
}

// maxName bounds names of pools and volumes, in bytes (NAME_MAX).
const maxName = 255

// checkName refuses names that are paths or contain control characters.
func checkName(s fault.Subject, name string) error {
	switch {
	case name == "":
		return fault.New(fault.Invalid, fault.XML, "the %s has no name", s)
	case len(name) > maxName:
		return fault.New(fault.Invalid, fault.XML, "a name of %d bytes is too long for a %s: %d are allowed", len(name), s, maxName)
	case name == "." || name == ".." || strings.Contains(name, "/"):
		return fault.New(fault.Invalid, fault.XML, "%s name %q is a path: it cannot contain '/'", s, name)
	case !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl):
		return fault.New(fault.Invalid, fault.XML, "%s name %q has control characters", s, name)
	}
	return nil
}

// parsePool parses the document of a pool. id is the UUID for a document without one; "" makes a new one.
func parsePool(doc, id string, validate bool) (*definition, error) {
	root, err := xmltree.Parse(doc)
	if err != nil {
		return nil, err
	}
	if root.Name != "pool" {
		return nil, fault.New(fault.Invalid, fault.XML, "the root is <%s>, not <pool>", root.Name)
	}
	d := &definition{kind: Type(root.Attr("type")), name: root.Child("name").Text(), uuid: id, perms: noPermissions}
	if err := checkType(d.kind); err != nil {
		return nil, err
	}
	if err := checkName(fault.Pool, d.name); err != nil {
		return nil, err
	}
	if err := d.readUUID(root.Child("uuid").Text()); err != nil {
		return nil, err
	}
	if err := d.readTarget(root.Child("target").Child("path").Text()); err != nil {
		return nil, err
	}
	if d.perms, err = readPermissions(root.Child("target").Child("permissions")); err != nil {
		return nil, err
	}
	if err := d.readSource(root.Child("source")); err != nil {
		return nil, err
	}
	if err := d.readFeatures(root.Child("features")); err != nil {
		return nil, err
	}
	return d, refuseIgnored(root, d.supported(), &libvirtxml.StoragePool{}, validate, d.ignoredPaths())
}

// readFeatures reads whether files are copied on write.
func (d *definition) readFeatures(features *xmltree.Element) error {
	switch d.copyOnWrite = attr(features.Child("cow"), "state"); {
	case d.copyOnWrite == "":
	case d.copyOnWrite != "yes" && d.copyOnWrite != "no":
		return fault.New(fault.Invalid, fault.XML, "features: the state of cow is %q, not yes or no", d.copyOnWrite)
	case d.kind != Dir && d.kind != FS:
		return fault.New(fault.Unsupported, fault.Config, "features/cow is for pools of type dir and fs, not %s", d.kind)
	}
	return nil
}

// unsupportedTypes are libvirt's types that are not supported, each with an alternative. Disks of type network are not
// supported either, so no text proposes them.
var unsupportedTypes = map[Type]string{
	"iscsi":        "log in on the host (iscsiadm), and give guests the device under /dev/disk/by-path as a disk of type block, or make a pool of type disk or logical of it",
	"iscsi-direct": "log in on the host (iscsiadm), and give guests the device under /dev/disk/by-path as a disk of type block, or make a pool of type disk or logical of it",
	"scsi":         "give guests the device under /dev/disk/by-path as a disk of type block, or make a pool of type disk or logical of it",
	"mpath":        "give guests the device under /dev/mapper as a disk of type block, or make a pool of type disk or logical of it",
	"rbd":          "map the image on the host (rbd map), and give guests the device under /dev/rbd as a disk of type block; or mount CephFS and make a pool of type dir there",
	"sheepdog":     "QEMU has no sheepdog any more; copy the images to a pool of another type",
	"gluster":      "make a pool of type netfs whose source has the format glusterfs, or mount the volume and make a pool of type dir there",
	"zfs":          "give guests the device under /dev/zvol as a disk of type block, or make a pool of type dir in a file system of ZFS",
	"vstorage":     "mount the cluster on the host and make a pool of type dir there",
}

func checkType(t Type) error {
	switch t {
	case Dir, FS, NetFS, Logical, Disk:
		return nil
	case "":
		return fault.New(fault.Invalid, fault.XML, "the pool has no type")
	}
	if why, ok := unsupportedTypes[t]; ok {
		return fault.New(fault.Unsupported, fault.Config, "pools of type %q are not built: %s", t, why)
	}
	return fault.New(fault.Invalid, fault.XML, "unknown pool type %q", t)
}

func (d *definition) readUUID(text string) error {
	if text == "" {
		if d.uuid == "" {
			d.uuid = uuid.NewString()
		}
		return nil
	}
	id, err := uuid.Parse(strings.TrimSpace(text))
	if err != nil {
		return fault.Wrap(err, fault.Invalid, fault.XML, "pool %q has a malformed uuid", d.name)
	}
	d.uuid = id.String()
	return nil
}

// readTarget reads the folder of the volumes. For block devices the kernel decides that, and it may be
// omitted.
func (d *definition) readTarget(path string) error {
	if path == "" && d.blockBackend() != nil {
		return nil
	}
	if path != "" && !filepath.IsAbs(path) {
		path = "/" + path // libvirt's daemon works in /
	}
	var err error
	d.target, err = cleanPath(path)
	return fault.Wrap(err, fault.Invalid, fault.XML, "pool %q has no usable target", d.name)
}

// fixTarget sets the folder where the kernel shows the volumes.
func (d *definition) fixTarget(path string) error {
	if d.target != "" && d.target != path {
		return fault.New(fault.Unsupported, fault.Config, "the volumes of pool %q are in %s, and not in %s; omit the target", d.name, path, d.target)
	}
	d.target = path
	return nil
}

// storageID is the value that two pools cannot share: the directory of the volumes or, if that is /dev, the disk.
func (d *definition) storageID() string {
	if d.kind == Disk {
		return d.device
	}
	return d.target
}

// cleanPath checks an absolute path and returns its shortest form.
func cleanPath(path string) (string, error) {
	switch {
	case path == "":
		return "", fault.New(fault.Invalid, fault.XML, "a path is missing")
	case !filepath.IsAbs(path):
		return "", fault.New(fault.Invalid, fault.XML, "path %q is not absolute", path)
	case !utf8.ValidString(path) || strings.ContainsFunc(path, unicode.IsControl) || len(path) >= 4096:
		return "", fault.New(fault.Invalid, fault.XML, "path %q is not a valid path", path)
	}
	return filepath.Clean(path), nil
}

// readPermissions reads mode (octal), owner and group (numbers; -1: unchanged). A mode cannot have the
// set-user-ID bit: the client that fills a volume could otherwise make programs that run as root.
func readPermissions(e *xmltree.Element) (permissions, error) {
	p := noPermissions
	for _, field := range []struct {
		name string
		base int
		max  int64
		into *int
	}{{"mode", 8, 0o777, &p.mode}, {"owner", 10, 1<<32 - 2, &p.owner}, {"group", 10, 1<<32 - 2, &p.group}} {
		text := strings.TrimSpace(e.Child(field.name).Text())
		if text == "" || text == "-1" {
			continue
		}
		n, err := strconv.ParseInt(text, field.base, 64)
		if err != nil || n < 0 || n > field.max {
			return p, fault.New(fault.Invalid, fault.XML, "permissions: %s %q is not a number in range", field.name, text)
		}
		*field.into = int(n)
	}
	return p, nil
}

// Formats of file systems for mount and mkfs; the first is the default.
var (
	fsFormats    = []string{"auto", "ext2", "ext3", "ext4", "ufs", "iso9660", "udf", "gfs", "gfs2", "vfat", "hfs+", "xfs", "ocfs2"}
	netFSFormats = []string{"auto", "nfs", "glusterfs", "cifs"}
)

func (d *definition) readSource(source *xmltree.Element) error {
	switch d.kind {
	case Dir:
		return nil
	case Logical:
		return d.readLogical(source)
	case Disk:
		return d.readDisk(source)
	}
	formats := fsFormats
	if d.kind == NetFS {
		formats = netFSFormats
	}
	if d.format = attr(source.Child("format"), "type"); d.format == "" {
		d.format = formats[0]
	}
	if !slices.Contains(formats, d.format) {
		return fault.New(fault.Unsupported, fault.Config, "source format %q is not one of %s", d.format, strings.Join(formats, ", "))
	}
	var err error
	if d.kind == FS {
		d.device, err = cleanPath(attr(source.Child("device"), "path"))
		return fault.Wrap(err, fault.Invalid, fault.XML, "pool %q has no usable source device", d.name)
	}
	d.host, d.protocol = attr(source.Child("host"), "name"), attr(source.Child("protocol"), "ver")
	if !hostName.MatchString(d.host) {
		return fault.New(fault.Invalid, fault.XML, "pool %q has no usable source host: %q", d.name, d.host)
	}
	if !protocolVersion.MatchString(d.protocol) {
		return fault.New(fault.Invalid, fault.XML, "protocol version %q is not a version", d.protocol)
	}
	d.dir, err = exportPath(attr(source.Child("dir"), "path"))
	return fault.Wrap(err, fault.Invalid, fault.XML, "pool %q has no usable source directory", d.name)
}

// exportPath checks the path of an export, or the name of a share or a volume, which does not begin with a
// slash. It is only used after the name of a host.
func exportPath(path string) (string, error) {
	if path == "" || filepath.IsAbs(path) {
		return cleanPath(path)
	}
	clean, err := cleanPath("/" + path)
	return strings.TrimPrefix(clean, "/"), err
}

// Hosts and versions become arguments of mount.
var (
	hostName        = regexp.MustCompile(`^[0-9A-Za-z\[][0-9A-Za-z.:_\]-]{0,254}$`)
	protocolVersion = regexp.MustCompile(`^[0-9]?(\.[0-9])?$`)
)

// attr returns an attribute of an element that may be missing.
func attr(e *xmltree.Element, name string) string {
	if e == nil {
		return ""
	}
	return e.Attr(name)
}

// source returns the source argument of mount.
func (d *definition) source() string {
	switch {
	case d.kind == FS:
		return d.device
	case d.format == "cifs":
		return "//" + d.host + "/" + strings.TrimPrefix(d.dir, "/")
	}
	host := d.host
	if strings.Contains(host, ":") && !strings.HasPrefix(host, "[") {
		host = "[" + host + "]"
	}
	return host + ":" + d.dir
}
