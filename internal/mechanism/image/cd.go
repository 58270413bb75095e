package image

import (
	"cmp"
	"encoding/binary"
	"slices"
	"strings"
	"time"
	"unicode/utf16"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// CDFile is one file of a CD. Its name consists of lower-case letters, digits, "-" and at most one ".", so
// that every reader of CDs shows it unchanged.
type CDFile struct {
	Name string
	Data []byte
}

// Bounds of a CD that is made in memory.
const (
	maxCDFiles = 16
	maxCDBytes = 16 << 20
	maxCDName  = 24 // leaves the whole directory in one sector, in both of its forms
)

const cdSector = 2048

// The sectors of a CD with one directory. The first 16 are not used; the rest follows in this order.
const (
	cdPrimary = 16 + iota // volume descriptors
	cdJoliet
	cdLast
	cdPathsLE // the primary form's table of directories, in both orders of bytes
	cdPathsBE
	cdJolietPathsLE
	cdJolietPathsBE
	cdRoot
	cdJolietRoot
	cdData
)

// CD makes an ISO 9660 file system with one directory. Each name is in it twice: in capitals as ISO 9660
// requires, and unchanged in Joliet's form.
func CD(label string, files []CDFile, made time.Time) ([]byte, error) {
	files = slices.SortedFunc(slices.Values(files), func(a, b CDFile) int { return cmp.Compare(a.Name, b.Name) })
	if err := checkCD(label, files); err != nil {
		return nil, err
	}
	c := &cd{made: made.UTC(), label: label, sectors: cdData}
	primary, joliet := c.directory(cdRoot), c.directory(cdJolietRoot)
	for _, f := range files {
		at := c.sectors
		c.sectors += (len(f.Data) + cdSector - 1) / cdSector
		primary = append(primary, c.record([]byte(strings.ToUpper(f.Name)+";1"), at, len(f.Data), 0)...)
		joliet = append(joliet, c.record(ucs2(f.Name), at, len(f.Data), 0)...)
		c.put(at, f.Data)
	}
	c.put(cdRoot, primary)
	c.put(cdJolietRoot, joliet)
	c.put(cdPrimary, c.descriptor(1, plain, cdPathsLE, cdRoot, ""))
	c.put(cdJoliet, c.descriptor(2, ucs2, cdJolietPathsLE, cdJolietRoot, "%/E"))
	c.put(cdLast, []byte("\xffCD001\x01"))
	c.paths(cdPathsLE, cdRoot)
	c.paths(cdJolietPathsLE, cdJolietRoot)
	return c.bytes[:c.sectors*cdSector], nil
}

func checkCD(label string, files []CDFile) error {
	if label == "" || len(label) > 16 { // Joliet has room for 16 characters
		return fault.New(fault.Invalid, fault.Volume, "the CD label %q must have 1 to 16 characters", label)
	}
	if len(files) > maxCDFiles {
		return fault.New(fault.Invalid, fault.Volume, "a CD can have at most %[2]d files, not %[1]d", len(files), maxCDFiles)
	}
	size := 0
	for i, f := range files {
		odd := strings.ContainsFunc(f.Name, func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '.' })
		if f.Name == "" || len(f.Name) > maxCDName || odd || strings.Count(f.Name, ".") > 1 || i > 0 && files[i-1].Name == f.Name {
			return fault.New(fault.Invalid, fault.Volume, "the name %q is not valid for a file on a CD, or is used twice", f.Name)
		}
		size += len(f.Data)
	}
	if size > maxCDBytes {
		return fault.New(fault.Invalid, fault.Volume, "a CD can have at most %[2]d bytes, not %[1]d", size, maxCDBytes)
	}
	return nil
}

// cd is a file system that is being built.
type cd struct {
	bytes   []byte
	sectors int // in use
	label   string
	made    time.Time
}

// put writes data into a sector and the sectors after it.
func (c *cd) put(sector int, data []byte) {
	if end := (sector + (len(data)+cdSector-1)/cdSector) * cdSector; end > len(c.bytes) {
		c.bytes = append(c.bytes, make([]byte, end-len(c.bytes))...)
	}
	copy(c.bytes[sector*cdSector:], data)
}

// isDirectory marks the record of a directory.
const isDirectory = 2

// directory begins a directory with its entries for itself and its parent. For the root both are the same.
func (c *cd) directory(at int) []byte {
	return append(c.record([]byte{0}, at, cdSector, isDirectory), c.record([]byte{1}, at, cdSector, isDirectory)...)
}

// record is a file's entry in a directory.
func (c *cd) record(name []byte, at, size int, flags byte) []byte {
	length := (33 + len(name) + 1) &^ 1
	r := make([]byte, length)
	r[0] = byte(length)
	both32(r[2:], at)
	both32(r[10:], size)
	copy(r[18:], []byte{byte(c.made.Year() - 1900), byte(c.made.Month()), byte(c.made.Day()), byte(c.made.Hour()), byte(c.made.Minute()), byte(c.made.Second())})
	r[25] = flags
	both16(r[28:], 1) // the first disc of its set
	r[32] = byte(len(name))
	copy(r[33:], name)
	return r
}

// descriptor describes the file system in one of its two forms. Text is how that
// form writes text, and escape is how it says so.
func (c *cd) descriptor(form byte, text func(string) []byte, paths, root int, escape string) []byte {
	d := make([]byte, cdSector)
	d[0], d[6] = form, 1
	copy(d[1:], "CD001")
	field := func(from, to int, value string) {
		blank := text(" ")
		for i := from; i+len(blank) <= to; i += len(blank) {
			copy(d[i:], blank)
		}
		copy(d[from:to], text(value))
	}
	field(8, 40, "") // the system that the first 16 sectors are for
	field(40, 72, c.label)
	both32(d[80:], c.sectors)
	copy(d[88:], escape)
	both16(d[120:], 1) // discs in the set
	both16(d[124:], 1) // number of this one
	both16(d[128:], cdSector)
	both32(d[132:], pathsSize)
	binary.LittleEndian.PutUint32(d[140:], uint32(paths))
	binary.BigEndian.PutUint32(d[148:], uint32(paths+1))
	copy(d[156:], c.record([]byte{0}, root, cdSector, isDirectory))
	field(190, 813, "") // publisher, preparer, application: empty
	now := c.made.Format("20060102150405") + "00\x00"
	never := strings.Repeat("0", 16) + "\x00"
	copy(d[813:], now+now+never+never) // made, changed, out of date, in force
	d[881] = 1
	return d
}

// pathsSize is the size of a table of directories that has the root alone.
const pathsSize = 10

// paths writes the path table, little endian, and in the next sector big endian.
func (c *cd) paths(at, root int) {
	c.put(at, []byte{1, 0, byte(root), 0, 0, 0, 1, 0, 0, 0})
	c.put(at+1, []byte{1, 0, 0, 0, 0, byte(root), 0, 1, 0, 0})
}

func plain(s string) []byte { return []byte(s) }

// ucs2 encodes text for Joliet: 16 bits a character, big endian.
func ucs2(s string) []byte {
	var b []byte
	for _, unit := range utf16.Encode([]rune(s)) {
		b = binary.BigEndian.AppendUint16(b, unit)
	}
	return b
}

// both32 and both16 write a number little endian and then big endian.
func both32(b []byte, n int) {
	binary.LittleEndian.PutUint32(b, uint32(n))
	binary.BigEndian.PutUint32(b[4:], uint32(n))
}

func both16(b []byte, n int) {
	binary.LittleEndian.PutUint16(b, uint16(n))
	binary.BigEndian.PutUint16(b[2:], uint16(n))
}
