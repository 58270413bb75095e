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

// A QEMU that its guest has taken over may write into the header of an image that it has open
// any name of a layer below, and the daemon would open that file for it at the guest's next start.
// So what the header says is noted with the file while a QEMU has it to write, where no QEMU can
// change it and no daemon has to live on: a header that says something else then leads nowhere.
// Who changes a header while no QEMU has the image, by qemu-img, is believed.

// lentMarks are the attributes in which that is noted: the first that the file system has.
// Those of the first kind only root sees.
var lentMarks = []string{"trusted.lodge.backing", "user.lodge.backing"}

// maxMark bounds what is noted: a format and a name of a header's.
const maxMark = 2 << 10

// below is what a header says of the layer below.
func (info *Info) below() string {
	if info.Backing == nil {
		return "-"
	}
	return string(info.Backing.Format) + ":" + info.Backing.Name
}

// IsLayered says whether a header of the format can name a layer below.
func (f Format) IsLayered() bool {
	switch f {
	case Qcow, Qcow2, QED, VMDK:
		return true
	case Raw, ISO, VDI, VPC, VHDX, LUKS:
	}
	return false
}

// Lend notes what lies below an image, before a QEMU has it to write. A file system that keeps
// no attributes is let be. What a guest writes into an image without a header may become one,
// to whom the file is another sort of image.
func (l *Layer) Lend() error {
	if !l.Format.IsLayered() {
		return Distrust(l.File)
	}
	return holding(l.File, func() error {
		defer inTurn(l.id)()
		outlive(l.id)
		return note(l.File, l.below())
	})
}

// holding has a file's number stay its own while do uses that: who waited for a file system that hangs
// gives up and closes the file, and the number would be that of any other by then.
func holding(f *os.File, do func() error) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var done error
	err = raw.Control(func(uintptr) { done = do() })
	return errors.Join(err, done)
}

// Distrust notes of a file that somebody is about to write, byte by byte, what its header says now:
// what it says after that leads nowhere. What is noted stays.
func Distrust(f *os.File) error { return holding(f, func() error { return distrust(f) }) }

func distrust(f *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG && st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return err // it is no image
	}
	file := [2]uint64{st.Dev, st.Ino}
	defer inTurn(file)()
	outlive(file)
	if _, _, noted := lentAs(f); noted {
		return nil
	}
	return note(f, below(headers(f)))
}

// turns has one at a time note something of a file, or forget it. Whoever is to write opens the
// file before he notes that, and so is seen by who forgets, or comes after him.
var turns = struct {
	sync.Mutex
	of    map[[2]uint64]chan struct{}
	tools map[[2]uint64]*runs // of the tool, now; what one points to is changed in turn
}{of: map[[2]uint64]chan struct{}{}, tools: map[[2]uint64]*runs{}}

// inTurn waits for others that are at the file, and gives what ends the turn. A file system that
// hangs holds who waits for a file of its own.
func inTurn(file [2]uint64) (end func()) {
	for {
		turns.Lock()
		others := turns.of[file]
		if others == nil {
			break
		}
		turns.Unlock()
		<-others
	}
	mine := make(chan struct{})
	turns.of[file] = mine
	turns.Unlock()
	return func() {
		turns.Lock()
		delete(turns.of, file)
		turns.Unlock()
		close(mine)
	}
}

// turnOf is inTurn of an open file.
func turnOf(f *os.File) (file [2]uint64, end func(), err error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return file, nil, err
	}
	file = [2]uint64{st.Dev, st.Ino}
	return file, inTurn(file), nil
}

func runsOn(file [2]uint64) *runs {
	turns.Lock()
	defer turns.Unlock()
	return turns.tools[file]
}

func setRuns(file [2]uint64, r *runs) {
	turns.Lock()
	defer turns.Unlock()
	if turns.tools[file] = r; r == nil {
		delete(turns.tools, file)
	}
}

// outlive has what is noted of a file stay when the tool has ended that has it now. It runs in turn.
func outlive(file [2]uint64) {
	if r := runsOn(file); r != nil {
		r.alone = false
	}
}

// forget removes what is noted of a file, or leaves that to the tool that has it now. It runs in turn.
func forget(f *os.File, file [2]uint64, mark string) error {
	if r := runsOn(file); r != nil {
		r.alone = true
		return nil
	}
	return unix.Fremovexattr(int(f.Fd()), mark)
}

