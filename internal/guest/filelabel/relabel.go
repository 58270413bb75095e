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
	if err := l.changeLabel(ctx, f, l.Image); err != nil {
		return err
	}
	return l.addFileRules(ctx, writeOwner(number), f)
}

// TakeBackToRead takes back the permission that LendToWrite gave.
func (l *Labels) TakeBackToRead(ctx context.Context, number uint, f *os.File) error {
	if l == nil {
		return nil
	}
	if err := l.changeLabel(ctx, f, l.Content); err != nil {
		return err
	}
	return l.GiveBack(ctx, writeOwner(number))
}

// KeepWritable makes the permission that LendToWrite gave last as long as the guest has the image.
func (l *Labels) KeepWritable(ctx context.Context, number uint, f *os.File) error {
	if l == nil {
		return nil
	}
	if err := l.addFileRules(ctx, ImageOwner(number), f); err != nil {
		return err
	}
	return l.GiveBack(ctx, writeOwner(number))
}

// writeOwner names the write access to an image, as an owner of labels and rules.
func writeOwner(number uint) string { return ImageOwner(number) + " to write" }

// addFileRules adds rules for an open file to the guest's profile.
func (l *Labels) addFileRules(ctx context.Context, by string, f *os.File) error {
	return l.inTurn(ctx, func() error {
		if l.Profile == nil || l.Host == nil {
			return nil
		}
		l.addRules(by, nil, []*os.File{f})
		return l.loadProfile(ctx)
	})
}

// changeLabel changes the label of one of the guest's files for another use. It fails with Busy if another guest
// uses the file.
func (l *Labels) changeLabel(ctx context.Context, f *os.File, to string) error {
	if l.Model != seclabel.SELinux || to == "" {
		return nil
	}
	return l.inTurn(ctx, func() error {
		_, id, err := PathAndID(f)
		if err != nil || !slices.ContainsFunc(l.Files, func(one LeasedFile) bool { return one.FileID == id }) {
			return err // its file system keeps no labels, or it has the host's own
		}
		return l.Leases.relabel(ctx, id, l.LeaseUser(""), to, func() error {
			for i := range l.Files {
				if one := &l.Files[i]; one.FileID == id && one.After != to {
					one.After, one.Other = to, one.After
				}
			}
			if err := l.WriteJournal(); err != nil {
				return err
			}
			return fsguard.RunLong(ctx, f.Name(), func() error { return relabel(f, to) })
		})
	})
}
