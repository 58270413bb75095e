package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"slices"
)

// Plain reads check the file before bbolt maps it: bbolt trusts the pages that it
// maps, and a page that is wrong or cannot be read ends the process. The checks stay
// within the file: a page is checked once, and no read goes beyond the end.
//
//	page    id u64, flags u16, count u16, overflow u32, then elements
//	meta    magic, version, page size, flags u32; root, sequence, freelist, pages,
//	        transaction u64; checksum (FNV-1a) u64
//	branch  position, key size u32, child u64, each
//	leaf    flags, position, key size, value size u32, each
const (
	pageHeader  = 16
	elementSize = 16
	metaSize    = 64

	flagBranch   = 0x01
	flagLeaf     = 0x02
	flagFreelist = 0x10

	flagBucket = 0x01 // of a leaf's element

	metaMagic   = 0xED0CDAED
	metaVersion = 2
	noFreelist  = math.MaxUint64

	// maxDepth of a tree: a page holds at least two children.
	maxDepth = 64
)

// Problem is one piece of damage in a store. Kind and Key name the record;
// both are empty for damage to the file.
type Problem struct{ Kind, Key, Text string }

func (p Problem) String() string {
	if p.Kind == "" {
		return p.Text
	}
	return fmt.Sprintf("%s %q: %s", p.Kind, p.Key, p.Text)
}

// keyRange is a range of keys of a kind, low to below high, whose page cannot be
// read. An empty kind means all kinds; a nil high has no end.
type keyRange struct {
	kind      string
	low, high []byte
}

func (s keyRange) contains(kind, key string) bool {
	return (s.kind == "" || s.kind == kind) && bytes.Compare([]byte(key), s.low) >= 0 &&
		(s.high == nil || bytes.Compare([]byte(key), s.high) < 0)
}

// meta is a meta page, a head of the file. There are two, written alternately.
type meta struct {
	pageSize                           int
	root, freelist, pages, transaction uint64
}

// scan is one pass through a file.
type scan struct {
	from io.ReaderAt
	size int64
	meta
	seen map[uint64]bool
	// visit is given every value that the tree leads to, damaged or not.
	visit func(kind string, key, value []byte)

	problems []Problem
	oneMeta  bool       // the other is torn or damaged
	broken   bool       // the tree cannot be trusted
	lost     []keyRange // ranges that the tree no longer reaches
	unread   error      // a failed read: perhaps the disk is failing, not the file
}

// scanFile makes one pass through a file.
func scanFile(from io.ReaderAt, size int64, visit func(kind string, key, value []byte)) *scan {
	s := &scan{from: from, size: size, seen: map[uint64]bool{}, visit: visit}
	if !s.readMetas() {
		s.addDamage(keyRange{}, "both heads of the file are damaged")
		return s
	}
	s.walkTree("", s.root, 0, keyRange{})
	s.checkFreeList()
	return s
}

func (s *scan) addDamage(lost keyRange, format string, args ...any) {
	s.broken = true
	s.lost = append(s.lost, lost)
	s.problems = append(s.problems, Problem{Text: fmt.Sprintf(format, args...)})
}

// read reads bytes of the file; nil if that fails.
func (s *scan) read(at int64, n int) []byte {
	if at < 0 || n < 0 || at > s.size-int64(n) {
		return nil
	}
	b := make([]byte, n)
	if _, err := s.from.ReadAt(b, at); err != nil {
		if !errors.Is(err, io.EOF) {
			s.unread = err
		}
		return nil
	}
	return b
}

// readMetas finds the later of the two whole meta pages. A crash in the middle of a write leaves a
// torn one, and then no client was told that its change is written. It looks the same as
// later damage to the last meta page.
func (s *scan) readMetas() bool {
	sizes := []int{4096}
	for size := 1 << 9; size <= 1<<16; size <<= 1 {
		sizes = append(sizes, size)
	}
	first, firstWhole := s.readMeta(0)
	if firstWhole {
		sizes = []int{first.pageSize}
		s.meta = first
	}
	for _, size := range sizes {
		second, whole := s.readMeta(int64(size))
		if whole && (!firstWhole || second.transaction > first.transaction) {
			s.meta, s.oneMeta = second, !firstWhole
			return true
		}
		s.oneMeta = s.oneMeta || firstWhole && !whole
	}
	return firstWhole
}

