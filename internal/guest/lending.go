package guest

import (
	"context"
	"strings"
	"sync"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// fileID tells a file from every other one of this host.
type fileID struct{ Device, Inode uint64 }

// lendings are the files that have another label because guests use them, with the
// label that they had before the first: the last one gives it back. The lock is never held
// over anything but looking into the map; each file has a turn of its own, which is
// held while its label is looked at or given back.
type lendings struct {
	turns turns[fileID]

	mu    sync.Mutex
	files map[fileID]*lending
}

type lending struct {
	before, after string
	users         map[string]bool
}

// entry finds a file, or makes a new one. The lock is held.
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

// enter takes a file's turn, making its entry when there is none. Leave gives the turn
// to the next, and forgets a file that nobody uses.
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

// lend notes that somebody uses a file by a label, and gives the label that it had
// before anybody did. Nobody may use it by another one meanwhile.
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
		return "", fault.New(fault.Busy, fault.Domain, "a guest that runs uses it as %s, and it would have to be %s; disks that guests share say <shareable/> or <readonly/> in each", f.after, label)
	}
	f.users[user] = true
	return f.before, nil
}

// relabel has a file used by another label, which do gives it. Nobody uses it meanwhile but who has names
// that begin so.
func (b *lendings) relabel(ctx context.Context, id fileID, ours, label string, do func() error) error {
	f, leave, err := b.enter(ctx, id)
	if err != nil {
		return err
	}
	defer leave()
	for user := range f.users {
		if !strings.HasPrefix(user, ours) {
			return fault.New(fault.Busy, fault.Domain, "another guest that runs uses it as %s, and it would have to be %s", f.after, label)
		}
	}
	if err := do(); err != nil {
		return err
	}
	f.after = label
	return nil
}

// restore notes what an earlier daemon had lent.
func (b *lendings) restore(id fileID, user, before, after string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f := b.entry(id)
	if len(f.users) == 0 {
		f.before, f.after = before, after
	}
	f.users[user] = true
}

// giveBack notes that somebody does not use a file any more. The last one has its
// label put back by do, and is told when that failed.
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
