package conformance

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The secrets that the test searches for.
const (
	diskSecret    = "opens-the-disk-and-is-nowhere-else"
	clusterSecret = "AQAcephx-and-is-nowhere-else=="
	displaySecret = "vnc-pw-7"
)

// A guest with an encrypted disk and a display password starts under a daemon with all logging enabled. The test
// searches for the secrets of both.
// Promise: K8
func TestSecrets_NotInFilesOrLogs(t *testing.T) {
	needs(t, "qemu-img", "pgrep")
	audit := filepath.Join(t.TempDir(), "audit")
	d := start(t, "--log-level", "debug", "--audit", audit)
	key := d.file(t, "key", diskSecret)
	define := func(id, usage, value string) {
		d.virsh(t, "secret-define", d.file(t, "secret.xml", "<secret private='yes'><uuid>"+id+"</uuid>"+usage+"</secret>"))
		d.virsh(t, "secret-set-value", id, "--plain", "--file", d.file(t, "value", value))
	}
	const diskID, clusterID = "33333333-2222-3333-4444-00000000000a", "33333333-2222-3333-4444-00000000000b"
	define(diskID, "", diskSecret)
	define(clusterID, "<usage type='ceph'><name>client.admin secret</name></usage>", clusterSecret)
	disk := filepath.Join(d.dir, "locked.img")
	// The tool benchmarks the processor, and fails if it measures no elapsed time.
	d.output(t, "sh", "-c", `for i in 1 2 3 4 5 6 7 8 9 10; do
	qemu-img create -q --object secret,id=k,file="$1" -f luks -o key-secret=k,iter-time=1 "$2" 4M && exit; done; exit 1`, "sh", key, disk)
	d.define(t, shape{name: "vault", devices: fmt.Sprintf(`<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='%s'>
<encryption format='luks'><secret type='passphrase' uuid='%s'/></encryption></source><target dev='vda' bus='virtio'/></disk>
<graphics type='vnc' port='-1' autoport='yes' passwd='%s'/>`, disk, diskID, displaySecret)})
	d.virsh(t, "start", "--paused", "vault")
	if doc := d.virsh(t, "dumpxml", "vault"); strings.Contains(doc, displaySecret) {
		t.Error("the definition shows the display's password")
	}
	contains(t, "the definition for who may see it", d.virsh(t, "dumpxml", "--security-info", "vault"), displaySecret)

	processes := d.output(t, "sh", "-c", "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null || true")
	if !strings.Contains(processes, "guest=vault") {
		t.Error("the guest's QEMU is not among the processes")
	}
	d.mu.Lock()
	log := strings.Join(d.log, "\n")
	d.mu.Unlock()
	if !strings.Contains(log, "DOMAIN_CREATE") {
		t.Error("the log does not tell of calls")
	}
	noted, err := os.ReadFile(audit)
	if err != nil {
		t.Fatal(err)
	}
	for where, text := range map[string]string{"the processes": processes, "the log": log, "the audit": string(noted)} {
		for _, secret := range []string{diskSecret, clusterSecret, displaySecret} {
			if containsSecret(text, secret) {
				t.Errorf("%s hold %q", where, secret)
			}
		}
	}
	for _, dir := range []string{d.data, d.run} {
		searchFiles(t, dir)
	}
	for limit := range strings.Lines(d.output(t, "sh", "-c", `for p in "$1" $(pgrep -f "guest=[v]ault,"); do grep "Max core file size" /proc/$p/limits; done`, "sh", d.pid)) {
		if words := strings.Fields(limit); len(words) < 6 || words[4] != "0" && words[4] != "1" {
			t.Errorf("a core file may be left: %q", limit)
		}
	}
}

// containsSecret reports whether a text contains a secret, in plain form or as in monitor commands.
func containsSecret(text, secret string) bool {
	return strings.Contains(text, secret) || strings.Contains(text, base64.StdEncoding.EncodeToString([]byte(secret)))
}

// searchFiles searches each file below a folder. A display's password is in the definition, which only root may
// read.
func searchFiles(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		info, gone := entry.Info()
		if err = errors.Join(err, gone); err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // of a file that is being replaced
			}
			return err
		}
		if containsSecret(string(text), diskSecret) || containsSecret(string(text), clusterSecret) {
			t.Errorf("%s holds a secret", path)
		}
		if containsSecret(string(text), displaySecret) && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s can be read by other users (%v) and holds a display's password", path, info.Mode())
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
