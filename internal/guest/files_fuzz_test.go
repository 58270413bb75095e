package guest

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/atomicfile"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

const machine = `<domain type='qemu'><name>a</name><uuid>11111111-2222-3333-4444-555555555555</uuid><memory>65536</memory><vcpu>1</vcpu>
<os><type arch='x86_64' machine='pc-q35-7.2'>hvm</type></os><devices><controller type='pci' index='0' model='pcie-root'/>
<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='/a'/><target dev='vda' bus='virtio'/><address type='pci' domain='0' bus='0' slot='3' function='0'/></disk></devices></domain>`

// FuzzSavedImage reads a save image, which may come from any user. It is a valid one with arbitrary bytes over its
// beginning, and another definition in place of its own, or none. No such definition may create a different
// machine. A rewritten image must read as before, with the same stream behind the header.
func FuzzSavedImage(f *testing.F) {
	const stream = "QEVM and so on"
	f.Add([]byte{}, machine, "", uint32(0))
	f.Add([]byte{}, machine, machine, uint32(0))
	f.Add([]byte{}, machine, `<domain type='qemu'><name>b</name></domain>`, uint32(1))
	f.Add([]byte{}, machine+"\x00<cookie/>", machine, uint32(len(machine)+1))
	f.Add([]byte(savePartial), machine, "", uint32(0))
	f.Add(append([]byte(saveMagic), 2, 0, 0, 0, 0, 0, 0, 0x80), machine, "", uint32(0))
	f.Add(append([]byte(saveMagic), 2, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 1), machine, "", uint32(0))
	file, err := os.Create(filepath.Join(f.TempDir(), "image"))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = file.Close() })
	f.Fuzz(func(t *testing.T, over []byte, xml, doc string, cookie uint32) {
		image := make([]byte, saveHeaderLen, saveHeaderLen+len(xml)+1+len(stream))
		copy(image, saveMagic)
		for i, v := range []uint32{saveVersion, uint32(len(xml) + 1), 1, 0, cookie} {
			binary.NativeEndian.PutUint32(image[16+4*i:], v)
		}
		image = append(append(append(image, xml...), 0), stream...)
		copy(image, over)
		if err := file.Truncate(0); err != nil {
			t.Fatal(err)
		}
		if _, err := file.WriteAt(image, 0); err != nil {
			t.Fatal(err)
		}
		read := func(o SaveOptions) (*savedImage, error) {
			if _, err := file.Seek(0, io.SeekStart); err != nil {
				t.Fatal(err)
			}
			return readSaved(file, o)
		}
		saved, err := read(SaveOptions{})
		if err != nil {
			return
		}
		at, err := file.Seek(0, io.SeekCurrent)
		if err != nil || at > int64(len(image)) || len(saved.xml) > maxSaveXML {
			t.Fatalf("after a definition of %d bytes the stream begins at %d of %d (%v)", len(saved.xml), at, len(image), err)
		}
		if _, err := read(SaveOptions{XML: saved.xml}); err != nil {
			t.Fatalf("its own definition does not fit the image: %v", err)
		}
		other, err := read(SaveOptions{XML: doc})
		if err != nil {
			return
		}
		if a, b := saved.def, other.def; a.Name != b.Name || a.UUID != b.UUID || a.OS.Machine != b.OS.Machine || a.Memory != b.Memory || a.VCPUs.Max != b.VCPUs.Max {
			t.Fatalf("another machine is taken for the saved one: %s %s, %s %s", a.Name, a.UUID, b.Name, b.UUID)
		}
		change, err := planHeader(file, SaveOptions{XML: doc, Then: domain.Paused})
		if err != nil {
			return
		}
		if !bytes.HasPrefix(image, change.Before) || len(change.After) != len(change.Before) {
			t.Fatalf("of %q\n%q is to become\n%q", image, change.Before, change.After)
		}
		if err := writeHeader(file, change.After); err != nil {
			t.Fatal(err)
		}
		again, err := read(SaveOptions{})
		if err != nil || again.xml != other.xml || again.running {
			t.Fatalf("redefined as\n%s\nit is read as\n%+v, %v", other.xml, again, err)
		}
		now, err := os.ReadFile(file.Name())
		if err != nil || !bytes.Equal(now[at:], image[at:]) {
			t.Fatalf("the stream has changed (%v)", err)
		}
	})
}

