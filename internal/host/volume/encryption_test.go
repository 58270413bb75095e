package volume

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/host/secret"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/word/event"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

const (
	passphrase = "the quick brown fox"
	keyUUID    = "22222222-2222-3333-4444-000000000001"
	otherUUID  = "22222222-2222-3333-4444-000000000002"
)

// withSecrets gives a daemon two secrets with different values.
func (d *daemon) withSecrets() {
	d.t.Helper()
	book, err := secret.Open(secret.Config{
		Store: d.store, Key: filepath.Join(d.data, "key"), Events: event.NewLog(), Log: slog.New(slog.DiscardHandler),
	})
	must(d.t, err)
	d.t.Cleanup(book.Close)
	for id, value := range map[string]string{keyUUID: passphrase, otherUUID: "another one"} {
		_, err := book.Define(scope.Daemon("a test"), "<secret private='yes'><uuid>"+id+"</uuid></secret>", true)
		must(d.t, err)
		must(d.t, book.SetValue(scope.Daemon("a test"), id, []byte(value)))
	}
	d.secrets, d.unlock = book, time.Millisecond
}

func lockedXML(name, format, id, more string) string {
	return fmt.Sprintf(`<volume><name>%s</name><capacity>%d</capacity><allocation>0</allocation><target><format type='%s'/>
<encryption format='luks'><secret type='passphrase' uuid='%s'/>%s</encryption></target></volume>`, name, 4*mib, format, id, more)
}

// plain reads a whole encrypted image as a guest would, with QEMU's own tool.
func plain(t *testing.T, path, format, value string) []byte {
	t.Helper()
	dir := t.TempDir()
	key, out := filepath.Join(dir, "key"), filepath.Join(dir, "out")
	must(t, os.WriteFile(key, []byte(value), 0o600))
	options := "driver=luks,key-secret=k,file.filename=" + path
	if format == "qcow2" {
		options = "driver=qcow2,encrypt.key-secret=k,file.filename=" + path
	}
	said, err := exec.CommandContext(t.Context(), "qemu-img", "convert", "--object", "secret,id=k,file="+key, "--image-opts", options, "-O", "raw", out).CombinedOutput()
	if err != nil {
		t.Fatalf("cannot read %s: %s", path, said)
	}
	content, err := os.ReadFile(out)
	must(t, err)
	return content
}

// mark writes a word at the beginning of an encrypted image, as a guest would.
func mark(t *testing.T, path, word string) {
	t.Helper()
	key := filepath.Join(t.TempDir(), "key")
	must(t, os.WriteFile(key, []byte(passphrase), 0o600))
	said, err := exec.CommandContext(t.Context(), "qemu-io", "--object", "secret,id=k,file="+key, "--image-opts",
		"driver=luks,key-secret=k,file.filename="+path, "-c", fmt.Sprintf("write -P %d 0 64k", word[0])).CombinedOutput()
	if err != nil {
		t.Fatalf("cannot write %s: %s", path, said)
	}
}

// TestEncryption_Lifecycle makes, resizes and copies encrypted volumes with the calls that a client has, and reads
// them with QEMU's own tools.
// Promise: K4
func TestEncryption_Lifecycle(t *testing.T) {
	if testing.Short() {
		t.Skip("makes keys for seconds")
	}
	needQemuImg(t)
	d := newDaemon(t)
	d.withSecrets()
	p := d.dirPool("vault")
	v := d.volume(p, lockedXML("disk", "raw", keyUUID, "<cipher name='aes' size='256' mode='cbc' hash='sha256'/><ivgen name='essiv' hash='sha256'/>"))
	if v.Virtual != 4*mib || !v.Encrypted {
		t.Errorf("made %+v", v.Info)
	}
	doc, err := v.XML()
	must(t, err)
	for _, want := range []string{
		"<format type='raw'/>", "<encryption format='luks'>", "<secret type='passphrase' uuid='" + keyUUID + "'/>",
		"<cipher name='aes' size='256' mode='cbc' hash='sha256'/>", "<ivgen name='essiv' hash='sha256'/>",
	} {
		if !strings.Contains(doc, want) {
			t.Errorf("the document lacks %s:\n%s", want, doc)
		}
	}
	mark(t, v.Path, "A")
	must(t, p.ResizeVolume(t.Context(), scope.Daemon("a test"), "disk", 6*mib, ResizeOptions{}))
	content := plain(t, v.Path, "raw", passphrase)
	if len(content) != 6*mib || content[0] != 'A' {
		t.Errorf("after the resize there are %d bytes that begin with %q", len(content), content[:1])
	}
	if cipher, err := os.ReadFile(v.Path); err != nil || bytes.Contains(cipher, bytes.Repeat([]byte("A"), 512)) {
		t.Errorf("the file holds what the guest wrote in the clear (%v)", err)
	}
	copied, err := p.CloneVolume(t.Context(), scope.Daemon("a test"), lockedXML("copy", "qcow2", otherUUID, ""), p, "disk", CreateOptions{})
	must(t, err)
	if !bytes.Equal(plain(t, copied.Path, "qcow2", "another one"), content) {
		t.Error("the copy with another secret holds other data")
	}
	_, err = p.CloneVolume(t.Context(), scope.Daemon("a test"), volXML("clear", "raw", 4*mib, ""), p, "disk", CreateOptions{})
	wantKind(t, err, fault.Invalid)
	if names := dirNames(t, p); names != "copy disk" {
		t.Errorf("there are %s", names)
	}
}

