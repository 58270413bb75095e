package conformance

import (
	"os"
	"path/filepath"
	"testing"
)

// folderRules give a user all rights to pools and volumes in the user's own folder.
const folderRules = `
version: 1
rules:
  - name: landlords
    who: user:4243
    may: [read, pools, volumes]
    pools: ["own*", vault]
    images: ["@DIR@/own", "pool:vault"]
    secrets: theirs
`

// A user owns a folder with pools and puts symbolic links there. The links must not lead to other files of the
// host. A copy of an encrypted volume needs the right to read its key.
// Promise: A11
func TestRules_PoolsStayInFolder(t *testing.T) {
	onlyInClients(t)
	needs(t, "qemu-img")
	d, _ := startWithRules(t, folderRules)
	own, others := filepath.Join(d.dir, "own"), filepath.Join(d.dir, "others")
	for _, dir := range []string{own, others, filepath.Join(d.dir, "vault")} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	link := filepath.Join(own, "link")
	for _, err := range []error{os.Chown(own, builder, builder), os.Symlink(others, link), os.Lchown(link, builder, builder)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	pool := func(name, target string) string {
		return d.file(t, name+".xml", "<pool type='dir'><name>"+name+"</name><target><path>"+target+
			"</path><permissions><owner>4243</owner><mode>0777</mode></permissions></target></pool>")
	}
	d.mustSucceedAs(t, builder, "pool-define", pool("own-link", link))
	contains(t, "the refusal", d.mustBeDeniedAs(t, builder, "pool-build", "own-link"), "access denied", link)
	contains(t, "the refusal", d.mustBeDeniedAs(t, builder, "pool-start", "own-link"), "access denied", link)
	d.mustSucceedAs(t, builder, "pool-define", pool("own", filepath.Join(own, "pool")))
	d.mustSucceedAs(t, builder, "pool-build", "own")
	d.mustSucceedAs(t, builder, "pool-start", "own")
	d.mustSucceedAs(t, builder, "vol-create-as", "own", "disk", "1M")
	for _, err := range []error{os.Rename(filepath.Join(own, "pool"), filepath.Join(own, "away")), os.Rename(link, filepath.Join(own, "pool"))} {
		if err != nil {
			t.Fatal(err)
		}
	}
	contains(t, "the refusal", d.mustBeDeniedAs(t, builder, "vol-create-as", "own", "more", "1M"), "access denied", filepath.Join(own, "pool"))
	info, err := os.Stat(others)
	if err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("another's folder is %v, %v", info.Mode(), err)
	}
	if found, err := os.ReadDir(others); err != nil || len(found) > 0 {
		t.Errorf("in another's folder there are %v, %v", found, err)
	}
	for _, words := range []string{`verb=volumes object="pool 'own/disk'" rule=landlords result=ok`, `verb=volumes object="pool 'own/more'" result=denied`} {
		eventually(t, "the audit to say "+words, func() bool { return d.countLogLines(words) > 0 })
	}

	const theirs, ours = "c0ffee00-0000-4000-8000-00000000000b", "c0ffee00-0000-4000-8000-00000000000c"
	for id, use := range map[string]string{theirs: "theirs", ours: "ours"} {
		d.virsh(t, "secret-define", d.file(t, use+".xml", "<secret><uuid>"+id+"</uuid><usage type='volume'><volume>"+use+"</volume></usage></secret>"))
		d.virsh(t, "secret-set-value", id, "--file", d.file(t, use+".key", use), "--plain")
	}
	locked := func(name, id string) string {
		return d.file(t, name+".xml", "<volume><name>"+name+"</name><capacity>1048576</capacity><target><encryption format='luks'>"+
			"<secret type='passphrase' uuid='"+id+"'/></encryption></target></volume>")
	}
	d.virsh(t, "pool-define-as", "vault", "dir", "--target", filepath.Join(d.dir, "vault"))
	d.virsh(t, "pool-start", "vault")
	d.virsh(t, "vol-create", "vault", locked("ours", ours))
	contains(t, "the refusal", d.mustBeDeniedAs(t, builder, "vol-create-from", "vault", locked("copy", theirs), "ours", "--inputpool", "vault"), "access denied", ours)
	d.mustSucceedAs(t, builder, "vol-create", "vault", locked("theirs", theirs))
	d.mustSucceedAs(t, builder, "vol-create-from", "vault", locked("copy", theirs), "theirs", "--inputpool", "vault")
}
