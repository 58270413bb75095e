package guest

import (
	"context"
	"strings"
	"sync"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// fileID identifies a file on this host.
type fileID struct{ Device, Inode uint64 }

// lendings are the files that have another label because guests use them, with the label from before the
// first use. The last user restores it. The lock is held only while the map is read or changed. Each file
// has a turn of its own, which is held while its label is read or restored.
type lendings struct {
	turns turns[fileID]

	mu    sync.Mutex
	files map[fileID]*lending
}

// lending is one file: its label before, its label now, and its users.
type lending struct {
	before, after string
	users         map[string]bool
}

// entry returns the entry of a file, and makes one if there is none. The lock must be held.
func (b *lendings) entry(id fileID) *lending {
	if b.files == nil {
		b.files = map[fileID]*lending{}
	}
	f := b.files[id]
	if f == nil {
		f = &lending{users: map[string]bool{}}
		b.files[id] = f
	}
	return f
}

// enter takes a file's turn, and makes an entry if there is none. leave ends the turn, and deletes the
// entry of a file without users.
func (b *lendings) enter(ctx context.Context, id fileID) (f *lending, leave func(), err error) {
	end, err := b.turns.take(ctx, id)
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
func (b *lendings) lend(ctx context.Context, id fileID, user, label string, now func() (string, error)) (before string, err error) {
	f, leave, err := b.enter(ctx, id)
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
func (b *lendings) relabel(ctx context.Context, id fileID, ours, label string, do func() error) error {
	f, leave, err := b.enter(ctx, id)
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

// restore records what an earlier daemon had lent.
func (b *lendings) restore(id fileID, user, before, after string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f := b.entry(id)
	if len(f.users) == 0 {
		f.before, f.after = before, after
	}
	f.users[user] = true
}

// giveBack removes a user of a file. After the last one, do restores the label, and its error is returned.
func (b *lendings) giveBack(ctx context.Context, id fileID, user string, do func() error) error {
	f, leave, err := b.enter(ctx, id)
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
