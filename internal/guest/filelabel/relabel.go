package filelabel

import (
	"context"
	"os"
	"slices"

	"github.com/lodge-kvm/lodge/internal/mechanism/fsguard"
	"github.com/lodge-kvm/lodge/internal/mechanism/seclabel"
)

// While a guest runs, an image that QEMU reads may become one that it writes, and the reverse.

// LendToWrite lets the guest write to an image that it may read already.
func (l *Labels) LendToWrite(ctx context.Context, number uint, f *os.File) error {
	if l == nil {
		return nil
	}
	if err := l.useAs(ctx, f, l.Image); err != nil {
		return err
	}
	return l.permit(ctx, toWrite(number), f)
}

// TakeBackToRead takes back the permission that LendToWrite gave.
func (l *Labels) TakeBackToRead(ctx context.Context, number uint, f *os.File) error {
	if l == nil {
		return nil
	}
	if err := l.useAs(ctx, f, l.Content); err != nil {
		return err
	}
	return l.GiveBack(ctx, toWrite(number))
}

// KeepWritable makes the permission that LendToWrite gave last as long as the guest has the image.
func (l *Labels) KeepWritable(ctx context.Context, number uint, f *os.File) error {
	if l == nil {
		return nil
	}
	if err := l.permit(ctx, ImageOwner(number), f); err != nil {
		return err
	}
	return l.GiveBack(ctx, toWrite(number))
}

// toWrite names the write access to an image, as an owner of labels and rules.
func toWrite(number uint) string { return ImageOwner(number) + " to write" }

// permit adds rules for an open file to the guest's profile.
func (l *Labels) permit(ctx context.Context, by string, f *os.File) error {
	return l.inTurn(ctx, func() error {
		if l.Profile == nil || l.Host == nil {
			return nil
		}
		l.allow(by, nil, []*os.File{f})
		return l.load(ctx)
	})
}

// useAs changes the label of one of the guest's files for another use. It fails with Busy if another guest
// uses the file.
func (l *Labels) useAs(ctx context.Context, f *os.File, to string) error {
	if l.Model != seclabel.SELinux || to == "" {
		return nil
	}
	return l.inTurn(ctx, func() error {
		_, id, err := WhereIs(f)
		if err != nil || !slices.ContainsFunc(l.Files, func(one LeasedFile) bool { return one.FileID == id }) {
			return err // its file system keeps no labels, or it has the host's own
		}
		return l.Book.relabel(ctx, id, l.User(""), to, func() error {
			for i := range l.Files {
				if one := &l.Files[i]; one.FileID == id && one.After != to {
					one.After, one.Other = to, one.After
				}
			}
			if err := l.Keep(); err != nil {
				return err
			}
			return fsguard.RunLong(ctx, f.Name(), func() error { return relabel(f, to) })
		})
	})
}