func TestEncryption_Refused(t *testing.T) {
	d := newDaemon(t)
	d.withSecrets()
	p := d.dirPool("vault")
	for doc, want := range map[string]fault.Kind{
		lockedXML("a", "raw", "33333333-2222-3333-4444-000000000001", ""):                                       fault.NotFound,
		lockedXML("a", "raw", "nonsense", ""):                                                                   fault.Invalid,
		lockedXML("a", "raw", keyUUID, "<cipher name='rot' size='13'/>"):                                        fault.Invalid,
		lockedXML("a", "raw", keyUUID, "<cipher name='aes' size='256,key-secret=x'/>"):                          fault.Invalid,
		lockedXML("a", "raw", keyUUID, "<ivgen name='plain64,x=y'/>"):                                           fault.Invalid,
		lockedXML("a", "vmdk", keyUUID, ""):                                                                     fault.Unsupported,
		strings.Replace(lockedXML("a", "qcow2", keyUUID, ""), "format='luks'", "format='qcow'", 1):              fault.Unsupported,
		strings.Replace(lockedXML("a", "raw", keyUUID, ""), "<secret type='passphrase'", "<secret type='x'", 1): fault.Invalid,
	} {
		_, err := p.CreateVolume(t.Context(), scope.Daemon("a test"), doc, CreateOptions{})
		if !fault.Is(err, want) {
			t.Errorf("%s: %v (%v), want %v", doc, err, fault.Of(err), want)
		}
	}
	if names := dirNames(t, p); names != "" {
		t.Errorf("left: %s", names)
	}
}

// TestEncryption_PassphraseIsNoArgument: the tool for encrypted images is given the place of the passphrase and not
// the passphrase: neither its arguments nor its environment contain it.
// Promise: K4
func TestEncryption_PassphraseIsNoArgument(t *testing.T) {
	d := newDaemon(t)
	d.withSecrets()
	p := d.dirPool("vault")
	spy, seen := filepath.Join(t.TempDir(), "qemu-img"), filepath.Join(t.TempDir(), "seen")
	must(t, os.WriteFile(spy, []byte("#!/bin/sh\n{ echo \"$@\"; env; cat /proc/self/environ; } > "+seen+"\nsed -n 1p /proc/self/fd/4 > "+seen+".key\nexit 1\n"), 0o700))
	t.Setenv("PATH", filepath.Dir(spy)+":"+os.Getenv("PATH"))
	tool, err := image.FindTool(nil, slog.New(slog.DiscardHandler))
	must(t, err)
	p.pools.images = tool
	if _, err := p.CreateVolume(t.Context(), scope.Daemon("a test"), lockedXML("a", "raw", keyUUID, ""), CreateOptions{}); err == nil {
		t.Fatal("made by a tool that fails")
	}
	words, err := os.ReadFile(seen)
	must(t, err)
	if !bytes.Contains(words, []byte("--object secret,id=into,file=/proc/self/fd/4")) || bytes.Contains(words, []byte(passphrase)) {
		t.Errorf("the tool was told:\n%s", words)
	}
	if key, _ := os.ReadFile(seen + ".key"); string(key) != passphrase {
		t.Errorf("the tool finds %q as its key", key)
	}
}
