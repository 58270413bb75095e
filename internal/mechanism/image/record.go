package image

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// A compromised QEMU can write any backing file name into the header of an image that it has open,
// and the daemon would open that file for it at the guest's next start. So while a QEMU can write to
// an image, an extended attribute of the file records its backing file: QEMU cannot change it, and it
// outlives the daemon. A header that disagrees with the record is refused. A header that is changed
// while no QEMU has the image, with qemu-img, is trusted.

// recordAttributes are the extended attributes for the record; the first that the file system supports is
// used. Only root can see the first kind.
var recordAttributes = []string{"trusted.lodge.backing", "user.lodge.backing"}

// maxRecord bounds a record in bytes: a format and a file name from a header.
const maxRecord = 2 << 10

// backingText returns format and name of the layer below as recorded.
func (info *Info) backingText() string {
	if info.Backing == nil {
		return "-"
	}
	return string(info.Backing.Format) + ":" + info.Backing.Name
}

// IsLayered reports whether a header of the format can name a backing file.
func (f Format) IsLayered() bool {
	switch f {
	case Qcow, Qcow2, QED, VMDK:
		return true
	case Raw, ISO, VDI, VPC, VHDX, LUKS:
	}
	return false
}

// RecordBacking records the backing file of an image before QEMU can write to it. A file system without
// extended attributes gets no record. A raw image gets one too: its guest can write a header, and another
// user of the file may read it as that format.
func (l *Layer) RecordBacking() error {
	if !l.Format.IsLayered() {
		return RecordBeforeWrite(l.File)
	}
	return withDescriptor(l.File, func() error {
		defer lockFile(l.id)()
		keepRecord(l.id)
		return writeRecord(l.File, l.backingText())
	})
}

// withDescriptor keeps the file's descriptor number valid while do uses it: a caller that gave up waiting
// for a hanging file system closes the file, and the number could then belong to another.
func withDescriptor(f *os.File, do func() error) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var done error
	err = raw.Control(func(uintptr) { done = do() })
	return errors.Join(err, done)
}

// RecordBeforeWrite records the backing file that a file's header names, before a client writes raw bytes to it. A different
// header written later is refused. An existing record stays.
func RecordBeforeWrite(f *os.File) error {
	return withDescriptor(f, func() error { return recordBeforeWrite(f) })
}

func recordBeforeWrite(f *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG && st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return err // it is no image
	}
	file := [2]uint64{st.Dev, st.Ino}
	defer lockFile(file)()
	keepRecord(file)
	if _, _, noted := readRecord(f); noted {
		return nil
	}
	return writeRecord(f, backingTexts(possibleHeaders(f)))
}

// fileLocks lets one caller at a time write or remove the record of a file. A writer opens the file before
// it makes the record. So a caller that removes records either sees the writer, or is done before it.
var fileLocks = struct {
	sync.Mutex
	of    map[[2]uint64]chan struct{}
	tools map[[2]uint64]*toolRuns // of the tool's current runs; a toolRuns is changed under its file's lock
}{of: map[[2]uint64]chan struct{}{}, tools: map[[2]uint64]*toolRuns{}}

// lockFile waits for others that work on the record of a file, and returns the unlock function. On a file
// system that hangs, only callers with files on it wait.
func lockFile(file [2]uint64) (end func()) {
	for {
		fileLocks.Lock()
		others := fileLocks.of[file]
		if others == nil {
			break
		}
		fileLocks.Unlock()
		<-others
	}
	mine := make(chan struct{})
	fileLocks.of[file] = mine
	fileLocks.Unlock()
	return func() {
		fileLocks.Lock()
		delete(fileLocks.of, file)
		fileLocks.Unlock()
		close(mine)
	}
}

// lockOpenFile is lockFile for an open file.
func lockOpenFile(f *os.File) (file [2]uint64, end func(), err error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return file, nil, err
	}
	file = [2]uint64{st.Dev, st.Ino}
	return file, lockFile(file), nil
}

func toolRunsOn(file [2]uint64) *toolRuns {
	fileLocks.Lock()
	defer fileLocks.Unlock()
	return fileLocks.tools[file]
}

func setToolRuns(file [2]uint64, r *toolRuns) {
	fileLocks.Lock()
	defer fileLocks.Unlock()
	if fileLocks.tools[file] = r; r == nil {
		delete(fileLocks.tools, file)
	}
}

// keepRecord makes the record of a file stay when the current run of qemu-img ends. The caller holds the
// file's lock.
func keepRecord(file [2]uint64) {
	if r := toolRunsOn(file); r != nil {
		r.removeAtEnd = false
	}
}

// dropRecord removes the record of a file, or leaves that to the current run of qemu-img. The caller holds
// the file's lock.
func dropRecord(f *os.File, file [2]uint64, mark string) error {
	if r := toolRunsOn(file); r != nil {
		r.removeAtEnd = true
		return nil
	}
	return unix.Fremovexattr(int(f.Fd()), mark)
}

