package guest_test

import (
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/guest/blockjob"
	"github.com/lodge-kvm/lodge/internal/guest/console"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/guest/savestate"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
	"github.com/lodge-kvm/lodge/internal/word/scope/scopetest"
	"github.com/lodge-kvm/lodge/internal/word/topology"
)

// Each verb refuses the zero value of a scope, and changes nothing.
func TestVerbs_RefuseTheZeroScope(t *testing.T) {
	d := newDaemon(t)
	g := d.define(small("there"))
	ctx, none := d.ctx(), scope.Scope{}
	both, path := machine.Affect{Config: true}, d.dir+"/none"
	second := func(_ any, err error) error { return err }
	disk := "<disk type='file'><source file='" + path + "'/><target dev='vdb' bus='virtio'/></disk>"
	_, _, still := g.KeepStill(ctx, none)
	_, _, screen := console.Screenshot(ctx, g, none, 0)
	title := "a title"
	for verb, err := range map[string]error{
		"define":        second(guest.Define(ctx, d.Registry, none, small("new"), false)),
		"create":        second(guest.Create(ctx, d.Registry, none, small("new"), launch.StartOptions{})),
		"restore":       second(guest.Restore(ctx, d.Registry, none, path, savestate.SaveOptions{})),
		"saved XML":     second(savestate.SavedXML(ctx, d.Registry, none, path, false)),
		"edit saved":    savestate.RedefineSaved(ctx, d.Registry, none, path, savestate.SaveOptions{}),
		"copy NVRAM":    second(launch.CopyNVRAM(ctx, d.Registry, none, path, g.UUID())),
		"drop NVRAM":    launch.DropNVRAM(ctx, d.Registry, none, g.UUID()),
		"detach PCI":    provision.DetachFromHost(ctx, d.Registry, none, kernel.PCIAddress{}),
		"reattach PCI":  provision.ReattachToHost(ctx, d.Registry, none, kernel.PCIAddress{}),
		"start":         launch.Start(ctx, g, none, launch.StartOptions{}),
		"shutdown":      guest.Shutdown(ctx, g, none, guest.ShutdownDefault),
		"reboot":        guest.Reboot(ctx, g, none, guest.ShutdownDefault),
		"reset":         guest.Reset(ctx, g, none),
		"destroy":       guest.Destroy(ctx, g, none, false),
		"suspend":       guest.Suspend(ctx, g, none),
		"resume":        guest.Resume(ctx, g, none),
		"wake":          guest.Wake(ctx, g, none),
		"NMI":           guest.InjectNMI(ctx, g, none),
		"undefine":      guest.Undefine(ctx, g, none, guest.UndefineOptions{}),
		"rename":        guest.Rename(ctx, g, none, "other"),
		"autostart":     guest.SetAutostart(ctx, g, none, true),
		"autostart one": guest.SetAutostartOnce(ctx, g, none, true),
		"attach":        hotplug.Attach(ctx, g, none, disk, both),
		"detach":        hotplug.Detach(ctx, g, none, disk, both),
		"detach alias":  hotplug.DetachAlias(ctx, g, none, "virtio-disk1", both),
		"update":        hotplug.Update(ctx, g, none, disk, both, false),
		"resize":        hotplug.ResizeDisk(ctx, g, none, "vda", 1<<20),
		"commit":        blockjob.BlockCommit(ctx, g, none, "vda", blockjob.CommitOptions{}),
		"end job":       blockjob.EndBlockJob(ctx, g, none, "vda", false, false),
		"job speed":     blockjob.SetBlockJobSpeed(ctx, g, none, "vda", 1),
		"abort":         guest.AbortJob(ctx, g, none),
		"save":          savestate.Save(ctx, g, none, path, savestate.SaveOptions{}),
		"managed save":  savestate.ManagedSave(ctx, g, none, savestate.SaveOptions{}),
		"edit managed":  savestate.RedefineManagedSave(ctx, g, none, savestate.SaveOptions{}),
		"drop managed":  savestate.RemoveManagedSave(ctx, g, none),
		"dump":          savestate.Dump(ctx, g, none, path, savestate.DumpOptions{}),
		"console":       second(console.OpenConsole(ctx, g, none, "", machine.ConsoleOptions{})),
		"channel":       second(console.OpenChannel(ctx, g, none, "", machine.ConsoleOptions{})),
		"graphics":      console.OpenGraphics(ctx, g, none, 0, false, nil),
		"keys":          console.SendKeys(ctx, g, none, nil, 0),
		"screenshot":    screen,
		"monitor":       second(g.MonitorCommand(ctx, none, "info status", true)),
		"agent":         second(provision.AgentCommand(ctx, g, none, `{"execute":"guest-ping"}`, 0)),
		"freeze":        second(provision.Freeze(ctx, g, none, nil)),
		"thaw":          second(provision.Thaw(ctx, g, none)),
		"trim":          provision.Trim(ctx, g, none, 0),
		"time":          provision.SetTime(ctx, g, none, nil),
		"password":      provision.SetPassword(ctx, g, none, "root", "x", false),
		"agent's vCPUs": guest.SetAgentVCPUs(ctx, g, none, 1),
		"memory":        hotplug.SetMemory(ctx, g, none, 1<<28, both),
		"most memory":   hotplug.SetMaxMemory(ctx, g, none, 1<<28, both),
		"period":        hotplug.SetStatsPeriod(ctx, g, none, 1, both),
		"vCPUs":         hotplug.SetVCPUs(ctx, g, none, 1, hotplug.VCPUOptions{Affect: both}),
		"pin vCPU":      hotplug.PinVCPU(ctx, g, none, 0, topology.CPUSet{}, both),
		"pin emulator":  hotplug.PinEmulator(ctx, g, none, topology.CPUSet{}, both),
		"pin iothread":  hotplug.PinIOThread(ctx, g, none, 1, topology.CPUSet{}, both),
		"iothread":      hotplug.AddIOThread(ctx, g, none, 1, both),
		"tune":          hotplug.Tune(ctx, g, none, both, func(*domain.Definition) error { return nil }),
		"metadata":      guest.SetMetadata(ctx, g, none, guest.Title, &title, "", "", both),
		"policy":        guest.SetPolicy(ctx, g, none, guest.Crashed, "destroy", both),
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

// TestVerbs_RightLost: the calls that do not go through a guest's loop ask for the right themselves, too.
//
// Promise: A1
func TestVerbs_RightLost(t *testing.T) {
	d := newDaemon(t)
	g := d.define(small("there"))
	ctx, lost := d.ctx(), scopetest.Client(scopetest.Limits{Call: func(uuid string) error {
		if uuid != g.UUID() {
			t.Errorf("asked about %s", uuid)
		}
		return fault.New(fault.Denied, fault.Call, "no")
	}})
	second := func(_ any, err error) error { return err }
	for verb, err := range map[string]error{
		"console": second(console.OpenConsole(ctx, g, lost, "", machine.ConsoleOptions{})),
		"channel": second(console.OpenChannel(ctx, g, lost, "", machine.ConsoleOptions{})),
		"monitor": second(g.MonitorCommand(ctx, lost, "info status", true)),
		"agent":   second(provision.AgentCommand(ctx, g, lost, `{"execute":"guest-ping"}`, 0)),
	} {
		if !fault.Is(err, fault.Denied) {
			t.Errorf("%s: %v", verb, err)
		}
	}
}
