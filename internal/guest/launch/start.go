package launch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/decision/lifecycle"
	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/guest/savestate"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemu"
	"github.com/lodge-kvm/lodge/internal/word/device"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// boundStart asks the client's quota about a start. The definition of a saved image is completed first, so
// that it counts as much as if it were defined. The weights in a managed image are left out, because they
// were checked when the guest got them.
func boundStart(g *machine.Guest, sc scope.Scope, def *domain.Definition, submitted string, from *savestate.SavedImage) error {
	if from == nil {
		return machine.AskBound(sc, g.Identity, def, submitted)
	}
	whole, err := savestate.Completed(def)
	if err != nil {
		return err
	}
	if from.Managed {
		whole.Tune.Shares, whole.Blkio.Weight = 0, 0
	}
	return machine.AskBound(sc, g.Identity, whole, submitted)
}

// StartOptions are the options of one start. The zero value boots the guest and sets its vCPUs going.
type StartOptions struct {
	// Paused leaves the vCPUs stopped.
	Paused bool
	// AutoDestroy destroys the guest when Owner is closed, that is, when its client disconnects.
	AutoDestroy bool
	Owner       <-chan struct{}
	// OwnerMay reports whether that client may still destroy the guest when it disconnects: the guest may
	// have been given to another client by then. Nil permits it.
	OwnerMay func(uuid string) error
	// ForceBoot deletes a managed save image instead of restoring the guest from it.
	ForceBoot   bool
	BypassCache bool
	Validate    bool
	ResetNVRAM  bool
	// Priority orders the starts that wait for admission: lower numbers start first.
	Priority int
}

// Start starts a guest that is shut off. A guest with a managed save image is restored from that image.
func Start(ctx context.Context, g *machine.Guest, sc scope.Scope, o StartOptions) error {
	return g.Perform(ctx, sc, lifecycle.Start, domain.JobStart, 0, func() (machine.Work, error) { return PlanAnyStart(g, o) })
}

// PlanAnyStart plans a start of the stored definition: a restore if there is a managed save image, else a
// cold start.
func PlanAnyStart(g *machine.Guest, o StartOptions) (machine.Work, error) {
	if err := g.AdmitRun(); err != nil {
		return nil, err
	}
	if g.Inactive == nil {
		return nil, fault.New(fault.WrongState, fault.Domain, "domain %q has no persistent definition to start from", g.Record.Name)
	}
	if g.Record.ManagedSave && !o.ForceBoot {
		return planManagedRestore(g, o), nil
	}
	if err := savestate.DropManagedSave(g); err != nil {
		return nil, err
	}
	return PlanStart(g, g.Inactive, "", o), nil
}

// PlanStart plans a cold start of def.
func PlanStart(g *machine.Guest, def *domain.Definition, submitted string, o StartOptions) machine.Work {
	return func(ctx context.Context, sc scope.Scope) (machine.Settle, error) {
		r, err := launchGuest(ctx, g, sc, def, submitted, o, nil)
		if err != nil {
			return nil, err
		}
		return func() error {
			commitStart(g, r, begun(r, false, o), o)
			return nil
		}, nil
	}
}

// commitStart makes a launched run the guest's current run. It runs in the guest's loop.
func commitStart(g *machine.Guest, r *machine.Instance, f lifecycle.Started, o StartOptions) {
	g.Instance = r
	r.Resuming = false
	g.Quarantine = ""
	failpoint.Reach("launch.take")
	g.State.Policy = machine.Policy(r.Definition)
	g.Revived()
	g.Reg.SetID(g, r.ID)
	g.Live.Store(r)
	for _, change := range r.Dropped {
		g.Announce(change)
	}
	g.Advance(f)
	g.Reg.HasStarted(g.Identity)
	WatchTPM(g, r)
	if r.AutoDestroy {
		go destroyWith(g, o, r)
	}
	if len(g.Destroyers) > 0 { // it was destroyed while it started
		g.Advance(lifecycle.Ending{Reason: domain.ReasonDestroyed})
		r.End(machine.EndNow)
	}
}

// destroyWith destroys the guest when its owner disconnects, unless that client may no longer destroy it.
func destroyWith(g *machine.Guest, o StartOptions, r *machine.Instance) {
	select {
	case <-o.Owner:
	case <-r.Process.Exited():
		return
	case <-g.Ended:
		return
	}
	err := g.Destroy(g.Reg.Life, scope.Daemon("the end of a guest whose client has gone").WithAuthorize(o.OwnerMay), false, r)
	if fault.Is(err, fault.Denied) {
		err = errors.Join(err, g.Change(g.Reg.Life, scope.Daemon("the end of a guest whose client has gone"), "", func() error { return endWithNoClient(g, r) }))
	}
	if err != nil && !errors.Is(err, machine.ErrForgotten) {
		g.Log.Warn("cannot destroy the guest of a disconnected client", "error", err)
	}
}

// endWithNoClient lets the guest run on without its client: it clears AutoDestroy. It runs in the guest's loop.
func endWithNoClient(g *machine.Guest, r *machine.Instance) error {
	if g.Instance == r {
		r.AutoDestroy = false
		g.WriteInstance()
	}
	return nil
}

