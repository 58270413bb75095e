package libvirt

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/storagecalls"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/host/volume"
	"github.com/lodge-kvm/lodge/internal/mechanism/store"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// withPools serves storage pools, on a store of their own.
func withPools(t *testing.T) func(*rpc.Server) {
	t.Helper()
	return func(s *rpc.Server) {
		log := slog.New(slog.DiscardHandler)
		records, err := store.Open(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		s.Handlers.Pools, err = volume.Open(volume.Options{Store: records, Events: s.Handlers.Events, Log: log, Boot: "this"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			s.Handlers.Pools.Close()
			if err := records.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// shell runs virsh commands that must succeed, or fail with a text.
type shell struct {
	*testServer
	words map[string]string
}

func (s *shell) fill(line string) []string {
	for name, value := range s.words {
		line = strings.ReplaceAll(line, name, value)
	}
	return strings.Fields(line)
}

func (s *shell) does(line string, want ...string) string {
	s.t.Helper()
	out, err := s.virsh(s.fill(line)...)
	if err != nil {
		s.t.Fatalf("%s: %s", line, out)
	}
	for _, w := range want {
		if ok, err := regexp.MatchString(strings.Join(s.fill(w), " "), strings.Join(strings.Fields(out), " ")); err != nil || !ok {
			s.t.Errorf("%s: no %q in\n%s", line, w, out)
		}
	}
	return out
}

func (s *shell) fails(line, want string) {
	s.t.Helper()
	out, err := s.virsh(s.fill(line)...)
	if err == nil || !strings.Contains(out, want) {
		s.t.Errorf("%s: %v, no %q in\n%s", line, err, want, out)
	}
}

func storageShell(t *testing.T) *shell {
	t.Helper()
	for _, program := range []string{"virsh", "qemu-img"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not installed", program)
		}
	}
	return &shell{serve(t, withPools(t)), map[string]string{"DIR": t.TempDir(), "TMP": t.TempDir()}}
}

func TestVirsh_Pools(t *testing.T) {
	s := storageShell(t)
	s.does("pool-list --all", `^Name State Autostart -+$`)
	s.does("pool-define-as images dir --target DIR/images", "^Pool images defined$")
	s.fails("pool-start images", "cannot read directory")
	s.does("pool-build images", "Pool images built")
	s.does("pool-start images", "Pool images started")
	s.does("pool-autostart images", "Pool images marked as autostarted")
	s.does("pool-list --all --details", `images running yes yes [0-9.]+ [KMGT]iB [0-9.]+ [KMGT]iB [0-9.]+ [KMGT]iB$`)
	s.does("pool-list --type dir --name", "^images$")
	s.does("pool-list --type fs,netfs --name", "^$")
	s.does("pool-list --transient --name", "^$")
	s.does("pool-list --inactive --name", "^$")
	s.does("pool-info images", "State: running Persistent: yes Autostart: yes Capacity: [0-9.]+ [KMGT]iB")
	uuid := s.does("pool-uuid images")
	s.does("pool-name "+uuid, "^images$")
	s.does("pool-dumpxml images", `^<pool type='dir'> <name>images</name> <uuid>`+uuid+`</uuid> <capacity unit='bytes'>[1-9][0-9]*</capacity>`,
		`<source> </source> <target> <path>DIR/images</path> <permissions> <mode>0711</mode> <owner>[0-9]+</owner> <group>[0-9]+</group> </permissions> </target> </pool>$`)
	s.does("pool-dumpxml --inactive images", "<capacity unit='bytes'>0</capacity>")
	s.fails("pool-define-as images dir --target DIR/other", "error: operation failed: pool \"images\" already exists with uuid "+uuid)
	s.fails("pool-undefine images", "error: Requested operation is not valid: ")
	s.fails("pool-define-as far iscsi --source-host h --source-dev iqn --target /dev/disk/by-path", "error: unsupported configuration: ")
	s.fails("pool-info nothing", "failed to get pool 'nothing'")
	s.does("pool-refresh images", "Pool images refreshed")
	s.does("pool-destroy images", "Pool images destroyed")
	s.does("pool-list --all", "images inactive yes")
	s.does("pool-delete images", "Pool images deleted")
	s.does("pool-undefine images", "Pool images has been undefined")
	s.does("pool-create-as passing dir --target DIR/passing --build", "Pool passing created")
	s.does("pool-list --transient --name", "^passing$")
	s.does("pool-destroy passing")
	s.does("pool-list --all --name", "^$")
	s.does("pool-capabilities", "^<storagepoolCapabilities> <pool type='dir' supported='yes'>")
	s.fails("find-storage-pool-sources dir", "error: Operation not supported")
}

func TestVirsh_Volumes(t *testing.T) {
	s := storageShell(t)
	s.does("pool-create-as a dir --target DIR/a --build")
	s.does("pool-create-as b dir --target DIR/b --build")
	s.does("vol-create-as a thin 1G --allocation 0", "^Vol thin created$")
	s.does("vol-create-as a full 2M")
	s.does("vol-create-as a base.qcow2 64M --format qcow2")
	s.does("vol-create-as a top.qcow2 64M --format qcow2 --backing-vol base.qcow2 --backing-vol-format qcow2")
	s.does("vol-create-as a laid.qcow2 64M --format qcow2 --prealloc-metadata")
	s.does("vol-list a --details", `base.qcow2 DIR/a/base.qcow2 file 64.00 MiB [0-9.]+ KiB full DIR/a/full file 2.00 MiB 2.00 MiB`, `thin DIR/a/thin file 1.00 GiB 0.00 B`)
	s.does("vol-info thin --pool a", "Name: thin Type: file Capacity: 1.00 GiB Allocation: 0.00 B")
	s.does("vol-info thin --pool a --physical", "Physical: 1.00 GiB")
	s.does("vol-info DIR/a/thin", "Name: thin")
	s.does("vol-path thin --pool a", "^DIR/a/thin$")
	s.does("vol-key DIR/a/thin", "^DIR/a/thin$")
	s.does("vol-name DIR/a/thin", "^thin$")
	s.does("vol-pool DIR/a/thin", "^a$")
	s.does("vol-dumpxml top.qcow2 --pool a",
		`^<volume type='file'> <name>top.qcow2</name> <key>DIR/a/top.qcow2</key> <capacity unit='bytes'>67108864</capacity> <allocation unit='bytes'>[0-9]+</allocation> <physical unit='bytes'>[0-9]+</physical> <target> <path>DIR/a/top.qcow2</path> <format type='qcow2'/> <permissions> <mode>0600</mode>`,
		`<compat>1.1</compat> <clusterSize unit='B'>65536</clusterSize> <features/> </target> <backingStore> <path>DIR/a/base.qcow2</path> <format type='qcow2'/> </backingStore> </volume>$`)
	s.fails("vol-info nothing --pool a", "error: Storage volume not found: ")
	s.fails("vol-create-as a thin 1G", "already exists in pool")
	s.fails("vol-create-as a ../x 1G", "error: XML error: ")
	s.fails("vol-create-as a huge 1000T", "error: operation failed: ")
	s.does("vol-resize thin 2G --pool a", "Size of volume 'thin' successfully changed to 2G")
	s.does("vol-resize thin 1G --delta --pool a")
	s.fails("vol-resize thin 1G --pool a", "error: invalid argument: ")
	s.does("vol-resize thin 1G --shrink --pool a")
	s.does("vol-info thin --pool a", "Capacity: 1.00 GiB")
	s.does("vol-clone top.qcow2 copy.qcow2 --pool a", "Vol copy.qcow2 cloned from top.qcow2")
	s.does("vol-dumpxml copy.qcow2 --pool a", "<backingStore> <path>DIR/a/base.qcow2</path>")
	s.does("vol-wipe full --pool a", "Vol full wiped")
	s.does("vol-wipe full --pool a --algorithm trim")
	s.fails("vol-wipe full --pool a --algorithm gutmann", "wipe algorithm gutmann is not built")
	s.words["XML"] = filepath.Join(t.TempDir(), "v.xml")
	doc := "<volume><name>moved</name><capacity/><allocation>0</allocation><target><format type='raw'/></target></volume>"
	if err := os.WriteFile(s.words["XML"], []byte(doc), 0o600); err != nil {
		t.Fatal(err)
	}
	s.does("vol-create-from b XML top.qcow2 --inputpool a", "Vol moved created from input vol top.qcow2")
	s.does("vol-info moved --pool b", "Capacity: 64.00 MiB")
	for _, name := range []string{"thin", "full", "base.qcow2", "top.qcow2", "laid.qcow2", "copy.qcow2"} {
		s.does("vol-delete "+name+" --pool a", "Vol "+name+" deleted")
	}
	s.does("vol-list a", "^Name Path -+$")
	s.does("pool-destroy b")
	s.fails("vol-list b", "Storage pool not found")
}

func TestVirsh_Transfers(t *testing.T) {
	s := storageShell(t)
	s.does("pool-create-as a dir --target DIR/a --build")
	content := make([]byte, 3<<20+12345)
	if _, err := rand.Read(content); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.words["TMP"], "up"), content, 0o600); err != nil {
		t.Fatal(err)
	}
	down := func(args string) []byte {
		t.Helper()
		s.does("vol-download disk TMP/down --pool a " + args)
		got, err := os.ReadFile(filepath.Join(s.words["TMP"], "down"))
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	s.does(fmt.Sprintf("vol-create-as a disk %d --allocation 0", len(content)))
	s.does("vol-upload disk TMP/up --pool a")
	if !bytes.Equal(down(""), content) {
		t.Error("what comes down is not what went up")
	}
	if got := down("--offset 1000 --length 70000"); !bytes.Equal(got, content[1000:71000]) {
		t.Errorf("%d bytes of the middle differ", len(got))
	}
	s.fails("vol-upload disk TMP/up --pool a --length 1000", "received more bytes")
	s.fails("vol-download nothing TMP/x --pool a", "Storage volume not found")
	sparseTransfer(t, s)
	// A stream that ended leaves its volume free.
	s.does("vol-delete disk --pool a")
}

// sparseTransfer uploads and downloads a file with holes. The holes must survive.
func sparseTransfer(t *testing.T, s *shell) {
	t.Helper()
	const size = 64 << 20
	content := make([]byte, size)
	copy(content[10<<20:], "in the middle")
	path := filepath.Join(s.words["TMP"], "sparse")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("in the middle"), 10<<20); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Truncate(size), f.Close()); err != nil {
		t.Fatal(err)
	}
	s.does("vol-create-as a sparse 1M")
	s.does("vol-upload sparse TMP/sparse --pool a --sparse")
	s.does("vol-info sparse --pool a", "Capacity: 64.00 MiB Allocation: [0-9.]+ KiB")
	s.does("vol-download sparse TMP/down --pool a --sparse")
	for _, path := range []string{filepath.Join(s.words["DIR"], "a", "sparse"), filepath.Join(s.words["TMP"], "down")} {
		got, err := os.ReadFile(path)
		if err != nil || !bytes.Equal(got, content) {
			t.Errorf("%s differs, %v", path, err)
		}
	}
	s.does("vol-delete sparse --pool a")
}

// TestUpload_ClientDisconnects: an upload that is cut off holds no lock and no file.
func TestUpload_ClientDisconnects(t *testing.T) {
	h := serve(t, withPools(t))
	pools := h.server.Handlers.Pools
	dir := t.TempDir()
	p, err := pools.Create(t.Context(), scope.Daemon("a test"), "<pool type='dir'><name>a</name><target><path>"+dir+"</path></target></pool>", true, volume.NoBuild)
	if err != nil {
		t.Fatal(err)
	}
	v, err := p.CreateVolume(t.Context(), scope.Daemon("a test"), "<volume><name>disk</name><capacity>1000</capacity></volume>", volume.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w := h.open("")
	header := w.openStream(xdr.ProcStorageVolUpload, &xdr.WithVolumeOffsetLengthFlags{Volume: storagecalls.WireVolume(v)})
	w.data(header, xdr.StatusContinue, []byte("half"))
	if len(p.Jobs()) != 1 {
		t.Fatalf("jobs %v", p.Jobs())
	}
	_ = w.conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for len(p.Jobs()) > 0 {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal("the upload continues after its client has disconnected")
		}
	}
	if err := p.DeleteVolume(t.Context(), scope.Daemon("a test"), "disk"); err != nil {
		t.Error(err)
	}
}

// virt-install creates a pool for the directory of an image, and uses the volumes that it finds there.
func TestVirtInstall_StorageCalls(t *testing.T) {
	h := serve(t, withPools(t))
	dir := t.TempDir()
	image := filepath.Join(dir, "root.img")
	if err := os.WriteFile(image, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	w := h.open("")
	w.refused(xdr.ProcStorageVolLookupByPath, &xdr.WithPath{Path: image}, rpc.CodeNoVolume)
	w.refused(xdr.ProcStoragePoolLookupByName, &xdr.WithName{Name: "dir"}, rpc.CodeNoPool)
	var made xdr.WithPool
	w.must(xdr.ProcStoragePoolDefineXML, &xdr.WithXMLFlags{XML: "<pool type=\"dir\">\n  <name>dir</name>\n  <target>\n    <path>" + dir + "</path>\n  </target>\n</pool>\n"}, &made)
	w.must(xdr.ProcStoragePoolCreate, &xdr.WithPoolFlags{Pool: made.Pool}, &rpc.Void{})
	w.must(xdr.ProcStoragePoolSetAutostart, &xdr.StoragePoolSetAutostartArgs{Pool: made.Pool, Autostart: true}, &rpc.Void{})
	var count xdr.WithCount
	w.must(xdr.ProcStoragePoolNumOfVolumes, &xdr.WithPool{Pool: made.Pool}, &count)
	var names xdr.WithNames
	w.must(xdr.ProcStoragePoolListVolumes, &xdr.StoragePoolListVolumesArgs{Pool: made.Pool, MaxNames: count.Count}, &names)
	if count.Count != 1 || names.Names[0] != "root.img" {
		t.Fatalf("%d volumes, %v", count.Count, names.Names)
	}
	var found xdr.WithVolume
	w.must(xdr.ProcStorageVolLookupByPath, &xdr.WithPath{Path: image}, &found)
	if found.Volume.Pool != "dir" || found.Volume.Key != image {
		t.Fatalf("found %+v", found.Volume)
	}
	w.must(xdr.ProcStoragePoolDestroy, &xdr.WithPool{Pool: made.Pool}, &rpc.Void{})
	w.refused(xdr.ProcStoragePoolListAllVolumes, &xdr.StoragePoolListAllVolumesArgs{Pool: made.Pool}, rpc.CodeOperationInvalid)
	w.refused(xdr.ProcStorageVolGetInfo, &found, rpc.CodeOperationInvalid)
}

// TestStream_InvalidHoles: a hole in a stream that is not sparse, and invalid holes, end
// the stream and nothing else.
func TestStream_InvalidHoles(t *testing.T) {
	h := serve(t, withPools(t))
	dir := t.TempDir()
	p, err := h.server.Handlers.Pools.Create(t.Context(), scope.Daemon("a test"), "<pool type='dir'><name>a</name><target><path>"+dir+"</path></target></pool>", true, volume.NoBuild)
	if err != nil {
		t.Fatal(err)
	}
	v, err := p.CreateVolume(t.Context(), scope.Daemon("a test"), "<volume><name>disk</name><capacity>1000</capacity></volume>", volume.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w := h.open("")
	for name, c := range map[string]struct {
		flags uint32
		hole  xdr.StreamHole
	}{
		"in a dense stream":   {0, xdr.StreamHole{Length: 10}},
		"negative":            {storagecalls.VolumeStreamSparse, xdr.StreamHole{Length: -1}},
		"empty":               {storagecalls.VolumeStreamSparse, xdr.StreamHole{}},
		"flags":               {storagecalls.VolumeStreamSparse, xdr.StreamHole{Length: 10, Flags: 1}},
		"more than any file":  {storagecalls.VolumeStreamSparse, xdr.StreamHole{Length: 1<<63 - 1}},
		"more than was given": {storagecalls.VolumeStreamSparse, xdr.StreamHole{Length: 501}},
	} {
		t.Run(name, func(t *testing.T) {
			st := w.openStream(xdr.ProcStorageVolUpload, &xdr.WithVolumeOffsetLengthFlags{Volume: storagecalls.WireVolume(v), Length: 500, Flags: c.flags})
			hole := st
			hole.Type = xdr.TypeStreamHole
			w.sendPacket(hole, &c.hole)
			e := new(xdr.NetError)
			if err := e.Decode(xdr.NewReader(w.expect(st, xdr.StatusError))); err != nil || rpc.Code(e.Code) != rpc.CodeInvalidArg {
				t.Fatalf("error %+v, %v", e, err)
			}
		})
	}
	w.works()
	if v, err := p.Volume("disk"); err != nil || v.Physical != 1000 {
		t.Errorf("%+v, %v", v, err)
	}
}