// headers are what the bytes of a file say, to whom it is of a format that has layers below.
func headers(f *os.File) (all []Info) {
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

func below(said []Info) string {
	if len(said) == 0 {
		return new(Info).below()
	}
	return said[0].below()
}

func note(f *os.File, below string) error {
	var err error
	for _, mark := range lentMarks {
		err = unix.Fsetxattr(int(f.Fd()), mark, []byte(below), 0)
		if !isUnsupported(err) {
			break
		}
	}
	if err == nil || isUnsupported(err) || errors.Is(err, unix.EROFS) { // nor does anybody write there
		return nil
	}
	return fault.Wrap(err, fault.Failed, fault.Volume, "cannot note what lies below %s", f.Name())
}

// isUnsupported says that a file system has no such attributes, or not for this process: some
// decide by themselves who may change those.
func isUnsupported(err error) bool {
	return errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENOSYS)
}

// unread stands for a note that cannot be read: no header says so.
const unread = "?"

// lentAs is what was noted of an image; not noted: no QEMU has had it since it was last looked at. A note that
// cannot be read, as one that is too long, is one that no header agrees with.
func lentAs(f *os.File) (mark, below string, noted bool) {
	text := make([]byte, maxMark)
	for _, mark := range lentMarks {
		n, err := unix.Fgetxattr(int(f.Fd()), mark, text)
		switch {
		case err == nil:
			return mark, string(text[:n]), true
		case !errors.Is(err, unix.ENODATA) && !isUnsupported(err):
			return mark, unread, true
		}
	}
	return "", "", false
}

// checkLent refuses a layer below that the header did not name when a QEMU was given the image.
// None at all is no harm.
func (l *Layer) checkLent() error {
	if l.Backing == nil {
		return nil
	}
	mark, below, noted := lentAs(l.File)
	if !noted || agrees(below, l.below()) {
		return nil
	}
	return fault.New(fault.Denied, fault.Volume, "the header of %s was changed while a guest, or a client that rules hold, had it to write: it names %q (format %q) as the layer below, and had %q before; "+
		"put that back (qemu-img rebase -u), or if it is right say so with: setfattr -x %s %s", l.Path, l.Backing.Name, l.Backing.Format, below, mark, fault.Word(l.Path))
}

// CheckLent refuses an image whose header names another layer than when a QEMU was given it, for who
// looks at nothing below it.
func CheckLent(f *os.File, declared Format) error {
	l := Layer{Path: f.Name(), File: f}
	info, err := Inspect(f, declared)
	if l.Info = info; err != nil {
		return err
	}
	return l.checkLent()
}

// CheckOwn refuses a file in which a guest, or a client that rules hold, has written byte by byte, for who
// believes more of it than a header.
func CheckOwn(f *os.File) error {
	mark, _, noted := lentAs(f)
	if !noted {
		return nil
	}
	return fault.New(fault.Denied, fault.Volume, "a guest, or a client that rules hold, has written to %s; if what is in it is right say so with: setfattr -x %s %s", f.Name(), mark, fault.Word(f.Name()))
}

// saved are what a file begins with in which a guest was saved. Whoever restores that believes its
// definition: what is noted of it is never forgotten.
var saved = []string{"LibvirtQemud", "LodgeSave"}

func isSaved(f *os.File) bool {
	head, err := window(f, 0, len(saved[0]))
	return err == nil && slices.ContainsFunc(saved, func(magic string) bool { return bytes.HasPrefix(head, []byte(magic)) })
}

// LikeIn checks that the header in a copy of an image leads where this one does: who has the image
// open to write may change it while it is looked at, or copied.
func (info *Info) LikeIn(f *os.File) error {
	if !info.Format.IsLayered() {
		return nil
	}
	now, err := Inspect(f, info.Format)
	if err == nil && (now.below() != info.below() || now.External != info.External) {
		err = fault.New(fault.Busy, fault.Volume, "somebody has just changed the header of %s, which names %q as the layer below now; look at that again (refresh its pool)", f.Name(), now.below())
	}
	return err
}

// isWritable says whether any process has a file open to write, itself or on its way through a
// socket. A QEMU that was taken over takes its locks back, and passes what it has open to whoever
// is connected to a socket of its: that one may change the header long after QEMU has ended.
// Of devices, and where a file system has no leases, nobody can tell.
func isWritable(f *os.File) bool {
	_, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
	if err == nil {
		_, _ = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK) // who opens it to write waits until then
	}
	return errors.Is(err, unix.EAGAIN)
}

