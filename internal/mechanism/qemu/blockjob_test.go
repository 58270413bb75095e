package qemu

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// saidOne returns a step as it is sent to QEMU.
func saidOne(t *testing.T, s Step) string {
	t.Helper()
	text, err := json.Marshal(s.Args)
	if err != nil {
		t.Fatal(err)
	}
	return s.Command + " " + string(text)
}

func TestCommit_Steps(t *testing.T) {
	for name, c := range map[string]struct {
		step Step
		want string
	}{
		"active": {
			Commit{Job: "commit-vda", Device: "libvirt-1-format", Top: 1, Base: 3}.Start(),
			`block-commit {"job-id":"commit-vda","device":"libvirt-1-format","top-node":"libvirt-1-format","base-node":"libvirt-3-format",` +
				`"filter-node-name":"libvirt-1-filter","auto-finalize":false,"auto-dismiss":false}`,
		},
		"below, bounded": {
			Commit{Job: "commit-vda", Device: "libvirt-CoR-vda", Top: 2, Base: 3, Backing: "base.qcow2", Speed: 1 << 20}.Start(),
			`block-commit {"job-id":"commit-vda","device":"libvirt-CoR-vda","top-node":"libvirt-2-format","base-node":"libvirt-3-format",` +
				`"filter-node-name":"libvirt-2-filter","backing-file":"base.qcow2","speed":1048576,"auto-finalize":false,"auto-dismiss":false}`,
		},
		"speed":    {SetJobSpeed("j", 0), `block-job-set-speed {"device":"j","speed":0}`},
		"cancel":   {CancelJob("j"), `job-cancel {"id":"j"}`},
		"complete": {CompleteJob("j"), `job-complete {"id":"j"}`},
		"finalize": {FinalizeJob("j"), `job-finalize {"id":"j"}`},
		"dismiss":  {DismissJob("j"), `job-dismiss {"id":"j"}`},
	} {
		if diff := cmp.Diff(c.want, saidOne(t, c.step)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// A file is not lent twice, and only files that QEMU holds are taken back.
func TestGrantWrite_Repeated(t *testing.T) {
	steps := func(all []Step) (texts []string) {
		for _, s := range all {
			texts = append(texts, saidOne(t, s))
		}
		return texts
	}
	write, read := os.Stdout, os.Stdin
	own := FDSetFile{FD: 7, Mark: "/images/base.qcow2"}
	toWrite, toRead := FDSetFile{FD: 8, Mark: writeMark}, FDSetFile{FD: 9, Mark: readMark}
	for name, c := range map[string]struct {
		held       []FDSet
		lend, back []string
	}{
		"nothing": {nil, []string{`add-fd {"fdset-id":3,"opaque":"lent to write"}`, `add-fd {"fdset-id":3,"opaque":"lent to read"}`}, nil},
		"as started": {
			[]FDSet{{ID: 3, Files: []FDSetFile{own}}, {ID: 4, Files: []FDSetFile{toWrite, toRead}}},
			[]string{`add-fd {"fdset-id":3,"opaque":"lent to write"}`, `add-fd {"fdset-id":3,"opaque":"lent to read"}`, `remove-fd {"fdset-id":3,"fd":7}`},
			nil,
		},
		"half": {
			[]FDSet{{ID: 3, Files: []FDSetFile{toWrite, own}}},
			[]string{`add-fd {"fdset-id":3,"opaque":"lent to read"}`, `remove-fd {"fdset-id":3,"fd":7}`},
			[]string{`remove-fd {"fdset-id":3,"fd":8}`},
		},
		"all": {
			[]FDSet{{ID: 3, Files: []FDSetFile{toWrite, toRead}}},
			nil,
			[]string{`remove-fd {"fdset-id":3,"fd":8}`, `remove-fd {"fdset-id":3,"fd":9}`},
		},
	} {
		if diff := cmp.Diff(c.lend, steps(GrantWrite(c.held, 3, write, read))); diff != "" {
			t.Errorf("%s: lend (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff(c.back, steps(RevokeWrite(c.held, 3))); diff != "" {
			t.Errorf("%s: take back (-want +got):\n%s", name, diff)
		}
	}
}
