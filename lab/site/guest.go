package site

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab/experiment"
	"github.com/lodge-kvm/lodge/lab/scenario"
	"github.com/lodge-kvm/lodge/lab/service"
	"github.com/lodge-kvm/lodge/lab/target"
	"github.com/lodge-kvm/lodge/lab/tuning"
)

// guest is one that answers.
type guest struct {
	*target.Guest
	steered
	to      *target.Target // that it can be migrated to; nil: nowhere
	growing sync.Mutex     // held by an event that adds memory
	memory  scenario.Size  // with what was added
}

func (g *guest) Address() string { return g.Guest.Address }

func (g *guest) Definition() string { return g.XML }

// disks puts those to use that are for something.
func (g *guest) disks(ctx context.Context) error {
	for _, d := range g.spec.Disks {
		if err := g.disk(ctx, d); err != nil {
			return fmt.Errorf("cannot use disk %s: %w", d.Name, err)
		}
	}
	return nil
}

// sectors are where partitions begin.
var sectors = map[string]int{"aligned": 2048, "misaligned": 63}

func (g *guest) disk(ctx context.Context, d scenario.Disk) error {
	sector, parted := sectors[d.Partition]
	scheduled := d.Scheduler != "" && d.Scheduler != tuning.AsFound
	if d.Use == "" && !parted && !scheduled {
		return nil
	}
	device, err := service.Device(ctx, g.session, d.Name)
	if err != nil {
		return err
	}
	if scheduled {
		offered, ok, err := service.Schedule(ctx, g.session, device, d.Scheduler)
		if err != nil {
			return err
		}
		if !ok {
			return &experiment.Unavailable{Reason: fmt.Sprintf("the guest's kernel has no scheduler %s for it: there are %s", d.Scheduler, offered)}
		}
	}
	if parted {
		if device, err = service.Partition(ctx, g.session, device, sector); err != nil {
			return err
		}
	}
	switch d.Use {
	case "":
		return nil
	case "swap":
		return service.Swap(ctx, g.session, device)
	}
	return g.mount(ctx, d.Name, device, d.Use)
}

// Serving says why the guest, or a service in it, does not serve any more.
func (g *guest) Serving(ctx context.Context) error {
	return g.serving(ctx, func() string { return "the guest is lost" + g.state(ctx) })
}

// Counters are what the guest's kernel has counted.
func (g *guest) Counters(ctx context.Context) (map[string]float64, error) {
	ctx, stop := soon(ctx)
	defer stop()
	u, err := g.session.Sample(ctx)
	if err != nil {
		return nil, err
	}
	all := map[string]float64{
		"cpus": float64(u.CPUs), "load": u.Load,
		"cpu_user_s": u.CPU.User.Seconds(), "cpu_system_s": u.CPU.System.Seconds(), "cpu_idle_s": u.CPU.Idle.Seconds(),
		"cpu_iowait_s": u.CPU.Wait.Seconds(), "cpu_steal_s": u.CPU.Steal.Seconds(),
		"memory_available_bytes": float64(u.Memory.Available), "memory_total_bytes": float64(u.Memory.Total), "swap_used_bytes": float64(u.Memory.Swap),
	}
	for _, d := range u.Disks {
		all["disk_read_bytes"] += float64(d.ReadBytes)
		all["disk_written_bytes"] += float64(d.WrittenBytes)
	}
	for _, n := range u.Nets {
		all["net_in_bytes"] += float64(n.InBytes)
		all["net_out_bytes"] += float64(n.OutBytes)
	}
	return all, nil
}

// Change does what an event says, and for processors and memory waits until the
// guest uses them.
func (g *guest) Change(ctx context.Context, e scenario.Event) (map[string]float64, error) {
	ctx, stop := context.WithTimeoutCause(ctx, changing, fault.New(fault.Timeout, fault.Agent, "%s of the guest has not come to an end after %s", e.Do, changing))
	defer stop()
	switch e.Do {
	case scenario.DoVCPUs:
		return nil, g.addProcessors(ctx, e)
	case scenario.DoMemory:
		return g.grow(ctx, e)
	case scenario.DoMigrate:
		return g.migrate(ctx)
	}
	return nil, unavailable(g.Guest.Change(ctx, e))
}

