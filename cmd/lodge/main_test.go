package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/qemu"
)

// lodge runs the command line and gives what it prints.
func lodge(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	c := command()
	c.SetArgs(args)
	c.SetOut(&out)
	c.SetErr(&out)
	err := c.ExecuteContext(t.Context())
	return out.String(), err
}

func TestProbeSaysWhyAnAcceleratorDoesNotWork(t *testing.T) {
	var out bytes.Buffer
	err := showCapabilities(&out, &qemu.Capabilities{
		Binary: qemu.Identity{Path: "/usr/bin/qemu"}, Arch: "x86_64", Version: qemu.Version{Major: 7, Minor: 2, Micro: 22},
		Machines: []qemu.Machine{{Name: "pc-q35-7.2", Alias: "q35", MaxCPUs: 288}, {Name: "pc-q35-7.1"}},
		Accelerators: []qemu.Accelerator{
			{Name: "kvm", Reason: "the guest did not run"},
			{Name: "tcg", Usable: true, Reason: "a trial guest ran", HostModel: qemu.HostModel{Base: "EPYC"}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"/usr/bin/qemu: QEMU 7.2.22, x86_64\n",
		"  kvm: does not work: the guest did not run\n",
		"  tcg: works: a trial guest ran\n    processor models: 0; -cpu host: does not work; nearest to the host: EPYC\n",
		"  q35 = pc-q35-7.2, up to 288 processors\n  and 2 in all\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, out.String())
		}
	}
}

func TestWhatCannotBeDoneSaysWhy(t *testing.T) {
	nowhere := filepath.Join(t.TempDir(), "nowhere")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"probe", nowhere}, nowhere},
		{[]string{"lab", "start", "--socket", nowhere}, nowhere},
		{[]string{"lab", "start", "--socket", "sock"}, "neither a path"},
		{[]string{"lab", "start", "--samples", "0"}, "--samples"},
		{[]string{"lab", "report", nowhere}, nowhere},
		{[]string{"lab", "report"}, "arg"},
		{[]string{"nonsense"}, "nonsense"},
		{[]string{"lab", "nonsense"}, "nonsense"},
	} {
		if out, err := lodge(t, c.args...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("lodge %s: %v\n%s", strings.Join(c.args, " "), err, out)
		}
	}
}

func TestReportShowsKeptValues(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	out, err := lodge(t, "lab", "report", "../../docs/figures/lodged.ndjson", "--markdown", page)
	if err != nil || !strings.Contains(out, "start of a guest, lodged") {
		t.Errorf("%v\n%s", err, out)
	}
}
