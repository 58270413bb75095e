package volume

import (
	"context"
	"os"
	"strconv"

	"github.com/google/uuid"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/host/secret"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/word/scope"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// encryption is the requested encryption of a volume.
type encryption struct {
	Secret string `json:"secret"` // UUID
	// Empty values were left to QEMU.
	Cipher string `json:"cipher,omitempty"`
	Bits   uint   `json:"bits,omitempty"`
	Mode   string `json:"mode,omitempty"`
	Hash   string `json:"hash,omitempty"`
	IV     string `json:"iv,omitempty"`
	IVHash string `json:"ivHash,omitempty"`
}

// readEncryption parses the encryption of a volume. Only LUKS is supported: qcow's old encryption is weak.
func (w *volumeRequest) readEncryption(e *xmltree.Element) error {
	if e == nil {
		return nil
	}
	if format := e.Attr("format"); format != "luks" {
		return fault.New(fault.Unsupported, fault.Config, "volumes are encrypted in the format luks, not %q", format)
	}
	key, cipher, iv := e.Child("secret"), e.Child("cipher"), e.Child("ivgen")
	id, err := uuid.Parse(key.Attr("uuid"))
	if key.Attr("type") != "passphrase" || err != nil {
		return fault.New(fault.Invalid, fault.XML, "an encrypted volume names its secret: <secret type='passphrase' uuid='…'/> (virsh secret-define, secret-set-value)")
	}
	w.encryption = &encryption{
		Secret: id.String(), Cipher: cipher.Attr("name"), Mode: cipher.Attr("mode"), Hash: cipher.Attr("hash"),
		IV: iv.Attr("name"), IVHash: iv.Attr("hash"),
	}
	if size := cipher.Attr("size"); size != "" {
		bits, err := strconv.ParseUint(size, 10, 16)
		if err != nil {
			return fault.New(fault.Invalid, fault.XML, "the cipher size %q is not a number of bits", size)
		}
		w.encryption.Bits = uint(bits)
	}
	if w.format == image.Raw {
		w.format = image.LUKS
	}
	return nil
}

// supportedEncryption is every supported element of an encryption, for comparison.
func supportedEncryption() *xmltree.Element {
	full := &encryption{Secret: "x", Cipher: "x", Bits: 1, Mode: "x", Hash: "x", IV: "x", IVHash: "x"}
	return full.element()
}

func (e *encryption) element() *xmltree.Element {
	root := typedElement("encryption", "luks")
	root.Attrs[0].Name = "format"
	if e == nil {
		return root
	}
	root.Children = append(root.Children, attribute{"uuid", e.Secret}.on(typedElement("secret", "passphrase")))
	add := func(name string, fields ...attribute) {
		child := element(name)
		for _, f := range fields {
			if f.value != "" {
				f.on(child)
			}
		}
		if len(child.Attrs) > 0 {
			root.Children = append(root.Children, child)
		}
	}
	bits := ""
	if e.Bits != 0 {
		bits = strconv.FormatUint(uint64(e.Bits), 10)
	}
	add("cipher", attribute{"name", e.Cipher}, attribute{"size", bits}, attribute{"mode", e.Mode}, attribute{"hash", e.Hash})
	add("ivgen", attribute{"name", e.IV}, attribute{"hash", e.IVHash})
	return root
}

// encryptionElement is the encryption of a volume, with its secret if the volume was made here.
func (v *Volume) encryptionElement() *xmltree.Element {
	if !v.Encrypted || v.OldEncryption {
		return nil
	}
	return v.encryption.element()
}

// needsPassphrase says whether a volume is read and written with a passphrase. A raw volume that looks
// encrypted is not: its guest encrypts it.
func (v *Volume) needsPassphrase() bool { return v.Encrypted && v.Format != image.Raw }

// secretValue returns the passphrase of an encryption, which the caller clears; nil if there is none.
func (ps *Pools) secretValue(e *encryption) ([]byte, error) {
	if e == nil {
		return nil, nil
	}
	if ps.secrets == nil {
		return nil, fault.New(fault.Unsupported, fault.Config, "there are no secrets here to encrypt volumes with")
	}
	return ps.secrets.Value(e.Secret)
}

// withPassphrase runs do with a plan that has its passphrase only for that time.
func (ps *Pools) withPassphrase(plan image.Plan, e *encryption, do func(image.Plan) error) error {
	value, err := ps.secretValue(e)
	if err != nil {
		return err
	}
	if e != nil {
		defer clear(value)
		plan.Encryption = &image.Encryption{
			Passphrase: value, Cipher: e.Cipher, Bits: e.Bits, Mode: e.Mode, Hash: e.Hash, IV: e.IV, IVHash: e.IVHash, UnlockTime: ps.unlock,
		}
	}
	return do(plan)
}

// makeImage lays out an image, encrypted if requested.
func (p *Pool) makeImage(ctx context.Context, f *os.File, plan image.Plan, e *encryption) error {
	return p.pools.withPassphrase(plan, e, func(plan image.Plan) error { return p.pools.images.Make(ctx, f, plan) })
}

// passphrase returns the passphrase of a volume, which the caller clears; nil if it is not encrypted. For a
// volume that was not made here, it looks for a secret with that usage.
func (p *Pool) passphrase(sc scope.Scope, v *Volume) ([]byte, error) {
	if !v.needsPassphrase() {
		return nil, nil
	}
	e := v.encryption
	if e == nil && p.pools.secrets != nil {
		d, err := p.pools.secrets.ByUsage(secret.Usage{Type: "volume", ID: v.Path})
		if err != nil {
			return nil, fault.Wrap(err, fault.NotFound, fault.Secret, "volume %q is encrypted and its secret is not known; define a secret with usage type volume for %s", v.Name, v.Path)
		}
		e = &encryption{Secret: d.UUID}
	}
	if e != nil {
		if err := sc.OpenSecret(p.name, e.Secret); err != nil {
			return nil, err
		}
	}
	return p.pools.secretValue(e)
}
