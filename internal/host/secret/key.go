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

// keySize is the size of a key of AES-256, in bytes.
const keySize = 32

// key encrypts values. It lies in its own page, which is left out of core dumps and, if the limit of locked
// memory allows it, out of swap.
type key struct{ page []byte }

// newKey makes a key from the bytes that fill writes.
func newKey(fill func([]byte) error) (*key, error) {
	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Secret, "cannot make memory for the key of secrets")
	}
	k := &key{page: page}
	// Failures of these are no reason to fail: the daemon dumps no core anyway, and swap is the
	// administrator's choice.
	_ = unix.Madvise(page, unix.MADV_DONTDUMP)
	_ = unix.Mlock(page)
	if err := fill(page[:keySize]); err != nil {
		k.close()
		return nil, err
	}
	return k, nil
}

// newEphemeralKey is a key that exists only in this process.
func newEphemeralKey() (*key, error) {
	return newKey(func(b []byte) error { _, err := rand.Read(b); return err })
}

// close wipes the key, which then encrypts and decrypts nothing.
func (k *key) close() {
	page := k.page
	k.page = nil
	clear(page)
	_ = unix.Munmap(page) // newKey mapped the whole page
}

// seal encrypts a value. The secret's UUID is authenticated, so that one secret's value cannot be passed off
// as another's.
func (k *key) seal(id string, value []byte) ([]byte, error) {
	aead, err := k.newAEAD()
	if err != nil {
		return nil, err
	}
	nonce := make([]byte, aead.NonceSize())
	if _, err := rand.Read(nonce); err != nil {
		return nil, err
	}
	return aead.Seal(nonce, nonce, value, additionalData(id)), nil
}

// open decrypts what seal encrypted.
func (k *key) open(id string, sealed []byte) ([]byte, error) {
	aead, err := k.newAEAD()
	if err != nil {
		return nil, err
	}
	if len(sealed) < aead.NonceSize() {
		return nil, errors.New("it is too short")
	}
	return aead.Open(nil, sealed[:aead.NonceSize()], sealed[aead.NonceSize():], additionalData(id))
}

func additionalData(id string) []byte { return []byte("lodge secret 1 " + id) }

func (k *key) newAEAD() (cipher.AEAD, error) {
	if k.page == nil {
		return nil, errors.New("the daemon is ending")
	}
	block, err := aes.NewCipher(k.page[:keySize])
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// readKey reads a key file that only root may read. It returns os.ErrNotExist if there is none.
func readKey(path string) (*key, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was only read
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() != keySize {
		return nil, fault.New(fault.Failed, fault.Secret, "%s is not a file of %d bytes; restore the key from a backup, or move it away, which loses the values that it encrypted", path, keySize)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fault.New(fault.Failed, fault.Secret, "%s can be read by other users (mode %04o); make its mode 0600, and set the values of the secrets again if it may have been read", path, info.Mode().Perm())
	}
	return newKey(func(b []byte) error { _, err := io.ReadFull(f, b); return err })
}

// makeKey makes a key and its file.
func makeKey(path string) (*key, error) {
	k, err := newEphemeralKey()
	if err != nil {
		return nil, err
	}
	if err := k.write(path); err != nil {
		k.close()
		return nil, err
	}
	return k, nil
}

// write makes the key file completely or not at all, so that a killed daemon leaves no partial key.
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
