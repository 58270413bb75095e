package guest

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/decision/lifecycle"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// Screenshot takes a picture of a screen of a running guest, in a format that
// mime names. The reader is the caller's to close; nothing else is left of the
// picture.
func (g *Guest) Screenshot(ctx context.Context, sc scope.Scope, screen uint) (mime string, picture io.ReadCloser, err error) {
	// Whose caller went meanwhile would have it counted for ever: the wait is bounded in any case.
	asked := ctx
	err = g.perform(context.WithoutCancel(ctx), sc, lifecycle.Change, domain.JobQuery, modifyLimit, func() (work, error) {
		if asked.Err() != nil {
			return nil, context.Cause(asked)
		}
		r := g.run
		videos := r.def.Devices.Videos
		if len(videos) == 0 || videos[0].Model == "none" {
			return nil, fault.New(fault.WrongState, fault.Domain, "the domain has no video device to take a screenshot of")
		}
		if screen != 0 {
			return nil, fault.New(fault.Unsupported, fault.Call, "only screen 0 can be shown, not %d", screen)
		}
		return func(ctx context.Context, sc scope.Scope) (settle, error) {
			var err error
			picture, err = takePicture(ctx, r)
			return nil, err
		}, nil
	})
	return "image/x-portable-pixmap", picture, err
}

// maxPicture bounds what is read of a picture, in bytes: a screen of 8192 to 8192 points
// has 192 MiB.
const maxPicture = 256 << 20

// picture is what QEMU wrote of a screen. It is read at the client's pace, with which
// QEMU has nothing to do.
type picture struct {
	*io.SectionReader
	memory *os.File
	of     *pictures
}

func (p picture) Close() error {
	p.of.give(p.Size())
	return p.memory.Close()
}

// pictures are the bytes of those of a guest that are not read yet.
type pictures struct{ bytes atomic.Int64 }

// take counts one more, if they are not too large together. One alone always fits.
func (p *pictures) take(size int64) bool {
	if all := p.bytes.Add(size); all > size && all > maxPicture {
		p.give(size)
		return false
	}
	return true
}

func (p *pictures) give(size int64) { p.bytes.Add(-size) }

// takePicture has QEMU write the picture into memory that it is handed. That is of QEMU's
// own account, as any that it takes, and has no name: it goes with the reader.
func takePicture(ctx context.Context, r *run) (_ io.ReadCloser, err error) {
	s, err := r.monitor()
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("screen", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot make room for the screenshot")
	}
	memory := os.NewFile(uintptr(fd), "screen")
	defer func() {
		if err != nil {
			_ = memory.Close()
		}
	}()
	back, err := r.labels.lendImage(ctx, memory)
	if err != nil {
		return nil, err
	}
	defer back()
	if err := dumpScreen(ctx, s, fd); err != nil {
		return nil, err
	}
	// QEMU may have kept it: nothing is added to what the client keeps from going.
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_GROW|unix.F_SEAL_SHRINK); err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot bound the screenshot")
	}
	info, err := memory.Stat()
	if err == nil && info.Size() > maxPicture {
		err = fault.New(fault.Failed, fault.Domain, "QEMU wrote a picture of %d bytes, and at most %d are taken", info.Size(), maxPicture)
	}
	if err == nil && !r.pictures.take(info.Size()) {
		err = fault.New(fault.NoCapacity, fault.Domain, "pictures of domain %q of more than %d MiB are not read yet; read those, or end them", r.Name, maxPicture>>20)
	}
	if err != nil {
		return nil, err
	}
	return picture{io.NewSectionReader(memory, 0, info.Size()), memory, &r.pictures}, nil
}

// dumpScreen hands QEMU the memory to write to, as a set of files of one, which it has
// only for that long.
func dumpScreen(ctx context.Context, s *qmp.Session, memory int) error {
	write, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", memory), os.O_WRONLY, 0) // QEMU looks for one of just that mode
	if err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot hand over room for the screenshot")
	}
	defer write.Close()
	var set qemu.FileSet
	if err := s.ExecuteFD(ctx, write, "add-fd", nil, &set); err != nil {
		return err
	}
	err = s.Execute(ctx, "screendump", map[string]any{"filename": fmt.Sprintf("/dev/fdset/%d", set.ID)}, nil)
	if e := s.Execute(context.WithoutCancel(ctx), "remove-fd", map[string]any{"fdset-id": set.ID}, nil); err == nil {
		err = e
	}
	return err
}