func (s *scan) readMeta(at int64) (meta, bool) {
	b := s.read(at+pageHeader, metaSize)
	if b == nil {
		return meta{}, false
	}
	order := binary.NativeEndian
	sum := fnv.New64a()
	_, _ = sum.Write(b[:metaSize-8])
	m := meta{
		pageSize: int(order.Uint32(b[8:])), root: order.Uint64(b[16:]),
		freelist: order.Uint64(b[32:]), pages: order.Uint64(b[40:]), transaction: order.Uint64(b[48:]),
	}
	if order.Uint32(b) != metaMagic || order.Uint32(b[4:]) != metaVersion || order.Uint64(b[56:]) != sum.Sum64() {
		return m, false
	}
	whole := m.pageSize >= 1<<9 && m.pageSize <= 1<<16 && m.pageSize&(m.pageSize-1) == 0 && (at == 0 || at == int64(m.pageSize))
	if !whole { // bbolt checks only the checksum, and would accept it
		s.broken = true
		s.problems = append(s.problems, Problem{Text: fmt.Sprintf("the head at %d has a wrong page size, %d bytes; no record is lost with it", at, m.pageSize)})
	}
	return m, whole
}

// page reads a page with its overflow pages, if it is valid and was not seen before.
func (s *scan) page(id uint64) (body []byte, flags uint16, count int, wrong string) {
	if id < 2 || id >= s.pages || id > uint64(s.size)/uint64(s.pageSize) {
		return nil, 0, 0, "lies outside the file"
	}
	at := int64(id) * int64(s.pageSize)
	h := s.read(at, pageHeader)
	if h == nil {
		return nil, 0, 0, "cannot be read"
	}
	order := binary.NativeEndian
	over := uint64(order.Uint32(h[12:]))
	if order.Uint64(h) != id || over >= s.pages-id {
		return nil, 0, 0, "has wrong flags or a wrong number"
	}
	for i := id; i <= id+over; i++ {
		if s.seen[i] {
			return nil, 0, 0, "is used twice"
		}
	}
	for i := id; i <= id+over; i++ {
		s.seen[i] = true
	}
	if body = s.read(at, int(over+1)*s.pageSize); body == nil {
		return nil, 0, 0, "cannot be read"
	}
	return body, order.Uint16(h[8:]), int(order.Uint16(h[10:])), ""
}

// walkTree walks a tree of pages whose keys are in a range. The kind is empty in the
// tree of kinds.
func (s *scan) walkTree(kind string, id uint64, depth int, in keyRange) {
	in.kind = kind
	body, flags, count, wrong := s.page(id)
	switch {
	case wrong != "":
		s.addDamage(in, "page %d%s %s", id, ofKind(kind), wrong)
	case depth > maxDepth:
		s.addDamage(in, "page %d%s lies too deep in the tree", id, ofKind(kind))
	case flags == flagLeaf:
		s.walkLeaf(kind, body, count, in, fmt.Sprintf("page %d%s", id, ofKind(kind)))
	case flags == flagBranch && count > 0:
		s.walkBranch(kind, body, count, id, depth, in)
	default:
		s.addDamage(in, "page %d%s has an unknown type", id, ofKind(kind))
	}
}

func ofKind(kind string) string {
	if kind == "" {
		return ""
	}
	return " of the records of kind " + kind
}

type child struct {
	key []byte
	id  uint64
}

