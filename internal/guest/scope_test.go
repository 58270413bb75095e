package guest_test

import (
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
	"github.com/lodge-kvm/lodge/internal/word/topology"
)

// Each verb refuses the zero value of a scope, and changes nothing.
func TestVerbs_RefuseTheZeroScope(t *testing.T) {
	d := newDaemon(t)
	g := d.define(small("there"))
	ctx, none := d.ctx(), scope.Scope{}
	both, path := guest.Affect{Config: true}, d.dir+"/none"
	second := func(_ any, err error) error { return err }
	disk := "<disk type='file'><source file='" + path + "'/><target dev='vdb' bus='virtio'/></disk>"
	_, _, still := g.KeepStill(ctx, none)
	_, _, screen := g.Screenshot(ctx, none, 0)
	title := "a title"
	for verb, err := range map[string]error{
		"define":        second(d.Define(ctx, none, small("new"), false)),
		"create":        second(d.Create(ctx, none, small("new"), guest.StartOptions{})),
		"restore":       second(d.Restore(ctx, none, path, guest.SaveOptions{})),
		"saved XML":     second(d.SavedXML(ctx, none, path, false)),
		"edit saved":    d.RedefineSaved(ctx, none, path, guest.SaveOptions{}),
		"copy NVRAM":    second(d.CopyNVRAM(ctx, none, path, g.UUID())),
		"drop NVRAM":    d.DropNVRAM(ctx, none, g.UUID()),
		"detach PCI":    d.DetachFromHost(ctx, none, kernel.PCIAddress{}),
		"reattach PCI":  d.ReattachToHost(ctx, none, kernel.PCIAddress{}),
		"start":         g.Start(ctx, none, guest.StartOptions{}),
		"shutdown":      g.Shutdown(ctx, none, guest.ShutdownDefault),
		"reboot":        g.Reboot(ctx, none, guest.ShutdownDefault),
		"reset":         g.Reset(ctx, none),
		"destroy":       g.Destroy(ctx, none, false),
		"suspend":       g.Suspend(ctx, none),
		"resume":        g.Resume(ctx, none),
		"wake":          g.Wake(ctx, none),
		"NMI":           g.InjectNMI(ctx, none),
		"undefine":      g.Undefine(ctx, none, guest.UndefineOptions{}),
		"rename":        g.Rename(ctx, none, "other"),
		"autostart":     g.SetAutostart(ctx, none, true),
		"autostart one": g.SetAutostartOnce(ctx, none, true),
		"attach":        g.Attach(ctx, none, disk, both),
		"detach":        g.Detach(ctx, none, disk, both),
		"detach alias":  g.DetachAlias(ctx, none, "virtio-disk1", both),
		"update":        g.Update(ctx, none, disk, both, false),
		"resize":        g.ResizeDisk(ctx, none, "vda", 1<<20),
		"commit":        g.BlockCommit(ctx, none, "vda", guest.CommitOptions{}),
		"end job":       g.EndBlockJob(ctx, none, "vda", false, false),
		"job speed":     g.SetBlockJobSpeed(ctx, none, "vda", 1),
		"abort":         g.AbortJob(ctx, none),
		"save":          g.Save(ctx, none, path, guest.SaveOptions{}),
		"managed save":  g.ManagedSave(ctx, none, guest.SaveOptions{}),
		"edit managed":  g.RedefineManagedSave(ctx, none, guest.SaveOptions{}),
		"drop managed":  g.RemoveManagedSave(ctx, none),
		"dump":          g.Dump(ctx, none, path, guest.DumpOptions{}),
		"console":       second(g.OpenConsole(ctx, none, "", guest.ConsoleOptions{})),
		"channel":       second(g.OpenChannel(ctx, none, "", guest.ConsoleOptions{})),
		"graphics":      g.OpenGraphics(ctx, none, 0, false, nil),
		"keys":          g.SendKeys(ctx, none, nil, 0),
		"screenshot":    screen,
		"monitor":       second(g.MonitorCommand(ctx, none, "info status", true)),
		"agent":         second(g.AgentCommand(ctx, none, `{"execute":"guest-ping"}`, 0)),
		"freeze":        second(g.Freeze(ctx, none, nil)),
		"thaw":          second(g.Thaw(ctx, none)),
		"trim":          g.Trim(ctx, none, 0),
		"time":          g.SetTime(ctx, none, nil),
		"password":      g.SetPassword(ctx, none, "root", "x", false),
		"agent's vCPUs": g.SetAgentVCPUs(ctx, none, 1),
		"memory":        g.SetMemory(ctx, none, 1<<28, both),
		"most memory":   g.SetMaxMemory(ctx, none, 1<<28, both),
		"period":        g.SetStatsPeriod(ctx, none, 1, both),
		"vCPUs":         g.SetVCPUs(ctx, none, 1, guest.VCPUOptions{Affect: both}),
		"pin vCPU":      g.PinVCPU(ctx, none, 0, topology.CPUSet{}, both),
		"pin emulator":  g.PinEmulator(ctx, none, topology.CPUSet{}, both),
		"pin iothread":  g.PinIOThread(ctx, none, 1, topology.CPUSet{}, both),
		"iothread":      g.AddIOThread(ctx, none, 1, both),
		"tune":          g.Tune(ctx, none, both, func(*domain.Definition) error { return nil }),
		"metadata":      g.SetMetadata(ctx, none, guest.Title, &title, "", "", both),
		"policy":        g.SetPolicy(ctx, none, guest.Crashed, "destroy", both),
		"template":      g.MakeTemplate(ctx, none),
		"no template":   g.EndTemplate(ctx, none, nil),
		"keep still":    still,
	} {
		if !fault.Is(err, fault.Denied) {
			t.Errorf("%s: %v", verb, err)
		}
	}
	if all := d.All(); len(all) != 1 || all[0].Name() != "there" || all[0].View().State.Active() {
		t.Errorf("there are %d guests", len(all))
	}
}