// launchGuest starts QEMU for a definition and resumes the vCPUs, unless the options or the saved image say
// otherwise. If it fails, it releases everything it took. A failed restore still returns its instance, which
// says whether the guest ran from the image.
func launchGuest(ctx context.Context, g *machine.Guest, sc scope.Scope, def *domain.Definition, submitted string, o StartOptions, from *savestate.SavedImage) (r *machine.Instance, err error) {
	if err := boundStart(g, sc, def, submitted, from); err != nil {
		return nil, err
	}
	_ = g.Reg.MakeDirs() // a missing directory is reported by the step that writes there
	def = def.Clone()
	if from != nil && def.GenID != "" {
		def.GenID = uuid.NewString() // the guest may have run on from this image before, and must be told
	}
	fences := g.View().Fences
	sc = sc.WithNotedFolders(fences)
	qemu.AssignAliases(def)
	l := &Launch{Guest: g, Sc: sc, opts: o, From: from, Instance: machine.NewInstance(machine.InstanceRecord{
		Name: def.Name, UUID: def.UUID, ID: g.Reg.NewID(), Started: time.Now(), Since: time.Now(), Submitted: submitted, Fences: fences,
		AutoDestroy: o.AutoDestroy && o.Owner != nil, FromManaged: from != nil && from.Managed,
	}, g.Reg.GuestDir(def.UUID), g.Reg.Kernel, g.Log)}
	l.Instance.Definition = def
	l.Instance.Guest = g
	if err := g.Reg.GiveOperations(l.Instance, nil); err != nil {
		return nil, err
	}
	defer func() {
		l.closeFiles()
		if err != nil {
			l.Unwind(ctx, sc)
			err = fmt.Errorf("cannot start domain '%s': %w", def.Name, err)
			if from != nil {
				r = l.Instance
			}
		}
	}()
	if err := within(ctx, machine.StartLimit, l.checkHost, l.CheckHostDevices, l.makeDirectory, l.takeUser, l.takeLabel, l.journal, l.reserve, l.takeHostDevices, l.findDisks, l.makeNVRAM, l.openFiles,
		l.labelFiles, l.AttachNICs, l.claimVSock, l.makeGroup, l.startTPMs, l.choosePorts); err != nil {
		return nil, err
	}
	if err := l.runAdmitted(ctx); err != nil {
		return nil, err
	}
	if err := within(ctx, l.limit(), l.sealOwn, l.ReadBack, l.settle, l.load, l.recordRunning, l.resumeVCPUs); err != nil {
		return nil, err
	}
	return l.Instance, nil
}

// findDisks opens the images of the disks. A missing disk is dropped if its startup policy allows that.
func (l *Launch) findDisks(ctx context.Context) error {
	l.plan.Disks = map[string]device.DiskAttachment{}
	fences, run := l.Guest.View().Fences, l.Instance
	run.Hold("disks", func(ctx context.Context) error { return provision.TakeBackDisks(ctx, l.Guest.Reg, run) })
	for _, d := range slices.Clone(l.Instance.Definition.Devices.Disks) {
		a, present, err := provision.FindDisk(ctx, l.Guest.Reg, machine.Fenced(l.Sc, fences, d), l.Instance, d)
		if missing := (*provision.Absence)(nil); errors.As(err, &missing) && l.mayLack(d.StartupPolicy, provision.IsDrive(d)) {
			l.dropDisk(d, err)
			continue
		}
		if err != nil {
			return err
		}
		if present {
			l.plan.Disks[d.Alias] = a
		}
		if err := hotplug.CheckKey(l.Guest.Reg, d); err != nil {
			return err
		}
	}
	qemu.SetChains(&run.Definition.Devices, l.plan.Disks)
	if len(run.Dropped) > 0 {
		return l.journal(ctx)
	}
	return nil
}

// AttachNICs makes the host's interfaces of the NICs. The name of each is journalled before the interface
// is made.
func (l *Launch) AttachNICs(ctx context.Context) error {
	l.plan.NICs = map[string]*device.NICAttachment{}
	for _, n := range l.Instance.Definition.Devices.NICs {
		before := slices.Clip(l.Instance.NICs)
		a, release, err := provision.AttachNIC(ctx, l.Guest.Reg, l.Sc, l.Instance.Definition, n, func(ifName string) error {
			l.Instance.NICs = append(before, machine.HeldNIC{Alias: n.Alias, IfName: ifName})
			return l.journal(ctx)
		})
		if err != nil {
			return err
		}
		if a == nil {
			continue // type user: QEMU needs no interface of the host
		}
		l.Instance.Hold("interface "+a.IfName, release)
		l.plan.NICs[n.Alias] = a
		n.Target = a.IfName
		failpoint.Reach("launch.nic")
		l.Instance.NICs = append(before, machine.HeldNIC{Alias: n.Alias, IfName: a.IfName, Bridge: a.Bridge})
	}
	if len(l.Instance.NICs) == 0 {
		return nil
	}
	return l.journal(ctx)
}

// claimVSock reserves a context id for the guest's vsock device.
func (l *Launch) claimVSock(context.Context) (err error) {
	if v := l.Instance.Definition.Devices.VSock; v != nil {
		l.plan.VSock, err = qemu.ClaimVSock(v)
	}
	return err
}

// closeFiles closes the daemon's copies of the files of the plan, whether QEMU has been given them or not.
func (l *Launch) closeFiles() { provision.ClosePlan(&l.plan) }

// endPatience is how long to wait, after a failure, for the kernel to report that the process has ended. In
// that case QEMU's own message is the better reason.
const endPatience = time.Second