func (s *scan) walkBranch(kind string, body []byte, count int, id uint64, depth int, in keyRange) {
	order := binary.NativeEndian
	var children []child
	for i := range count {
		at := pageHeader + i*elementSize
		if at+elementSize > len(body) {
			break
		}
		key := elementBytes(body, at, uint64(order.Uint32(body[at:])), uint64(order.Uint32(body[at+4:])))
		if key == nil || !inRange(key, in) || i > 0 && bytes.Compare(children[i-1].key, key) >= 0 {
			break
		}
		children = append(children, child{key, order.Uint64(body[at+8:])})
	}
	if len(children) < count {
		s.addDamage(in, "page %d%s has invalid children", id, ofKind(kind))
		return
	}
	for i, c := range children {
		below := keyRange{low: c.key, high: in.high}
		if i+1 < len(children) {
			below.high = children[i+1].key
		}
		s.walkTree(kind, c.id, depth+1, below)
	}
}

// walkLeaf visits the elements of a leaf. If one element is wrong the others are
// still visited, and the tree counts as broken.
func (s *scan) walkLeaf(kind string, body []byte, count int, in keyRange, name string) {
	order := binary.NativeEndian
	var last []byte
	for i := range count {
		at := pageHeader + i*elementSize
		if at+elementSize > len(body) {
			s.addDamage(in, "%s ends early", name)
			return
		}
		position, size := uint64(order.Uint32(body[at+4:])), uint64(order.Uint32(body[at+8:]))
		key := elementBytes(body, at, position, size)
		value := elementBytes(body, at, position+size, uint64(order.Uint32(body[at+12:])))
		bucket := order.Uint32(body[at:])&flagBucket != 0
		if key == nil || value == nil || !inRange(key, in) || i > 0 && bytes.Compare(last, key) >= 0 || bucket != (kind == "") {
			s.addDamage(in, "%s has an invalid element", name)
			continue
		}
		last = key
		if bucket {
			s.walkBucket(string(key), value)
		} else {
			s.visit(kind, key, value)
		}
	}
}

// walkBucket visits the records of a kind: a tree, or one leaf inside the element.
func (s *scan) walkBucket(kind string, value []byte) {
	if len(value) < pageHeader {
		s.addDamage(keyRange{kind: kind}, "the records of kind %s have no root page", kind)
		return
	}
	if root := binary.NativeEndian.Uint64(value); root != 0 {
		s.walkTree(kind, root, 0, keyRange{})
		return
	}
	page := value[pageHeader:]
	if len(page) < pageHeader || binary.NativeEndian.Uint16(page[8:]) != flagLeaf {
		s.addDamage(keyRange{kind: kind}, "the records of kind %s are not a valid leaf", kind)
		return
	}
	s.walkLeaf(kind, page, int(binary.NativeEndian.Uint16(page[10:])), keyRange{kind: kind}, "the page"+ofKind(kind))
}

// checkFreeList checks the list of free pages. If a used page were on it, the next change would
// overwrite its records.
func (s *scan) checkFreeList() {
	if s.freelist == noFreelist || s.broken {
		return
	}
	body, flags, count, wrong := s.page(s.freelist)
	ids := uint64(count)
	at := pageHeader
	if wrong == "" && flags == flagFreelist && count == math.MaxUint16 && len(body) >= pageHeader+8 {
		ids, at = binary.NativeEndian.Uint64(body[at:]), at+8
	}
	if wrong != "" || flags != flagFreelist || ids > uint64(len(body)-at)/8 {
		s.broken = true
		s.problems = append(s.problems, Problem{Text: "the list of free pages cannot be read; no record is lost with it"})
		return
	}
	for i := range int(ids) {
		id := binary.NativeEndian.Uint64(body[at+8*i:])
		if id < 2 || id >= s.pages || s.seen[id] {
			s.broken = true
			s.problems = append(s.problems, Problem{Text: fmt.Sprintf("page %d is in use and on the list of free ones; no record is lost with it", id)})
			return
		}
		s.seen[id] = true
	}
}

// elementBytes returns size bytes at a position relative to an element; nil if the range
// leaves the page.
func elementBytes(body []byte, element int, position, size uint64) []byte {
	from := uint64(element) + position
	to := from + size
	if to > uint64(len(body)) {
		return nil
	}
	return slices.Clip(body[from:to])
}

func inRange(key []byte, in keyRange) bool {
	return bytes.Compare(key, in.low) >= 0 && (in.high == nil || bytes.Compare(key, in.high) < 0)
}
