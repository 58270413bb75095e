package guest

import (
	"context"
	"errors"
	"io"
	"os"

	"github.com/lodge-kvm/lodge/domain"
	"github.com/lodge-kvm/lodge/fault"
	"github.com/lodge-kvm/lodge/lifecycle"
)

// Screenshot takes a picture of a screen of a running guest, in a format that
// mime names. The reader is the caller's to close; nothing else is left of the
// picture.
func (g *Guest) Screenshot(ctx context.Context, screen uint) (mime string, picture io.ReadCloser, err error) {
	err = g.perform(ctx, lifecycle.Change, domain.JobQuery, modifyLimit, func() (work, error) {
		r := g.run
		videos := r.def.Devices.Videos
		if len(videos) == 0 || videos[0].Model == "none" {
			return nil, fault.New(fault.WrongState, fault.Domain, "the domain has no video device to take a screenshot of")
		}
		if screen != 0 {
			return nil, fault.New(fault.Unsupported, fault.Call, "only screen 0 can be shown, not %d", screen)
		}
		return func(ctx context.Context) (settle, error) {
			var err error
			picture, err = takePicture(ctx, r)
			return nil, err
		}, nil
	})
	return "image/x-portable-pixmap", picture, err
}

// takePicture has QEMU write the picture into the guest's own directory, and
// opens and unlinks it.
func takePicture(ctx context.Context, r *run) (_ io.ReadCloser, err error) {
	s, err := r.monitor()
	if err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(r.ownPath(), "screen-")
	if err == nil && r.User != nil {
		err = f.Chown(int(r.User.UID), int(r.User.GID))
	}
	if err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot make a file for the screenshot")
	}
	defer func() {
		err = errors.Join(err, os.Remove(f.Name()))
		if err != nil {
			_ = f.Close()
		}
	}()
	return f, s.Execute(ctx, "screendump", map[string]any{"filename": f.Name()}, nil)
}
