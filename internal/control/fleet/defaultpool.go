package fleet

import (
	"context"
	"errors"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/host/volume"
	"github.com/lodge-kvm/lodge/internal/word/scope"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// DefaultPool is the pool of images whose template names none.
const DefaultPool = "default"

// MakePool makes and starts the pool "default", as virt-install does, if the template has volumes in it and it
// does not exist. No daemon makes it in advance, because a user's own pool-define of that name would then
// fail. It returns the pool's folder, or "" if there was nothing to do.
func (f *Fleet) MakePool(ctx context.Context, sc scope.Scope, t *TileTemplate) (folder string, err error) {
	if f.images == "" || !t.usesPool(DefaultPool) {
		return "", nil
	}
	select { // a second caller finds the pool started
	case f.poolTurn <- struct{}{}:
		defer func() { <-f.poolTurn }()
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	if !f.lacksPool(DefaultPool) {
		return "", nil
	}
	return f.images, fault.Wrap(f.makePool(ctx, sc), fault.Failed, fault.Pool, "cannot make pool %q, which the template names", DefaultPool)
}

func (f *Fleet) makePool(ctx context.Context, sc scope.Scope) error {
	path := &xmltree.Element{Name: "path", Children: []xmltree.Node{xmltree.Text(f.images)}}
	doc, err := xmltree.Format(&xmltree.Element{Name: "pool", Attrs: []xmltree.Attr{{Name: "type", Value: string(volume.Dir)}}, Children: []xmltree.Node{
		&xmltree.Element{Name: "name", Children: []xmltree.Node{xmltree.Text(DefaultPool)}},
		&xmltree.Element{Name: "target", Children: []xmltree.Node{path}},
	}})
	if err != nil {
		return err
	}
	p, err := f.pools.Define(ctx, sc, doc, false)
	if err != nil {
		return err
	}
	if err = p.Start(ctx, sc, volume.MakeTarget); err == nil {
		err = p.SetAutostart(ctx, sc, true)
	}
	if err == nil {
		return nil
	}
	undo := context.WithoutCancel(ctx)
	return errors.Join(err, ignoreKind(p.Stop(undo, sc), fault.WrongState), p.Undefine(undo, sc))
}

// lacksPool says whether a pool is missing that MakePool would make.
func (f *Fleet) lacksPool(name string) bool {
	_, err := f.pools.ByName(name)
	return f.images != "" && name == DefaultPool && fault.Is(err, fault.NotFound)
}

// usesPool says whether the template has a volume in a pool.
func (t *TileTemplate) usesPool(name string) bool {
	for _, v := range t.volumes {
		if v.Attr("pool") == name {
			return true
		}
	}
	return false
}
