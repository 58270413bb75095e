package secret

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// keySize is that of AES-256, in bytes.
const keySize = 32

// key seals values. It lies in a page of its own that is kept out of core files
// and, where the limit of locked memory allows it, out of the swap.
type key struct{ page []byte }

// newKey gives a key of the bytes that fill provides.
func newKey(fill func([]byte) error) (*key, error) {
	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Secret, "cannot make memory for the key of secrets")
	}
	k := &key{page: page}
	// Neither is worth failing for: the daemon dumps no core at all, and a host
	// that locks no memory is told so by its administrator.
	_ = unix.Madvise(page, unix.MADV_DONTDUMP)
	_ = unix.Mlock(page)
	if err := fill(page[:keySize]); err != nil {
		k.close()
		return nil, err
	}
	return k, nil
}

// passingKey is a key that nobody else has, and that is gone with the process.
func passingKey() (*key, error) {
	return newKey(func(b []byte) error { _, err := rand.Read(b); return err })
}

// close forgets the key, which seals and opens nothing after.
func (k *key) close() {
	page := k.page
	k.page = nil
	clear(page)
	_ = unix.Munmap(page) // it was mapped by newKey, whole
}

// seal encrypts a value for the secret of a UUID: that of one cannot be passed
// off as that of another.
func (k *key) seal(id string, value []byte) ([]byte, error) {
	aead, err := k.aead()
	if err != nil {
		return nil, err
	}
	nonce := make([]byte, aead.NonceSize())
	if _, err := rand.Read(nonce); err != nil {
		return nil, err
	}
	return aead.Seal(nonce, nonce, value, label(id)), nil
}

// open decrypts what seal gave.
func (k *key) open(id string, sealed []byte) ([]byte, error) {
	aead, err := k.aead()
	if err != nil {
		return nil, err
	}
	if len(sealed) < aead.NonceSize() {
		return nil, errors.New("it is too short")
	}
	return aead.Open(nil, sealed[:aead.NonceSize()], sealed[aead.NonceSize():], label(id))
}

func label(id string) []byte { return []byte("lodge secret 1 " + id) }

func (k *key) aead() (cipher.AEAD, error) {
	if k.page == nil {
		return nil, errors.New("the daemon is ending")
	}
	block, err := aes.NewCipher(k.page[:keySize])
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// readKey reads the key of a file that root alone may read, and gives
// os.ErrNotExist where there is none.
func readKey(path string) (*key, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() != keySize {
		return nil, fault.New(fault.Failed, fault.Secret, "%s is not a file of %d bytes; put the key back from a backup, or move it away: the values that it sealed are lost then", path, keySize)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fault.New(fault.Failed, fault.Secret, "%s may be read by others (mode %04o), so that it keeps nothing secret; make it 0600, and set the secrets anew if somebody may have read it", path, info.Mode().Perm())
	}
	return newKey(func(b []byte) error { _, err := io.ReadFull(f, b); return err })
}

// makeKey makes a key and its file.
func makeKey(path string) (*key, error) {
	k, err := passingKey()
	if err != nil {
		return nil, err
	}
	if err := k.write(path); err != nil {
		k.close()
		return nil, err
	}
	return k, nil
}

// write makes the key's file, whole or not at all: a daemon that is killed amid this
// leaves no key that is half one.
func (k *key) write(path string) error {
	fresh := path + ".new"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(fresh, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(k.page[:keySize])
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	failpoint.Reach("secret.key-made")
	if err := os.Rename(fresh, path); err != nil {
		return err
	}
	failpoint.Reach("secret.key-named")
	return syncDir(filepath.Dir(path))
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