// changing bounds an event with what follows from it in the guest.
const changing = 15 * time.Minute

func (g *guest) addProcessors(ctx context.Context, e scenario.Event) error {
	if err := g.Guest.Change(ctx, e); err != nil {
		return unavailable(err)
	}
	text, err := g.session.Run(ctx, "sh", "-c", online, "sh", strings.TrimSpace(e.To))
	if err == nil && strings.TrimSpace(text) != strings.TrimSpace(e.To) {
		err = fault.New(fault.Failed, fault.Agent, "the guest uses %s processors, not %s", strings.TrimSpace(text), e.To)
	}
	return err
}

// grow plugs memory in, and tells what the guest had before and has then.
func (g *guest) grow(ctx context.Context, e scenario.Event) (map[string]float64, error) {
	g.growing.Lock()
	defer g.growing.Unlock()
	size, err := scenario.ParseSize(e.To)
	if err != nil {
		return nil, err
	}
	before, err := g.session.Sample(ctx)
	if err != nil {
		return nil, err
	}
	if err := g.Guest.Change(ctx, e); err != nil {
		return nil, unavailable(err)
	}
	least := before.Memory.Total + int64(size-g.memory)/16*15 // the kernel may keep a little for itself
	g.memory = size
	if _, err := g.session.Run(ctx, "sh", "-c", backed, "sh", fmt.Sprint(least>>10)); err != nil {
		return nil, err
	}
	after, err := g.session.Sample(ctx)
	if err == nil && after.Memory.Total < least {
		err = fault.New(fault.Failed, fault.Agent, "the guest uses %d MiB of memory, after %d before: not all that was added", after.Memory.Total>>20, before.Memory.Total>>20)
	}
	return map[string]float64{"memory_before_bytes": float64(before.Memory.Total), "memory_after_bytes": float64(after.Memory.Total)}, err
}

// migrate moves the guest to the other daemon. The line to the agent is the
// daemon's, and so another one then.
func (g *guest) migrate(ctx context.Context) (map[string]float64, error) {
	if g.to == nil {
		return nil, &experiment.Unavailable{Reason: "the run names no daemon to migrate guests to (--to)"}
	}
	_ = g.session.Close() // nobody uses it amid the windows
	figures, err := g.Migrate(ctx, g.to)
	return figures, errors.Join(unavailable(err), g.talkAgain(ctx))
}

// The tries of talkAgain, and the time between them.
const (
	talkTries = 20
	talkPause = 250 * time.Millisecond
)

// talkAgain is talk for a guest whose old line has just been closed. Its daemon may
// be at that still, and close the new one with it.
func (g *guest) talkAgain(ctx context.Context) (err error) {
	tick := time.NewTicker(talkPause)
	defer tick.Stop()
	for range talkTries {
		if err = g.talk(ctx); err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errors.Join(err, context.Cause(ctx))
		}
	}
	return err
}

// online puts processors to use as they come, until there are as many as wanted:
// Debian has udev for that, and guests of the lab have none.
const online = `
	for try in $(seq 600); do
		for f in /sys/devices/system/cpu/cpu[0-9]*/online; do
			[ "$(cat "$f" 2>/dev/null)" = 0 ] && echo 1 >"$f" 2>/dev/null
		done
		n=$(getconf _NPROCESSORS_ONLN)
		[ "$n" = "$1" ] && break
		sleep 0.1
	done
	echo "$n"`

// backed is online for blocks of memory, until there is as much as wanted, in KiB.
// Those that come together are all put to use before it ends.
const backed = `
	for try in $(seq 600); do
		for f in /sys/devices/system/memory/memory[0-9]*/state; do
			[ "$(cat "$f" 2>/dev/null)" = offline ] && echo online >"$f" 2>/dev/null
		done
		[ "$(awk '/^MemTotal:/ {print $2}' /proc/meminfo)" -ge "$1" ] && break
		sleep 0.1
	done`

// Close destroys the guest with its disks.
func (g *guest) Close(ctx context.Context) error {
	var err error
	if g.session != nil {
		err = g.session.Close()
	}
	return errors.Join(err, g.Stop(ctx))
}
