package hostcalls

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel/kerneltest"
	"github.com/lodge-kvm/lodge/internal/mechanism/sandbox"
	"github.com/lodge-kvm/lodge/internal/mechanism/seclabel"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// Clients get the security models that separate guests. The model of the host's policy is first, as with libvirt.
func TestSecurityModels_SELinux(t *testing.T) {
	labels, err := seclabel.Find(kerneltest.Host(t, kerneltest.SELinux), "")
	if err != nil {
		t.Fatal(err)
	}
	h := &rpc.Handlers{Backends: rpc.Backends{Guests: &guest.Registry{Config: guest.Config{Isolation: &sandbox.Isolation{}, Labels: labels}}}}
	ret, err := nodeGetSecurityModel(t.Context(), h, nil, nil)
	if err != nil || string(ret.Model) != "selinux\x00" || string(ret.DOI) != "0\x00" {
		t.Errorf("the host's model is %q, %q (%v)", ret.Model, ret.DOI, err)
	}
	all := element("host")
	for _, m := range provision.SecurityModels(h.Guests) {
		appendNodes(all, describeModel(m))
	}
	text, err := xmltree.Format(all)
	if err != nil {
		t.Fatal(err)
	}
	const want = `<host>
  <secmodel>
    <model>selinux</model>
    <doi>0</doi>
    <baselabel type='kvm'>system_u:system_r:svirt_t:s0</baselabel>
    <baselabel type='qemu'>system_u:system_r:svirt_tcg_t:s0</baselabel>
  </secmodel>
  <secmodel>
    <model>dac</model>
    <doi>0</doi>
  </secmodel>
</host>
`
	if diff := cmp.Diff(want, text); diff != "" {
		t.Errorf("capabilities (-want +got):\n%s", diff)
	}
	v := &guest.View{Active: &domain.Definition{SecLabels: []domain.SecLabel{
		{Type: "dynamic", Model: "selinux", Label: "u:r:t:s0:c1,c2"}, {Type: "none", Model: "apparmor"}, {Type: "dynamic", Model: "dac", Label: "+1:+1"},
	}}}
	got := provision.SecurityLabels(h.Guests, v)
	if diff := cmp.Diff([]provision.SecurityLabel{{Model: "selinux", Label: "u:r:t:s0:c1,c2", Enforcing: true}, {Model: "dac", Label: "+1:+1", Enforcing: true}}, got); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	labels.Enforcing = false
	if got := provision.SecurityLabels(h.Guests, v); got[0].Enforcing || !got[1].Enforcing {
		t.Errorf("where the kernel only logs, they are %+v", got)
	}
}