// FuzzJournals reads the files of a guest's run directory with arbitrary content. Accepted content must read the
// same after it is written again.
func FuzzJournals(f *testing.F) {
	add := func(which uint8, value any) {
		text, err := json.Marshal(value)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(which, text)
	}
	const drive = `<disk type='file' device='cdrom'><source file='/a' index='2'/><target dev='sda' bus='sata'/></disk>`
	steps := []undoing{{Command: "device_del", Args: json.RawMessage(`{"id":"net1"}`)}}
	add(0, runRecord{
		Name: "a", UUID: "u", ID: 3, XML: machine, PID: 7, Messages: []string{"m"}, NICs: []heldNIC{{Alias: "net0", IfName: "vnet0", Bridge: "br0"}},
		NoRoom: []string{"vda"},
	})
	for kind, payload := range map[string]any{
		mediaKind.Name:    mediaChange{Live: drive, Saved: drive, Node: "n", Old: []uint{1, 2}, Undo: steps, Rest: steps},
		attachKind.Name:   attach{Device: drive, NIC: &heldNIC{Alias: "net1", IfName: "vnet1", Bridge: "br0"}, Undo: steps},
		detachKind.Name:   detach{Alias: "net1", Saved: drive},
		updateKind.Name:   update{OfActive: machine, Active: machine, OfConfig: machine, Config: machine, VCPUs: 1, Balloon: new(uint64)},
		saveKind.Name:     save{memoryImage: memoryImage{Path: "/s", WasRunning: true, Made: &madeFile{Path: "/s", Device: 1, Inode: 2}}, Managed: true},
		dumpKind.Name:     dump{memoryImage: memoryImage{Path: "/s"}},
		iothreadKind.Name: iothreadAddition{ID: 1, Config: true},
		cleanupKind.Name:  cleanup{Alias: "net1", Objects: steps, NIC: &heldNIC{Alias: "net1", IfName: "vnet1", Bridge: "br0"}},
	} {
		text, err := json.Marshal(payload)
		if err != nil {
			f.Fatal(err)
		}
		add(1, operation.Record{ID: "a", Kind: kind, Version: 1, Owner: "u", Scope: scope.Record{Granted: true, Folders: []string{"/a"}}, Payload: text})
	}
	add(2, map[string]any{"Label": "s", "Files": []any{map[string]any{"Path": "/a", "Was": "system_u:object_r:x_t:s0"}}})
	for which := range uint8(3) {
		f.Add(which, []byte("null"))
		f.Add(which, []byte(`{"Kind":"media","Version":1,"Payload":{"Undo":[null],"Live":"<disk/>","NIC":{}}}`))
	}
	r := newRegistry(Config{Log: slog.New(slog.DiscardHandler)})
	journals := []struct {
		file string
		read func(dir string) (any, error)
	}{
		{runRecordFile, func(dir string) (any, error) { return readRunRecord(dir) }},
		{"operation-a.json", func(dir string) (any, error) { return readOperation(r, dir) }},
		{"labels.json", func(dir string) (any, error) {
			l, err := r.readLabels(takenUUID, filepath.Join(dir, "labels.json"))
			return l.labelled, err
		}},
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, which uint8, text []byte) {
		j := journals[int(which)%len(journals)]
		path := filepath.Join(dir, j.file)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		value, err := j.read(dir)
		if err != nil {
			return
		}
		if err := atomicfile.WriteJSON(path, value); err != nil {
			t.Fatalf("the read content cannot be written: %v", err)
		}
		again, err := j.read(dir)
		if err != nil {
			t.Fatalf("the written content cannot be read: %v", err)
		}
		once, _ := json.Marshal(value)
		if twice, err := json.Marshal(again); err != nil || !reflect.DeepEqual(once, twice) {
			t.Fatalf("%s\nis read again as\n%s", once, twice)
		}
	})
}

// readOperation reads the record of an operation, and opens it as a run would.
func readOperation(r *Registry, dir string) (any, error) {
	records, err := operation.Files{Dir: dir}.Read()
	if err != nil || len(records) == 0 {
		return nil, errors.Join(err, os.ErrNotExist)
	}
	run := newRun(runRecord{Name: "a", UUID: records[0].Owner}, dir, kernel.Root{}, r.log)
	return records[0], r.giveOperations(run, records)
}
