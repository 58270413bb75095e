package console

import (
	"context"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/decision/lifecycle"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// Screenshot takes a picture of a running guest's screen. mime names its format. The caller must close the
// reader; after that nothing is left of the picture.
func Screenshot(ctx context.Context, g *machine.Guest, sc scope.Scope, screen uint) (mime string, picture io.ReadCloser, err error) {
	// A caller that leaves early would keep the picture counted. So the wait does not end with its context;
	// machine.ModifyLimit bounds it.
	asked := ctx
	err = g.Perform(context.WithoutCancel(ctx), sc, lifecycle.Change, domain.JobQuery, machine.ModifyLimit, func() (machine.Work, error) {
		if asked.Err() != nil {
			return nil, context.Cause(asked)
		}
		r := g.Instance
		videos := r.Definition.Devices.Videos
		if len(videos) == 0 || videos[0].Model == "none" {
			return nil, fault.New(fault.WrongState, fault.Domain, "the domain has no video device to take a screenshot of")
		}
		if screen != 0 {
			return nil, fault.New(fault.Unsupported, fault.Call, "only screen 0 can be shown, not %d", screen)
		}
		return func(ctx context.Context, sc scope.Scope) (machine.Settle, error) {
			var err error
			picture, err = captureScreen(ctx, r)
			return nil, err
		}, nil
	})
	return "image/x-portable-pixmap", picture, err
}

// maxPicture bounds how many bytes of a picture are read. A screen of 8192 x 8192 pixels has 192 MiB.
const maxPicture = 256 << 20

// screenshot is QEMU's picture of a screen. The client reads it at its own pace, without QEMU.
type screenshot struct {
	*io.SectionReader
	memory *os.File
	of     *machine.OpenScreenshots
}

func (p screenshot) Close() error {
	releaseBytes(p.of, p.Size())
	return p.memory.Close()
}

// reserveBytes counts one more picture, unless all together are too large. A single picture always fits.
func reserveBytes(p *machine.OpenScreenshots, size int64) bool {
	if all := p.Bytes.Add(size); all > size && all > maxPicture {
		releaseBytes(p, size)
		return false
	}
	return true
}

func releaseBytes(p *machine.OpenScreenshots, size int64) { p.Bytes.Add(-size) }

// captureScreen lets QEMU write the picture into a memfd. QEMU's control group is charged for the memory. The
// memfd has no name and ends with the reader.
func captureScreen(ctx context.Context, r *machine.Instance) (_ io.ReadCloser, err error) {
	s, err := r.Monitor()
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("screen", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot make memory for the screenshot")
	}
	memory := os.NewFile(uintptr(fd), "screen")
	defer func() {
		if err != nil {
			_ = memory.Close()
		}
	}()
	back, err := r.Labels.LendImage(ctx, memory)
	if err != nil {
		return nil, err
	}
	defer back()
	if err := dumpScreen(ctx, s, fd); err != nil {
		return nil, err
	}
	// QEMU may have kept the descriptor: with the seals it cannot enlarge memory that the client keeps
	// open.
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_GROW|unix.F_SEAL_SHRINK); err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot bound the screenshot")
	}
	info, err := memory.Stat()
	if err == nil && info.Size() > maxPicture {
		err = fault.New(fault.Failed, fault.Domain, "QEMU wrote a picture of %d bytes, more than the limit of %d", info.Size(), maxPicture)
	}
	if err == nil && !reserveBytes(&r.Screenshots, info.Size()) {
		err = fault.New(fault.NoCapacity, fault.Domain, "open screenshots of domain %q exceed %d MiB; read or close them first", r.Name, maxPicture>>20)
	}
	if err != nil {
		return nil, err
	}
	return screenshot{io.NewSectionReader(memory, 0, info.Size()), memory, &r.Screenshots}, nil
}

// dumpScreen passes QEMU the memory to write to, as a descriptor set that exists only during the call.
func dumpScreen(ctx context.Context, s *qmp.Session, memory int) error {
	write, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", memory), os.O_WRONLY, 0) // QEMU looks for exactly this mode
	if err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot pass memory for the screenshot to QEMU")
	}
	defer write.Close()
	var set qemu.FDSet
	if err := s.ExecuteFD(ctx, write, "add-fd", nil, &set); err != nil {
		return err
	}
	err = s.Execute(ctx, "screendump", map[string]any{"filename": fmt.Sprintf("/dev/fdset/%d", set.ID)}, nil)
	if e := s.Execute(context.WithoutCancel(ctx), "remove-fd", map[string]any{"fdset-id": set.ID}, nil); err == nil {
		err = e
	}
	return err
}
