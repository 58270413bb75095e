package image

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// LUKS is a raw image in an encrypted container. libvirt's XML calls it raw with an encryption element.
const LUKS Format = "luks"

// Encryption says how an image is encrypted, and its passphrase. QEMU chooses the fields that are empty.
type Encryption struct {
	Passphrase []byte // owned and cleared by the caller
	Cipher     string // aes, serpent, twofish
	Bits       uint   // of the cipher's key: 128, 192, 256
	Mode       string // xts, cbc
	Hash       string // for key derivation
	IV         string // plain, plain64, essiv
	IVHash     string // of essiv
	// UnlockTime is how long this host should need to derive the key from the passphrase at each opening;
	// each guess of an attacker costs as much. 0: 2 s.
	UnlockTime time.Duration `json:"Unlock"`
}

var (
	lockCiphers = []string{"aes", "serpent", "twofish"}
	lockModes   = []string{"", "xts", "cbc"}
	lockHashes  = []string{"", "sha1", "sha224", "sha256", "sha384", "sha512", "ripemd160"}
	lockIVs     = []string{"", "plain", "plain64", "essiv"}
)

// check refuses parameters that QEMU would refuse, or that protect nothing.
func (l *Encryption) check() error {
	invalid := func(format string, args ...any) error {
		return fault.New(fault.Invalid, fault.Volume, format, args...)
	}
	switch {
	case len(l.Passphrase) == 0:
		return invalid("an encrypted volume needs a passphrase that is not empty")
	case l.Cipher == "" && (l.Bits != 0 || l.Mode != "" || l.Hash != ""):
		return invalid("a cipher has a name")
	case l.Cipher != "" && !slices.Contains(lockCiphers, l.Cipher):
		return invalid("cipher %q is not one of %s", l.Cipher, strings.Join(lockCiphers, ", "))
	case l.Cipher != "" && l.Bits != 128 && l.Bits != 192 && l.Bits != 256:
		return invalid("cipher %s has keys of 128, 192 or 256 bits, not of %d", l.Cipher, l.Bits)
	case !slices.Contains(lockModes, l.Mode):
		return invalid("cipher mode %q is not one of xts, cbc", l.Mode)
	case !slices.Contains(lockHashes, l.Hash) || !slices.Contains(lockHashes, l.IVHash):
		return invalid("hash %q is not one of%s", l.Hash+l.IVHash, strings.Join(lockHashes, " "))
	case !slices.Contains(lockIVs, l.IV):
		return invalid("generator %q of initial vectors is not one of plain, plain64, essiv", l.IV)
	case (l.IV == "essiv") != (l.IVHash != ""):
		return invalid("the generator essiv of initial vectors has a hash, and no other has one")
	}
	return nil
}

// options returns the encryption as creation options of qemu-img, each name with a prefix.
func (l *Encryption) options(prefix string) []string {
	o := []string{prefix + "key-secret=" + intoKey}
	add := func(name, value string) {
		if value != "" {
			o = append(o, prefix+name+"="+value)
		}
	}
	if l.Cipher != "" {
		add("cipher-alg", fmt.Sprintf("%s-%d", l.Cipher, l.Bits))
	}
	add("cipher-mode", l.Mode)
	add("hash-alg", l.Hash)
	add("ivgen-alg", l.IV)
	add("ivgen-hash-alg", l.IVHash)
	if l.UnlockTime > 0 {
		add("iter-time", strconv.FormatInt(l.UnlockTime.Milliseconds(), 10))
	}
	return o
}

// The names, for the tool, of the passphrase of the image it writes and of the one it reads.
const (
	intoKey = "into"
	fromKey = "from"
)

// passphrases are handed to a run of qemu-img, each in an unnamed memory file that ends with its last
// user.
type passphrases struct {
	files []*os.File // all files of the run, passphrases last
	own   int        // how many of them are passphrases
	args  []string   // arguments that name them
}

// add adds a passphrase; nil is skipped.
func (k *passphrases) add(name string, passphrase []byte) error {
	if len(passphrase) == 0 {
		return nil
	}
	fd, err := unix.MemfdCreate("key", unix.MFD_CLOEXEC)
	if err != nil {
		return fault.Wrap(err, fault.Failed, fault.Volume, "cannot pass a passphrase to qemu-img")
	}
	f := os.NewFile(uintptr(fd), "key")
	k.files, k.own = append(k.files, f), k.own+1
	k.args = append(k.args, "--object", fmt.Sprintf("secret,id=%s,file=/proc/self/fd/%d", name, firstFile+len(k.files)-1))
	if _, err := f.Write(passphrase); err != nil {
		return fault.Wrap(err, fault.Failed, fault.Volume, "cannot pass a passphrase to qemu-img")
	}
	return nil
}

// close closes the files of the passphrases.
func (k *passphrases) close() {
	for _, f := range k.files[len(k.files)-k.own:] {
		_ = f.Truncate(0)
		_ = f.Close()
	}
}

// writeTarget names an encrypted image that qemu-img opens to write.
func writeTarget(format Format) string {
	key := "key-secret=" + intoKey
	if format != LUKS {
		key = "encrypt." + key
	}
	return fmt.Sprintf("driver=%s,%s,file.driver=file,file.filename=/proc/self/fd/%d", format, key, firstFile)
}

// readDeclaredLUKS reads the header of a declared LUKS container. The guest does not see the bytes before
// the data.
func (info *Info) readDeclaredLUKS(r io.ReaderAt) error {
	head, err := readUpTo(r, 0, 108)
	if err != nil {
		return err
	}
	if len(head) < 108 || string(head[:6]) != luksMagic {
		return errors.New("it is not a LUKS container")
	}
	if version := binary.BigEndian.Uint16(head[6:]); version != 1 {
		return fmt.Errorf("it has LUKS version %d, and QEMU supports version 1 only", version)
	}
	info.Encrypted = true
	info.Virtual -= min(uint64(binary.BigEndian.Uint32(head[104:]))*sector, info.Virtual)
	return nil
}

const luksMagic = "LUKS\xba\xbe"
