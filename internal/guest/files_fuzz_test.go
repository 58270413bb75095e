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
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/guest/savestate"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

const fuzzedGuest = `<domain type='qemu'><name>a</name><uuid>11111111-2222-3333-4444-555555555555</uuid><memory>65536</memory><vcpu>1</vcpu>
<os><type arch='x86_64' machine='pc-q35-7.2'>hvm</type></os><devices><controller type='pci' index='0' model='pcie-root'/>
<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='/a'/><target dev='vda' bus='virtio'/><address type='pci' domain='0' bus='0' slot='3' function='0'/></disk></devices></domain>`

// FuzzSavedImage reads a save image, which may come from any user. It is a valid one with arbitrary bytes over its
// beginning, and another definition in place of its own, or none. No such definition may create a different
// machine. A rewritten image must read as before, with the same stream behind the header.
func FuzzSavedImage(f *testing.F) {
	const stream = "QEVM and so on"
	f.Add([]byte{}, fuzzedGuest, "", uint32(0))
	f.Add([]byte{}, fuzzedGuest, fuzzedGuest, uint32(0))
	f.Add([]byte{}, fuzzedGuest, `<domain type='qemu'><name>b</name></domain>`, uint32(1))
	f.Add([]byte{}, fuzzedGuest+"\x00<cookie/>", fuzzedGuest, uint32(len(fuzzedGuest)+1))
	f.Add([]byte(savestate.SavePartial), fuzzedGuest, "", uint32(0))
	f.Add(append([]byte(savestate.SaveMagic), 2, 0, 0, 0, 0, 0, 0, 0x80), fuzzedGuest, "", uint32(0))
	f.Add(append([]byte(savestate.SaveMagic), 2, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 1), fuzzedGuest, "", uint32(0))
	file, err := os.Create(filepath.Join(f.TempDir(), "image"))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = file.Close() })
	f.Fuzz(func(t *testing.T, over []byte, xml, doc string, cookie uint32) {
		image := make([]byte, savestate.SaveHeaderLen, savestate.SaveHeaderLen+len(xml)+1+len(stream))
		copy(image, savestate.SaveMagic)
		for i, v := range []uint32{savestate.SaveVersion, uint32(len(xml) + 1), 1, 0, cookie} {
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
		read := func(o savestate.SaveOptions) (*savestate.SavedImage, error) {
			if _, err := file.Seek(0, io.SeekStart); err != nil {
				t.Fatal(err)
			}
			return savestate.ReadSaved(file, o)
		}
		saved, err := read(savestate.SaveOptions{})
		if err != nil {
			return
		}
		at, err := file.Seek(0, io.SeekCurrent)
		if err != nil || at > int64(len(image)) || len(saved.XML) > savestate.MaxSaveXML {
			t.Fatalf("after a definition of %d bytes the stream begins at %d of %d (%v)", len(saved.XML), at, len(image), err)
		}
		if _, err := read(savestate.SaveOptions{XML: saved.XML}); err != nil {
			t.Fatalf("its own definition does not fit the image: %v", err)
		}
		other, err := read(savestate.SaveOptions{XML: doc})
		if err != nil {
			return
		}
		if a, b := saved.Def, other.Def; a.Name != b.Name || a.UUID != b.UUID || a.OS.Machine != b.OS.Machine || a.Memory != b.Memory || a.VCPUs.Max != b.VCPUs.Max {
			t.Fatalf("another machine is taken for the saved one: %s %s, %s %s", a.Name, a.UUID, b.Name, b.UUID)
		}
		change, err := savestate.PlanHeader(file, savestate.SaveOptions{XML: doc, Then: domain.Paused})
		if err != nil {
			return
		}
		if !bytes.HasPrefix(image, change.Before) || len(change.After) != len(change.Before) {
			t.Fatalf("of %q\n%q is to become\n%q", image, change.Before, change.After)
		}
		if err := savestate.WriteHeader(file, change.After); err != nil {
			t.Fatal(err)
		}
		again, err := read(savestate.SaveOptions{})
		if err != nil || again.XML != other.XML || again.Running {
			t.Fatalf("redefined as\n%s\nit is read as\n%+v, %v", other.XML, again, err)
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
	steps := []hotplug.UndoCommand{{Command: "device_del", Args: json.RawMessage(`{"id":"net1"}`)}}
	add(0, machine.RunRecord{
		Name: "a", UUID: "u", ID: 3, XML: fuzzedGuest, PID: 7, Messages: []string{"m"}, NICs: []machine.HeldNIC{{Alias: "net0", IfName: "vnet0", Bridge: "br0"}},
		FullDisks: []string{"vda"},
	})
	for kind, payload := range map[string]any{
		hotplug.MediaKind.Name:    hotplug.MediaOp{Live: drive, Saved: drive, Node: "n", Old: []uint{1, 2}, Undo: steps, Rest: steps},
		hotplug.AttachKind.Name:   hotplug.AttachOp{Device: drive, NIC: &machine.HeldNIC{Alias: "net1", IfName: "vnet1", Bridge: "br0"}, Undo: steps},
		hotplug.DetachKind.Name:   hotplug.DetachOp{Alias: "net1", Saved: drive},
		hotplug.UpdateKind.Name:   hotplug.UpdateOp{OfActive: fuzzedGuest, Active: fuzzedGuest, OfConfig: fuzzedGuest, Config: fuzzedGuest, VCPUs: 1, Balloon: new(uint64)},
		savestate.SaveKind.Name:   savestate.SaveOp{MemoryImage: savestate.MemoryImage{Path: "/s", WasRunning: true, Made: &savestate.MadeFile{Path: "/s", Device: 1, Inode: 2}}, Managed: true},
		savestate.DumpKind.Name:   savestate.DumpOp{MemoryImage: savestate.MemoryImage{Path: "/s"}},
		hotplug.IOThreadKind.Name: hotplug.IOThreadOp{ID: 1, Config: true},
		hotplug.CleanupKind.Name:  hotplug.CleanupOp{Alias: "net1", Objects: steps, NIC: &machine.HeldNIC{Alias: "net1", IfName: "vnet1", Bridge: "br0"}},
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
	r := newRegistry(machine.Config{Log: slog.New(slog.DiscardHandler)})
	journals := []struct {
		file string
		read func(dir string) (any, error)
	}{
		{machine.RecordFile, func(dir string) (any, error) { return machine.ReadRecord(dir) }},
		{"operation-a.json", func(dir string) (any, error) { return readOperation(r, dir) }},
		{"labels.json", func(dir string) (any, error) {
			l, err := provision.ReadLabels(r, takenUUID, filepath.Join(dir, "labels.json"))
			return l.Labelled, err
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
func readOperation(r *machine.Registry, dir string) (any, error) {
	records, err := operation.FileJournal{Dir: dir}.Read()
	if err != nil || len(records) == 0 {
		return nil, errors.Join(err, os.ErrNotExist)
	}
	run := machine.NewInstance(machine.RunRecord{Name: "a", UUID: records[0].Owner}, dir, kernel.Root{}, r.Log)
	return records[0], r.SetOperations(run, records)
}
