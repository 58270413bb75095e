package nested

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// guestsGroup is the control group that systemd delegates for the guests of the host's daemon.
const guestsGroup = "/machine.slice/lodge-guests.service"

// groupState prints each guest's QEMU with its process, group and limits, and the controllers of the groups above.
// It leaves out the root group: systemd enables controllers there for units of its own.
const groupState = `
cd /sys/fs/cgroup
grep -H . machine.slice/cgroup.subtree_control machine.slice/lodge-guests.service/cgroup.subtree_control
for pid in $(pgrep --full -- ^/usr/bin/qemu-system.*-uuid | sort); do
	group=$(cut --delimiter=: --fields=3 /proc/$pid/cgroup)
	echo "process $pid $group"
	grep -H . .$group/{memory.max,memory.high,cpu.weight,cpu.max,pids.max,hugetlb.2MB.max,cpuset.mems,cgroup.procs}
done
`

// beside lists the top-level groups that are not units of systemd.
const beside = `find /sys/fs/cgroup -mindepth 1 -maxdepth 1 -type d ! -name '*.slice' ! -name '*.scope' ! -name '*.mount'`

// Guests are in a delegated unit with the limits of their definitions. Three events must not change their
// processes, groups or limits: a reload of systemd, a re-execution of systemd, and a restart of the daemon.
// Promise: G13
func TestNestedGroups_SystemdOwnsTree(t *testing.T) {
	m := begin(t)
	uuids := map[string]string{}
	for _, name := range []string{"one", "two"} {
		uuids[name] = m.paused(guest{name: name, more: `<memtune><hard_limit unit='MiB'>512</hard_limit><soft_limit unit='MiB'>256</soft_limit></memtune>
			<cputune><shares>512</shares><global_period>100000</global_period><global_quota>50000</global_quota></cputune>
			<numatune><memory mode='strict' nodeset='2'/></numatune>`})
	}
	if found := m.run(beside); found != "" {
		t.Errorf("groups that are not systemd's units:\n%s", found)
	}
	if got := m.run("cat /proc/$(pidof lodged)/cgroup"); got != "0::/system.slice/lodged.service" {
		t.Errorf("the daemon is in %s", got)
	}
	before := m.run(groupState)
	for name, uuid := range uuids {
		dir := "." + guestsGroup + "/guest-" + uuid
		for _, want := range []string{
			fmt.Sprintf("process %s %s\n", m.pid(uuid), dir[1:]), fmt.Sprintf("%s/cgroup.procs:%s", dir, m.pid(uuid)),
			dir + "/memory.max:536870912\n", dir + "/memory.high:268435456\n", dir + "/cpu.weight:512\n", dir + "/cpu.max:50000 100000\n",
			dir + "/hugetlb.2MB.max:0\n", dir + "/cpuset.mems:2\n",
		} {
			if !strings.Contains(before+"\n", want) {
				t.Errorf("guest %s: %q is not in\n%s", name, want, before)
			}
		}
	}
	for _, change := range []string{"systemctl daemon-reload", "systemctl daemon-reexec", "systemctl restart lodged", "systemctl daemon-reload", "kill -KILL $(pidof lodged)\nuntil systemctl is-active lodged && virsh -c qemu:///system uri; do sleep 0.2; done"} {
		m.run(change)
		if diff := cmp.Diff(before, m.run(groupState)); diff != "" {
			t.Errorf("%s changes (-before +after):\n%s", change, diff)
		}
		if names := strings.Fields(m.virsh("list", "--name")); len(names) != len(uuids) {
			t.Errorf("after %s the daemon has guests %v", change, names)
		}
	}
	if got := m.run("systemctl is-failed lodge-guests || true"); got != "active" {
		t.Errorf("the guests' unit is %s", got)
	}
}

// Guests start again after the unit was empty, also through a reload, and after the unit was stopped, which ends
// its guests. The unit ends with a daemon that has no guests.
func TestNestedGroups_UnitOutlivesItsGuests(t *testing.T) {
	m := begin(t)
	uuid := m.paused(guest{name: "one"})
	inGroup := "grep --quiet ^0::" + guestsGroup + "/guest-" + uuid + "$ /proc/$(" + pidScript(uuid) + ")/cgroup"
	for _, change := range []string{
		"virsh -c qemu:///system destroy one\nsystemctl daemon-reload\nsystemctl daemon-reexec",
		"systemctl stop lodge-guests\nuntil virsh -c qemu:///system domstate one | grep 'shut off'; do sleep 0.2; done",
	} {
		m.run(change)
		m.virsh("start", "--paused", "one")
		m.run(inGroup)
	}
	m.virsh("destroy", "one")
	m.run("systemctl stop lodged\nuntil ! systemctl is-active lodge-guests; do sleep 0.2; done")
	if found := m.run("ls -d /sys/fs/cgroup" + guestsGroup + " 2>/dev/null || " + beside); found != "" {
		t.Errorf("the daemon has left %s", found)
	}
	m.run("systemctl start lodged")
	m.virsh("start", "--paused", "one")
	m.run(inGroup)
}
