package volume

import (
	"context"
	"os"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// FillVolume makes a raw volume from bytes in memory.
func (p *Pool) FillVolume(ctx context.Context, sc scope.Scope, name string, content []byte) (*Volume, error) {
	if err := sc.Check(); err != nil {
		return nil, err
	}
	if err := checkName(fault.Volume, name); err != nil {
		return nil, err
	}
	size := uint64(len(content))
	w := &volumeRequest{name: name, capacity: &size, format: image.Raw, perms: noPermissions}
	return p.createVolume(ctx, sc, w, func() {}, func(ctx context.Context, _ *job) (*draft, error) {
		d := &draft{plan: image.Plan{Format: image.Raw, Virtual: size}, space: size, copies: true}
		if p.blockBackend() != nil {
			var err error
			if d, err = draftBlockVolume(w, CreateOptions{}); err != nil {
				return nil, err
			}
		}
		d.fill = func(_ context.Context, f *os.File) error {
			_, err := f.WriteAt(content, 0)
			return fault.Wrap(err, fault.Failed, fault.Volume, "cannot write volume %q", name)
		}
		return d, nil
	})
}