// possibleHeaders reads the file as every format that can have a backing file.
func possibleHeaders(f *os.File) (all []Info) {
	for _, format := range Formats() {
		if !format.IsLayered() {
			continue
		}
		if info, err := Inspect(f, format); err == nil && info.Backing != nil {
			all = append(all, info)
		}
	}
	return all
}

func backingTexts(said []Info) string {
	if len(said) == 0 {
		return new(Info).backingText()
	}
	return said[0].backingText()
}

func writeRecord(f *os.File, below string) error {
	var err error
	for _, mark := range recordAttributes {
		err = unix.Fsetxattr(int(f.Fd()), mark, []byte(below), 0)
		if !isUnsupported(err) {
			break
		}
	}
	if err == nil || isUnsupported(err) || errors.Is(err, unix.EROFS) { // no program can write to a read-only file system either
		return nil
	}
	return fault.Wrap(err, fault.Failed, fault.Volume, "cannot note what lies below %s", f.Name())
}

// isUnsupported reports whether the file system has no such attributes, or does not let this process
// change them.
func isUnsupported(err error) bool {
	return errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENOSYS)
}

// unreadableRecord stands for a record that cannot be read. No header matches it.
const unreadableRecord = "?"

// readRecord returns the record of an image. noted is false if there is none: no QEMU has had the image since
// the last check. A record that cannot be read, for example because it is too long, matches no header.
func readRecord(f *os.File) (mark, below string, noted bool) {
	text := make([]byte, maxRecord)
	for _, mark := range recordAttributes {
		n, err := unix.Fgetxattr(int(f.Fd()), mark, text)
		switch {
		case err == nil:
			return mark, string(text[:n]), true
		case !errors.Is(err, unix.ENODATA) && !isUnsupported(err):
			return mark, unreadableRecord, true
		}
	}
	return "", "", false
}

// checkRecord refuses a backing file that the header did not name when QEMU got the image. A header
// without a backing file is harmless.
func (l *Layer) checkRecord() error {
	if l.Backing == nil {
		return nil
	}
	mark, below, noted := readRecord(l.File)
	if !noted || recordMatches(below, l.backingText()) {
		return nil
	}
	return fault.New(fault.Denied, fault.Volume, "a guest or a restricted client has changed the header of %s: it names the backing file %q (format %q), and named %q before; "+
		"restore it (qemu-img rebase -u), or accept the change with: setfattr -x %s %s", l.Path, l.Backing.Name, l.Backing.Format, below, mark, fault.Word(l.Path))
}

// CheckRecord refuses an image whose header names another backing file than when QEMU got it. It is for
// callers that do not open the chain.
func CheckRecord(f *os.File, declared Format) error {
	l := Layer{Path: f.Name(), File: f}
	info, err := Inspect(f, declared)
	if l.Info = info; err != nil {
		return err
	}
	return l.checkRecord()
}

// CheckNotWritten refuses a file to which a guest or a restricted client has written raw bytes. It is for
// callers that trust more than the header.
func CheckNotWritten(f *os.File) error {
	mark, _, noted := readRecord(f)
	if !noted {
		return nil
	}
	return fault.New(fault.Denied, fault.Volume, "a guest or a restricted client has written to %s; if its content is right, accept it with: setfattr -x %s %s", f.Name(), mark, fault.Word(f.Name()))
}

// saveMagics are the first bytes of save images. A restore trusts the definition in the file, so its
// record is never removed.
var saveMagics = []string{"LibvirtQemud", "LodgeSave"}

func isSaveImage(f *os.File) bool {
	head, err := readUpTo(f, 0, len(saveMagics[0]))
	return err == nil && slices.ContainsFunc(saveMagics, func(magic string) bool { return bytes.HasPrefix(head, []byte(magic)) })
}

// CheckSameBacking checks that the header in a copy of an image names the same backing file: a process
// with the image open can change it during the check or the copy.
func (info *Info) CheckSameBacking(f *os.File) error {
	if !info.Format.IsLayered() {
		return nil
	}
	now, err := Inspect(f, info.Format)
	if err == nil && (now.backingText() != info.backingText() || now.ExternalData != info.ExternalData) {
		err = fault.New(fault.Busy, fault.Volume, "the header of %s has just been changed and now names the backing file %q; refresh its pool and try again", f.Name(), now.backingText())
	}
	return err
}

// isWritable reports whether any process has a file open to write, or sends it through a socket. A
// compromised QEMU can release its locks and pass its descriptors to another process, which can change the
// header long after QEMU has ended. For devices, and for file systems without leases, the answer is
// unknown.
func isWritable(f *os.File) bool {
	_, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
	if err == nil {
		_, _ = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK) // a process that opens it to write waits until here
	}
	return errors.Is(err, unix.EAGAIN)
}

