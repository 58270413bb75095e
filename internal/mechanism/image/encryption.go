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

// LUKS is a raw image inside of an encrypted container. Documents call it raw
// and say beside it how it is encrypted.
const LUKS Format = "luks"

// Encryption says how an image is encrypted, and with what it is opened. What is empty
// is QEMU's choice.
type Encryption struct {
	Passphrase []byte // the caller's, who clears it
	Cipher     string // aes, serpent, twofish
	Bits       uint   // of the cipher's key: 128, 192, 256
	Mode       string // xts, cbc
	Hash       string // that keys are made with
	IV         string // plain, plain64, essiv
	IVHash     string // of essiv
	// UnlockTime is how long this host is to take to make the key of the passphrase,
	// whenever the image is opened: as much as it costs to guess one; 0: 2 s.
	UnlockTime time.Duration
}

var (
	lockCiphers = []string{"aes", "serpent", "twofish"}
	lockModes   = []string{"", "xts", "cbc"}
	lockHashes  = []string{"", "sha1", "sha224", "sha256", "sha384", "sha512", "ripemd160"}
	lockIVs     = []string{"", "plain", "plain64", "essiv"}
)

// check finds what QEMU would not make, or what would protect nothing.
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

// options gives the lock as creation options of the tool, each name with a prefix.
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

// The tool's names of the passphrases of what it writes and of what it reads.
const (
	intoKey = "into"
	fromKey = "from"
)

// passphrases hands passphrases to a run of the tool: each in a file of memory without a
// name, which goes with the last process that has it open.
type passphrases struct {
	files []*os.File // those of the run, the passphrases at the end
	own   int        // how many of them are passphrases
	args  []string   // that tell the tool of them
}

// add adds a passphrase; none is no error.
func (k *passphrases) add(name string, passphrase []byte) error {
	if len(passphrase) == 0 {
		return nil
	}
	fd, err := unix.MemfdCreate("key", unix.MFD_CLOEXEC)
	if err != nil {
		return fault.Wrap(err, fault.Failed, fault.Volume, "cannot hand a passphrase over")
	}
	f := os.NewFile(uintptr(fd), "key")
	k.files, k.own = append(k.files, f), k.own+1
	k.args = append(k.args, "--object", fmt.Sprintf("secret,id=%s,file=/proc/self/fd/%d", name, firstFile+len(k.files)-1))
	if _, err := f.Write(passphrase); err != nil {
		return fault.Wrap(err, fault.Failed, fault.Volume, "cannot hand a passphrase over")
	}
	return nil
}

// close forgets the passphrases.
func (k *passphrases) close() {
	for _, f := range k.files[len(k.files)-k.own:] {
		_ = f.Truncate(0)
		_ = f.Close()
	}
}

// writeTarget is what the tool is told of an encrypted image that it opens to write.
func writeTarget(format Format) string {
	key := "key-secret=" + intoKey
	if format != LUKS {
		key = "encrypt." + key
	}
	return fmt.Sprintf("driver=%s,%s,file.driver=file,file.filename=/proc/self/fd/%d", format, key, firstFile)
}

// readDeclaredLUKS reads the header of what is declared to be a LUKS container. What
// is before the data does not count for the guest.
func (info *Info) readDeclaredLUKS(r io.ReaderAt) error {
	head, err := readUpTo(r, 0, 108)
	if err != nil {
		return err
	}
	if len(head) < 108 || string(head[:6]) != luksMagic {
		return errors.New("it is no LUKS container")
	}
	if version := binary.BigEndian.Uint16(head[6:]); version != 1 {
		return fmt.Errorf("it is of version %d of LUKS, and QEMU opens version 1 only", version)
	}
	info.Encrypted = true
	info.Virtual -= min(uint64(binary.BigEndian.Uint32(head[104:]))*sector, info.Virtual)
	return nil
}

const luksMagic = "LUKS\xba\xbe"