// isDevice says whether a file is a block device, of which nobody can tell who has it to write: what was
// noted of its header stays as long as its node.
func isDevice(f *os.File) bool {
	var st unix.Stat_t
	err := unix.Fstat(int(f.Fd()), &st)
	return err == nil && st.Mode&unix.S_IFMT == unix.S_IFBLK
}

// promised are the file systems that refuse a lease of whatever their server has promised them nothing of, which many
// never do: there a refusal tells of nobody who writes.
var promised = []int64{unix.NFS_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC}

// CheckAlone refuses an image that a process has open to write, for who is about to write it alone. QEMU's locks tell nothing of
// who keeps it: a QEMU that was taken over holds them until it sees that another is about to look, or gives them up for good.
func CheckAlone(f *os.File) error {
	written := false
	err := holding(f, func() error { written = isWritable(f) && !isOn(f, promised); return nil })
	if err != nil || !written {
		return err
	}
	return fault.New(fault.Busy, fault.Volume, "a process has %s open to write: another guest, the daemon for an upload, a program of the host's, or the QEMU of a guest that was to let go of it and has not (one that is paused does when it runs), or has passed it on; "+
		"find it (fuser -v %s) and end it, or say <shareable/> where that is meant", f.Name(), fault.Word(f.Name()))
}

// TakeBack forgets what was noted of an image that nobody has to write any more, if its header
// is as it was. Changed says that it is not: then the note stays, and keeps the image from use.
func TakeBack(path string, declared Format) (changed bool, err error) {
	f, err := Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	file, end, err := turnOf(f)
	if err != nil {
		return false, err
	}
	defer end()
	mark, below, noted := lentAs(f)
	if !noted || InUse(f) == Written || isWritable(f) {
		return false, nil
	}
	if !declared.IsLayered() { // its bytes are the guest's, and none is no harm
		if said := headers(f); len(said) > 0 && !agrees(below, said[0].below()) || isSaved(f) {
			return false, nil
		}
		return false, forget(f, file, mark)
	}
	info, err := Inspect(f, declared)
	if err != nil || !agrees(below, info.below()) {
		return true, err
	}
	if isDevice(f) {
		return false, nil
	}
	return false, forget(f, file, mark)
}

// either stands between what a header may say before and after it is changed.
const either = "\x00"

// agrees reports whether a header says what was noted of it.
func agrees(noted, below string) bool { return slices.Contains(strings.Split(noted, either), below) }

// Rebasing notes of an image that its header names one layer now and is about to name another: whoever is cut off
// between finds it to be right either way. An image of which nothing is noted is let be.
func Rebasing(f *os.File, was, will Backing) error {
	file, end, err := turnOf(f)
	if err != nil {
		return err
	}
	defer end()
	if _, _, noted := lentAs(f); !noted {
		return nil
	}
	outlive(file)
	before, after := Info{Backing: &was}, Info{Backing: &will}
	return note(f, before.below()+either+after.below())
}

// Rebased notes what lies below an image now that a QEMU which has it to write was told to put there. It refuses
// a header that says something else.
func Rebased(f *os.File, declared Format, below Backing) error {
	file, end, err := turnOf(f)
	if err != nil {
		return err
	}
	defer end()
	info, err := Inspect(f, declared)
	if err != nil {
		return err
	}
	told := Info{Backing: &below}
	if info.below() != told.below() {
		return fault.New(fault.Denied, fault.Volume, "the header of %s names %q as the layer below, and was to name %q", f.Name(), info.below(), told.below())
	}
	if _, _, noted := lentAs(f); !noted {
		return nil
	}
	outlive(file)
	return note(f, told.below())
}

// Believe forgets what was noted of a file that a client has written, and that nobody has to write
// any more, if its header leads to nothing but what ctx holds it to. Where ctx holds it to nothing the
// bytes are still those of whoever wrote what was copied, a guest perhaps.
func Believe(ctx context.Context, sc scope.Scope, f *os.File) error {
	file, end, err := turnOf(f)
	if err != nil {
		return err
	}
	defer end()
	mark, _, noted := lentAs(f)
	if !noted || InUse(f) == Written || isWritable(f) {
		return nil
	}
	said := headers(f)
	if len(said) > 0 && sc.Folders() == nil || isSaved(f) {
		return nil
	}
	for _, info := range said {
		name := strings.TrimPrefix(info.Backing.Name, "file:")
		if !filepath.IsAbs(name) && !filepath.IsLocal(name) { // whoever may move the image has it lead elsewhere
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
	return forget(f, file, mark)
}
