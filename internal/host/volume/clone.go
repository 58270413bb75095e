package volume

import (
	"context"
	"os"
	"path/filepath"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// CloneVolume makes a volume from a document, with the data of a volume of this or another pool.
func (p *Pool) CloneVolume(ctx context.Context, sc scope.Scope, doc string, from *Pool, source string, o CreateOptions) (*Volume, error) {
	if err := sc.Check(); err != nil {
		return nil, err
	}
	w, err := parseVolume(doc, o.Validate)
	if err != nil {
		return nil, err
	}
	origin, err := from.Volume(source)
	if err != nil {
		return nil, err
	}
	if origin.Kind == Directory {
		return nil, fault.New(fault.Unsupported, fault.Volume, "volume %q is a directory and cannot be cloned", source)
	}
	if _, err := from.beginJob(sc, source, "copying", false); err != nil {
		return nil, err
	}
	return p.createVolume(ctx, sc, w, func() { from.endJob(source, sc.Client()) }, func(ctx context.Context, j *job) (*draft, error) {
		if w.capacity == nil || *w.capacity < origin.Virtual {
			w.capacity = &origin.Virtual
		}
		if p.blockBackend() != nil {
			return p.draftBlockCopy(sc, w, from, origin, o, j)
		}
		if w.isSatisfiedBy(origin) {
			return p.draftCopy(sc, w, from, origin, o, j), nil
		}
		return p.draftConversion(ctx, sc, w, from, origin, o, j)
	})
}

// isSatisfiedBy says whether a copy of the origin's bytes satisfies the document.
func (w *volumeRequest) isSatisfiedBy(origin *Volume) bool {
	isRaw := func(f image.Format) bool { return f == image.Raw || f == image.ISO }
	switch {
	case origin.Problem != "" || origin.ExternalData:
		return false
	case origin.needsPassphrase() || w.encryption != nil: // a copy has its own keys
		return false
	case w.format != origin.Format && (!isRaw(w.format) || !isRaw(origin.Format)):
		return false
	case w.compat != "" && w.compat != origin.Compat, w.clusterSize != 0 && w.clusterSize != origin.ClusterSize:
		return false
	case w.lazy && !origin.LazyRefcounts, w.extended && !origin.ExtendedL2:
		return false
	case w.backing == nil || origin.Backing == nil:
		return w.backing == nil && origin.Backing == nil
	}
	return w.backing.Name == origin.backingPath && filepath.IsAbs(origin.Backing.Name) &&
		(w.backing.Format == "" || w.backing.Format == origin.Backing.Format)
}

// draftCopy drafts a byte-for-byte copy, which keeps format, options and backing store. The copy belongs to
// root, so it may only refer to files that the client may open and that existed when the copy was requested.
func (p *Pool) draftCopy(sc scope.Scope, w *volumeRequest, from *Pool, origin *Volume, o CreateOptions, j *job) *draft {
	d := &draft{plan: image.Plan{Format: w.format, Virtual: *w.capacity, NoCOW: w.noCOW}, space: origin.Allocated, copies: true}
	isRaw := w.format == image.Raw || w.format == image.ISO
	if isRaw {
		d.allocate(w.allocation, false)
	}
	if o.Reflink {
		d.space = 0
	}
	d.fill = func(ctx context.Context, f *os.File) error {
		chain, err := p.pools.openBacking(ctx, sc, origin)
		if err != nil {
			return err
		}
		defer chain.Close()
		source, err := from.openUnwritten(ctx, sc, origin)
		if err != nil {
			return err
		}
		defer source.Close()
		if err := image.CheckRecord(source, origin.Format); err != nil {
			return err
		}
		if isRaw && !o.Reflink {
			if err := p.pools.images.Make(ctx, f, d.plan); err != nil {
				return err
			}
		}
		if o.Reflink {
			err = image.Reflink(source, f)
		} else {
			err = image.CopyBytes(ctx, source, f, j.progress)
		}
		if err == nil {
			err = origin.CheckSameBacking(f)
		}
		if err != nil || *w.capacity == origin.Virtual {
			return err
		}
		return p.pools.images.Resize(ctx, f, w.format, image.Growth{Size: *w.capacity, Below: chain})
	}
	return d
}

// draftConversion drafts a copy of the data that a guest would read, with all layers of the origin merged.
func (p *Pool) draftConversion(ctx context.Context, sc scope.Scope, w *volumeRequest, from *Pool, origin *Volume, o CreateOptions, j *job) (*draft, error) {
	switch {
	case o.Reflink:
		return nil, fault.New(fault.Unsupported, fault.Volume, "a copy in another format or without its backing store cannot share blocks; copy without reflink")
	case w.backing != nil:
		return nil, fault.New(fault.Unsupported, fault.Config, "not supported: backingStore of a copy whose format, options or backing store are not those of its source; omit it to get a full copy")
	}
	if origin.needsPassphrase() && w.encryption == nil {
		return nil, fault.New(fault.Invalid, fault.Volume, "volume %q is encrypted and the copy would not be; name in <encryption> the secret for the copy", origin.Name)
	}
	d, err := p.draftVolume(ctx, sc, w, o)
	if err != nil {
		return nil, err
	}
	d.copies = true
	d.fill = func(ctx context.Context, f *os.File) error {
		source, err := from.openUnwritten(ctx, sc, origin)
		if err != nil {
			return err
		}
		_ = source.Close() // opened to read
		chain, err := image.OpenChain(ctx, sc, origin.Path, origin.Format)
		if err != nil {
			return err
		}
		defer chain.Close()
		if err := p.pools.checkBacking(origin, chain); err != nil {
			return err
		}
		c := image.Copy{From: chain, Into: f, Format: w.format, Progress: j.progress}
		if c.FromKey, err = from.passphrase(sc, origin); err != nil {
			return err
		}
		defer clear(c.FromKey)
		if err := p.makeImage(ctx, f, d.plan, w.encryption); err != nil {
			return err
		}
		if c.IntoKey, err = p.pools.secretValue(w.encryption); err != nil {
			return err
		}
		defer clear(c.IntoKey)
		return p.pools.images.Convert(ctx, c)
	}
	return d, nil
}

// checkBacking refuses an undeclared backing file unless it is a volume too. A guest may have written the header,
// so a copy could otherwise expose any file of the host.
func (ps *Pools) checkBacking(v *Volume, chain image.Chain) error {
	if v.claimedBacking == "" {
		return nil
	}
	for _, l := range chain[1:] {
		if _, _, err := ps.ByPath(l.Path); err != nil {
			return fault.New(fault.Denied, fault.Volume, "volume %q looks like %s above %q, which lies in no running pool and which a guest could have written there; "+
				"if it is right, start a pool with the folder of that file", v.Name, v.Format, l.Path)
		}
	}
	return nil
}

// openUnwritten opens a volume for reading, unless a guest writes to it: the copy would mix different moments.
func (p *Pool) openUnwritten(ctx context.Context, sc scope.Scope, v *Volume) (*os.File, error) {
	return runWithin(ctx, p.worker, answerTime, func() (*os.File, error) {
		f, err := p.openToRead(sc, v)
		if err != nil {
			return nil, err
		}
		if image.InUse(f) == image.Written {
			_ = f.Close() // opened to read
			return nil, fault.New(fault.Busy, fault.Volume, "a guest has %q open to write; stop the guest first", v.Name)
		}
		return f, nil
	}, func(f *os.File) { _ = f.Close() })
}
