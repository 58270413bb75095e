package filelabel

import (
	"context"
	"strings"
	"sync"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/base/keylock"
)

// FileID identifies a file on this host.
type FileID struct{ Device, Inode uint64 }

// LabelLeases are the files that have another label because guests use them, with the label from before the
// first use. The last user restores it. The lock is held only while the map is read or changed. Each file
// has a turn of its own, which is held while its label is read or restored.
type LabelLeases struct {
	turns keylock.Locks[FileID]

	mu    sync.Mutex
	files map[FileID]*lease
}

// lease is one file: its label before, its label now, and its users.
type lease struct {
	before, after string
	users         map[string]bool
}

// entry returns the entry of a file, and makes one if there is none. The lock must be held.
func (b *LabelLeases) entry(id FileID) *lease {
	if b.files == nil {
		b.files = map[FileID]*lease{}
	}
	f := b.files[id]
	if f == nil {
		f = &lease{users: map[string]bool{}}
		b.files[id] = f
	}
	return f
}

// lockLease takes a file's turn, and makes an entry if there is none. leave ends the turn, and deletes the
// entry of a file without users.
func (b *LabelLeases) lockLease(ctx context.Context, id FileID) (f *lease, leave func(), err error) {
	end, err := b.turns.Lock(ctx, id)
	if err != nil {
		return nil, nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	f = b.entry(id)
	return f, func() {
		b.mu.Lock()
		if len(f.users) == 0 {
			delete(b.files, id)
		}
		b.mu.Unlock()
		end()
	}, nil
}

// lend records a user of a file under a label, and returns the label from before all users. Other users
// must use the same label.
func (b *LabelLeases) lend(ctx context.Context, id FileID, user, label string, now func() (string, error)) (before string, err error) {
	f, leave, err := b.lockLease(ctx, id)
	if err != nil {
		return "", err
	}
	defer leave()
	if len(f.users) == 0 {
		if f.before, err = now(); err != nil {
			return "", err
		}
		f.after = label
	}
	if f.after != label {
		return "", fault.New(fault.Busy, fault.Domain, "a running guest uses it with label %s, and this one needs label %s; shared disks need <shareable/> or <readonly/> in each guest", f.after, label)
	}
	f.users[user] = true
	return f.before, nil
}

// relabel changes the label of a file that is in use; do sets it. All users must have names that begin with
// ours.
func (b *LabelLeases) relabel(ctx context.Context, id FileID, ours, label string, do func() error) error {
	f, leave, err := b.lockLease(ctx, id)
	if err != nil {
		return err
	}
	defer leave()
	for user := range f.users {
		if !strings.HasPrefix(user, ours) {
			return fault.New(fault.Busy, fault.Domain, "another running guest uses it with label %s, and this one needs label %s", f.after, label)
		}
	}
	if err := do(); err != nil {
		return err
	}
	f.after = label
	return nil
}

// Restore records what an earlier daemon had lent.
func (b *LabelLeases) Restore(id FileID, user, before, after string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f := b.entry(id)
	if len(f.users) == 0 {
		f.before, f.after = before, after
	}
	f.users[user] = true
}

// giveBack removes a user of a file. After the last one, do restores the label, and its error is returned.
func (b *LabelLeases) giveBack(ctx context.Context, id FileID, user string, do func() error) error {
	f, leave, err := b.lockLease(ctx, id)
	if err != nil {
		return err
	}
	defer leave()
	delete(f.users, user)
	if len(f.users) > 0 {
		return nil
	}
	return do()
}