// isDevice reports whether a file is a block device. The kernel does not report the processes that have a device
// open to write, so its record stays as long as its node.
func isDevice(f *os.File) bool {
	var st unix.Stat_t
	err := unix.Fstat(int(f.Fd()), &st)
	return err == nil && st.Mode&unix.S_IFMT == unix.S_IFBLK
}

// leaseRefusers are file systems that refuse a lease when the server has granted no delegation, which many
// never do. There a refusal does not mean that a process writes.
var leaseRefusers = []int64{unix.NFS_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC}

// CheckNoWriter refuses an image that another process has open to write, for a caller that will write to
// it alone. QEMU's locks do not tell: a compromised QEMU can hold them until another process checks, or
// release them for good.
func CheckNoWriter(f *os.File) error {
	written := false
	err := withDescriptor(f, func() error { written = isWritable(f) && !isOn(f, leaseRefusers); return nil })
	if err != nil || !written {
		return err
	}
	return fault.New(fault.Busy, fault.Volume, "a process has %s open to write: another guest, the daemon for an upload, a program of the host's, or the QEMU of a guest that was to let go of it and has not (one that is paused does when it runs), or has passed it on; "+
		"find it (fuser -v %s) and end it, or declare the disk <shareable/>", f.Name(), fault.Word(f.Name()))
}

// RemoveRecord removes the record of an image that no process can write any more, if its header is
// unchanged. If changed is true the record stays, and the image cannot be used.
func RemoveRecord(path string, declared Format) (changed bool, err error) {
	f, err := Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	file, end, err := lockOpenFile(f)
	if err != nil {
		return false, err
	}
	defer end()
	mark, below, noted := readRecord(f)
	if !noted || InUse(f) == Written || isWritable(f) {
		return false, nil
	}
	if !declared.IsLayered() { // raw data of the guest; it names no backing file
		if said := possibleHeaders(f); len(said) > 0 && !recordMatches(below, said[0].backingText()) || isSaveImage(f) {
			return false, nil
		}
		return false, dropRecord(f, file, mark)
	}
	info, err := Inspect(f, declared)
	if err != nil || !recordMatches(below, info.backingText()) {
		return true, err
	}
	if isDevice(f) {
		return false, nil
	}
	return false, dropRecord(f, file, mark)
}

// recordSeparator separates the two backing files that a header may name before and after a rebase.
const recordSeparator = "\x00"

// recordMatches reports whether a header agrees with the record.
func recordMatches(noted, below string) bool {
	return slices.Contains(strings.Split(noted, recordSeparator), below)
}

// RecordRebase records both the present and the future backing file of an image, so that an interruption
// leaves a valid record. An image without a record is left alone.
func RecordRebase(f *os.File, was, will Backing) error {
	file, end, err := lockOpenFile(f)
	if err != nil {
		return err
	}
	defer end()
	if _, _, noted := readRecord(f); !noted {
		return nil
	}
	keepRecord(file)
	before, after := Info{Backing: &was}, Info{Backing: &will}
	return writeRecord(f, before.backingText()+recordSeparator+after.backingText())
}

// FinishRebase records the new backing file of an image that QEMU was told to rebase. It refuses a header
// that names another one.
func FinishRebase(f *os.File, declared Format, below Backing) error {
	file, end, err := lockOpenFile(f)
	if err != nil {
		return err
	}
	defer end()
	info, err := Inspect(f, declared)
	if err != nil {
		return err
	}
	told := Info{Backing: &below}
	if info.backingText() != told.backingText() {
		return fault.New(fault.Denied, fault.Volume, "the header of %s names the backing file %q, want %q", f.Name(), info.backingText(), told.backingText())
	}
	if _, _, noted := readRecord(f); !noted {
		return nil
	}
	keepRecord(file)
	return writeRecord(f, told.backingText())
}

// RemoveRecordOfCopy removes the record of a file that a client has written and that no process can write
// any more, if its header names only files that ctx permits. If ctx has no restriction the record stays:
// the bytes may come from a guest whose image was copied.
func RemoveRecordOfCopy(ctx context.Context, sc scope.Scope, f *os.File) error {
	file, end, err := lockOpenFile(f)
	if err != nil {
		return err
	}
	defer end()
	mark, _, noted := readRecord(f)
	if !noted || InUse(f) == Written || isWritable(f) {
		return nil
	}
	said := possibleHeaders(f)
	if len(said) > 0 && sc.Folders() == nil || isSaveImage(f) {
		return nil
	}
	for _, info := range said {
		name := strings.TrimPrefix(info.Backing.Name, "file:")
		if !filepath.IsAbs(name) && !filepath.IsLocal(name) { // a user who can move the image could make it name another file
			return nil
		}
		path, err := Locate(f.Name(), name)
		if err != nil {
			return err
		}
		chain, err := OpenChain(ctx, sc, path, info.Backing.Format)
		chain.Close()
		if err != nil {
			return err
		}
	}
	return dropRecord(f, file, mark)
}
