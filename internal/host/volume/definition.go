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

// Type is what sort of storage a pool is.
type Type string

// The types that are built.
const (
	Dir   Type = "dir"   // a directory as it is
	FS    Type = "fs"    // a file system on a block device, mounted
	NetFS Type = "netfs" // an export of another host, mounted

	Logical Type = "logical" // an LVM volume group, whose logical volumes are the volumes
	Disk    Type = "disk"    // a block device, whose partitions are the volumes
)

// permissions are a file's mode and owner; -1 where nothing was asked for.
type permissions struct{ mode, owner, group int }

var noPermissions = permissions{-1, -1, -1}

// definition is what was understood of a pool's document. It is immutable.
type definition struct {
	kind   Type
	name   string
	uuid   string
	target string // absolute path of the directory with the volumes
	perms  permissions

	device   string // fs, disk: the block device
	host     string // netfs
	dir      string // netfs: the path of the export
	format   string // fs, netfs: of the file system, "auto" leaves it to mount; logical: lvm2; disk: of the partition table
	protocol string // netfs: version of the protocol, "" for any

	copyOnWrite string // dir, fs: "yes" or "no" for files made in the target, on btrfs; "" leaves it to the file system

	group   string   // logical: name of the volume group
	devices []string // logical: what the group is made of; needed to build only
}

// maxName bounds names of pools and volumes: what a file name can have.
const maxName = 255

// checkName refuses names that would be paths, or that no line of a list can hold.
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

// parsePool understands the document of a pool. Id is the UUID to give it
// where the document has none; "" makes a new one.
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
	return d, explainLoss(root, d.understood(), &libvirtxml.StoragePool{}, validate, d.unused())
}

// readFeatures takes whether files are copied on write.
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

// absent are libvirt's types that are not built, with what serves instead. Disks of type
// network are not built either, so that none of these says so.
var absent = map[Type]string{
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
	if why, ok := absent[t]; ok {
		return fault.New(fault.Unsupported, fault.Config, "pools of type %q are not built: %s", t, why)
	}
	return fault.New(fault.Invalid, fault.XML, "pool type %q is not known", t)
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

// readTarget takes where the volumes are. For what is cut out of block devices
// the kernel says that, and it can be left out.
func (d *definition) readTarget(path string) error {
	if path == "" && d.carver() != nil {
		return nil
	}
	if path != "" && !filepath.IsAbs(path) {
		path = "/" + path // the folder that libvirt's daemon works in
	}
	var err error
	d.target, err = cleanPath(path)
	return fault.Wrap(err, fault.Invalid, fault.XML, "pool %q has no usable target", d.name)
}

// fixTarget sets where the kernel shows the volumes.
func (d *definition) fixTarget(path string) error {
	if d.target != "" && d.target != path {
		return fault.New(fault.Unsupported, fault.Config, "the volumes of pool %q are in %s, and not in %s; leave out the target", d.name, path, d.target)
	}
	d.target = path
	return nil
}

// place is what no two pools can share: the directory with the volumes, or the
// disk where that is /dev.
func (d *definition) place() string {
	if d.kind == Disk {
		return d.device
	}
	return d.target
}

// cleanPath takes an absolute path and gives it in its shortest form.
func cleanPath(path string) (string, error) {
	switch {
	case path == "":
		return "", fault.New(fault.Invalid, fault.XML, "a path is missing")
	case !filepath.IsAbs(path):
		return "", fault.New(fault.Invalid, fault.XML, "path %q is not absolute", path)
	case !utf8.ValidString(path) || strings.ContainsFunc(path, unicode.IsControl) || len(path) >= 4096:
		return "", fault.New(fault.Invalid, fault.XML, "path %q is no path", path)
	}
	return filepath.Clean(path), nil
}

// readPermissions takes mode (octal), owner and group (numbers, -1 for "as it comes"). A
// mode has no set-user-id bit: whoever fills a volume would else make programs of root's.
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
			return p, fault.New(fault.Invalid, fault.XML, "permissions: %s %q is no number in range", field.name, text)
		}
		*field.into = int(n)
	}
	return p, nil
}

// Formats of the file systems that mount and mkfs are asked for; the first is
// what a document without one means.
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
		return fault.New(fault.Invalid, fault.XML, "protocol version %q is no version", d.protocol)
	}
	d.dir, err = exportPath(attr(source.Child("dir"), "path"))
	return fault.Wrap(err, fault.Invalid, fault.XML, "pool %q has no usable source directory", d.name)
}

// exportPath takes the path of an export, or the name of a share or a volume, which has no slash
// at its beginning. It is only ever read behind the name of a host.
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

// attr gives an attribute of an element that may be missing.
func attr(e *xmltree.Element, name string) string {
	if e == nil {
		return ""
	}
	return e.Attr(name)
}

// source gives what mount is to mount.
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
