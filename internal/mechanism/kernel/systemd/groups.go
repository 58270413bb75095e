// Package systemd asks systemd, over the system bus, for the control group that
// guests live in. Where systemd is the first process, it owns the tree of version
// 2 groups. It makes all groups and turns controllers on, except inside a unit
// that is delegated to another program.
//
// This package requests and returns units of systemd. Package kernel makes and
// changes the groups inside such a unit.
package systemd

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"
	"github.com/coreos/go-systemd/v22/util"
	godbus "github.com/godbus/dbus/v5"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// patience bounds the time of one request to systemd. systemd is busy for seconds during a boot.
const patience = 20 * time.Second

// Groups gives each instance of Lodge a unit of systemd's to keep its guests'
// groups in. The unit is a service without a process of its own: it stays when the
// daemon is restarted and when no guest runs, and systemd keeps it through a
// reload of its configuration. Its inside is delegated.
type Groups struct {
	// bus connects to systemd; tests give it another.
	bus func(context.Context) (*dbus.Conn, error)
}

// Find gives the groups of this host's systemd, or nil where another program is
// the first process, as in a container.
func Find() *Groups {
	first, err := os.ReadFile("/proc/1/comm")
	if err != nil || strings.TrimSpace(string(first)) != "systemd" || !util.IsRunningSystemd() {
		return nil
	}
	return &Groups{bus: dbus.NewSystemConnectionContext}
}

// slice is where systemd's convention has guests.
const slice = "machine.slice"

// daemonUnit is the daemon's own unit. On shutdown the daemon is stopped before
// its guests are.
const daemonUnit = "lodged.service"

func unitOf(name string) string { return name + "-guests.service" }

func properties(name string) []dbus.Property {
	set := func(name string, value any) dbus.Property {
		return dbus.Property{Name: name, Value: godbus.MakeVariant(value)}
	}
	return []dbus.Property{
		dbus.PropDescription("Guests of Lodge (" + name + ")"),
		dbus.PropType("oneshot"), dbus.PropRemainAfterExit(true), dbus.PropExecStart([]string{"/bin/sh", "-c", ":"}, false),
		dbus.PropSlice(slice), dbus.PropBefore(daemonUnit),
		set("Delegate", true),
		set("TasksMax", ^uint64(0)),
		set("OOMPolicy", "continue"), // one guest that runs out of memory must not end the others
		set("IgnoreOnIsolate", true), // nor must a change of the run level
		set("CollectMode", "inactive-or-failed"),
	}
}

// Grant gives the control group of the instance with this name, from where the tree
// is mounted. One that is there already is given again.
func (g *Groups) Grant(name, tree string) (group string, err error) {
	ctx, stop := context.WithTimeoutCause(context.Background(), patience, fault.New(fault.Timeout, fault.Host, "no answer within %v", patience))
	defer stop()
	conn, err := g.bus(ctx)
	if err != nil {
		return "", failed(err, "reach systemd for the guests' control group")
	}
	defer conn.Close()
	unit := unitOf(name)
	if err := start(ctx, conn, unit, properties(name)); err != nil {
		return "", failed(err, "have systemd start "+unit)
	}
	group, err = groupOf(ctx, conn, unit)
	if err != nil || exists(tree, group) {
		return group, err
	}
	if err := populate(ctx, conn, unit); err != nil {
		return "", failed(err, "have systemd make the control group of "+unit)
	}
	group, err = groupOf(ctx, conn, unit)
	if err == nil && !exists(tree, group) {
		err = fault.New(fault.Failed, fault.Host, "systemd has made no control group for %s", unit)
	}
	return group, err
}

// Granted gives the control group that Grant gave before, without the bus; "": it is not there.
func (g *Groups) Granted(name, tree string) (group string) {
	group = "/" + slice + "/" + unitOf(name)
	if !exists(tree, group) {
		return ""
	}
	return group
}

func exists(tree, group string) bool {
	_, err := os.Stat(filepath.Join(tree, group))
	return group != "" && err == nil
}

// groupOf asks for the unit's control group; systemd tells of it also when it has
// removed it.
func groupOf(ctx context.Context, conn *dbus.Conn, unit string) (string, error) {
	property, err := conn.GetServicePropertyContext(ctx, unit, "ControlGroup")
	if err != nil {
		return "", failed(err, "ask systemd for the control group of "+unit)
	}
	group, _ := property.Value.Value().(string)
	return group, nil
}

// populate puts a process into the unit for a moment. systemd removes the group of
// a service when its process has ended. It makes the group again for a process that
// is put into the unit, and keeps that second group once it is empty.
func populate(ctx context.Context, conn *dbus.Conn, unit string) error {
	command := exec.CommandContext(ctx, "/bin/sh", "-c", "read line")
	input, err := command.StdinPipe()
	if err != nil {
		return err
	}
	if err := command.Start(); err != nil {
		return err
	}
	err = conn.AttachProcessesToUnit(ctx, unit, "", []uint32{uint32(command.Process.Pid)})
	_ = input.Close()
	_ = command.Wait() // the end of its input is a failure for it
	return err
}

// start starts the unit, unless it runs. If the unit is being stopped, it is started
// again after that. systemd may forget the unit before it gets that second request.
func start(ctx context.Context, conn *dbus.Conn, unit string, properties []dbus.Property) error {
	done := make(chan string, 1)
	_, err := conn.StartTransientUnitContext(ctx, unit, "fail", properties, done)
	if isError(err, "UnitExists") {
		_, err = conn.StartUnitContext(ctx, unit, "replace", done)
	}
	if isError(err, "NoSuchUnit") {
		_, err = conn.StartTransientUnitContext(ctx, unit, "fail", properties, done)
	}
	if err != nil {
		return err
	}
	select {
	case result := <-done:
		if result != "done" {
			return fault.New(fault.Failed, fault.Host, "its job ended as %q; systemctl status %s says more", result, unit)
		}
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func isError(err error, name string) bool {
	var bus godbus.Error
	return errors.As(err, &bus) && bus.Name == "org.freedesktop.systemd1."+name
}

// Release makes systemd stop the instance's unit, which must be empty. It does not
// wait: while the host is shut down, systemd stops the daemon before this unit.
func (g *Groups) Release(name string) error {
	ctx, stop := context.WithTimeoutCause(context.Background(), patience, fault.New(fault.Timeout, fault.Host, "no answer within %v", patience))
	defer stop()
	conn, err := g.bus(ctx)
	if err != nil {
		return failed(err, "reach systemd to give back the guests' control group")
	}
	defer conn.Close()
	_, err = conn.StopUnitContext(ctx, unitOf(name), "replace", nil)
	return failed(err, "have systemd stop "+unitOf(name))
}

func failed(err error, what string) error {
	return fault.Wrap(err, fault.Failed, fault.Host, "cannot %s", what)
}
