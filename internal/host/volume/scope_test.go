package volume

import (
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// A scope that was lost on the way gives no rights: each verb refuses the zero value, and changes nothing.
func TestVerbs_ZeroScope(t *testing.T) {
	d := newDaemon(t)
	p := d.dirPool("p")
	d.volume(p, volXML("disk", "raw", mib, ""))
	ctx, none := t.Context(), scope.Scope{}
	for verb, err := range map[string]error{
		"define":    second(d.Define(ctx, none, dirXML("q", t.TempDir()), false)),
		"create":    second(d.Create(ctx, none, dirXML("q", t.TempDir()), false, NoBuild)),
		"build":     p.Build(ctx, none, MakeTarget),
		"delete":    p.Delete(ctx, none),
		"start":     p.Start(ctx, none, NoBuild),
		"stop":      p.Stop(ctx, none),
		"undefine":  p.Undefine(ctx, none),
		"autostart": p.SetAutostart(ctx, none, true),
		"refresh":   p.Refresh(ctx, none),
		"volume":    second(p.CreateVolume(ctx, none, volXML("new", "raw", mib, ""), CreateOptions{})),
		"clone":     second(p.CloneVolume(ctx, none, volXML("new", "raw", mib, ""), p, "disk", CreateOptions{})),
		"fill":      second(p.FillVolume(ctx, none, "new", nil)),
		"resize":    p.ResizeVolume(ctx, none, "disk", 2*mib, ResizeOptions{}),
		"wipe":      p.WipeVolume(ctx, none, "disk", false),
		"remove":    p.DeleteVolume(ctx, none, "disk"),
		"upload":    second(p.Upload(ctx, none, "disk", 0, 0)),
		"download":  second(p.Download(ctx, none, "disk", 0, 0)),
	} {
		if !fault.Is(err, fault.Denied) {
			t.Errorf("%s: %v", verb, err)
		}
	}
	if all, err := p.Volumes(); err != nil || len(all) != 1 || len(d.List()) != 1 || all[0].Name != "disk" {
		t.Errorf("there are %d pools, with %v (%v)", len(d.List()), all, err)
	}
}
