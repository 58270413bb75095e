package guest

import (
	"context"
	"os"
	"slices"

	"github.com/lodge-kvm/lodge/internal/mechanism/fsguard"
	"github.com/lodge-kvm/lodge/internal/mechanism/seclabel"
)

// An image that QEMU reads may become one that it writes, and back, while the guest runs.

// lendToWrite lets the guest write to an image that it has been lent to read.
func (l *labels) lendToWrite(ctx context.Context, number uint, f *os.File) error {
	if l == nil {
		return nil
	}
	if err := l.useAs(ctx, f, l.Image); err != nil {
		return err
	}
	return l.permit(ctx, toWrite(number), f)
}

// takeBackToRead takes back what lendToWrite gave.
func (l *labels) takeBackToRead(ctx context.Context, number uint, f *os.File) error {
	if l == nil {
		return nil
	}
	if err := l.useAs(ctx, f, l.Content); err != nil {
		return err
	}
	return l.giveBack(ctx, toWrite(number))
}

// keepWritable has what lendToWrite gave stay for as long as the guest has the image.
func (l *labels) keepWritable(ctx context.Context, number uint, f *os.File) error {
	if l == nil {
		return nil
	}
	if err := l.permit(ctx, imageOwner(number), f); err != nil {
		return err
	}
	return l.giveBack(ctx, toWrite(number))
}

// toWrite names what is lent of an image to write it.
func toWrite(number uint) string { return imageOwner(number) + " to write" }

// permit adds to the guest's profile what it may do with an open file.
func (l *labels) permit(ctx context.Context, by string, f *os.File) error {
	return l.inTurn(ctx, func() error {
		if l.Profile == nil || l.host == nil {
			return nil
		}
		l.allow(by, nil, []*os.File{f})
		return l.load(ctx)
	})
}

// useAs gives a file that the guest has been lent the label for another use. It is Busy where another guest
// uses the file, too.
func (l *labels) useAs(ctx context.Context, f *os.File, to string) error {
	if l.Model != seclabel.SELinux || to == "" {
		return nil
	}
	return l.inTurn(ctx, func() error {
		_, id, err := whereIs(f)
		if err != nil || !slices.ContainsFunc(l.Files, func(one lent) bool { return one.fileID == id }) {
			return err // its file system keeps no labels, or it has that of the host's own
		}
		return l.book.relabel(ctx, id, l.user(""), to, func() error {
			for i := range l.Files {
				if one := &l.Files[i]; one.fileID == id && one.After != to {
					one.After, one.Other = to, one.After
				}
			}
			if err := l.keep(); err != nil {
				return err
			}
			return fsguard.RunLong(ctx, f.Name(), func() error { return relabel(f, to) })
		})
	})
}
