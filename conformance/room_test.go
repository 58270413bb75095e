package conformance

import (
	"bufio"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The test fills the file system below the disks of two guests: both are paused with the reason. Once there is
// free space, one resumes automatically and has lost nothing. The other was paused by its user in between, and
// stays paused. The daemon is replaced in between. A third guest is paused while no daemon runs, and resumes, too.
// Promise: S11
func TestENOSPC_GuestsResume(t *testing.T) {
	onlyInClients(t)
	needs(t)
	d := start(t)
	d.output(t, "mkdir", d.dir+"/disks")
	d.output(t, "mount", "-t", "tmpfs", "-o", "size=3m", "small", d.dir+"/disks")
	var guests []*guest
	for _, name := range []string{"goes-on", "stays", "alone"} {
		image := d.dir + "/disks/" + name
		d.output(t, "truncate", "--size=6M", image)
		guests = append(guests, d.boot(t, shape{name: name, devices: `
			<disk type='file'><driver name='qemu' type='raw'/><source file='` + image + `'/><target dev='vda' bus='virtio'/></disk>`}))
	}
	goesOn, stays, alone := guests[0], guests[1], guests[2]
	const write = "yes written | head -c 6291456 > /tmp/written && dd if=/tmp/written of=/dev/vda bs=1M conv=fsync 2>/dev/null; echo $? > /tmp/done"
	for _, g := range guests[:2] {
		g.shell(t, "setsid sh -c '"+write+"' < /dev/null > /dev/null 2>&1 &")
	}
	for _, g := range guests[:2] {
		eventually(t, "paused", func() bool { return g.state(t) == "paused (I/O error)" })
		contains(t, "the disk's error", d.virsh(t, "domblkerror", g.name), "vda: no space")
		contains(t, "the statistics", d.virsh(t, "domstats", "--state", g.name), "state.state=3", "state.reason=5")
	}
	d.virsh(t, "suspend", stays.name)
	monitor := filepath.Join(d.run, "guest", strings.TrimSpace(d.virsh(t, "domuuid", alone.name)), "monitor.sock")
	d.signal(t, "KILL")
	alone.shell(t, "setsid sh -c '"+write+"' < /dev/null > /dev/null 2>&1 &")
	eventually(t, "paused without a daemon", func() bool { return isStoppedByENOSPC(t, monitor) })
	d.launch(t)
	eventually(t, "paused under the next daemon", func() bool { return alone.state(t) == "paused (I/O error)" })
	d.output(t, "mount", "-o", "remount,size=64m", d.dir+"/disks")
	for _, g := range []*guest{goesOn, alone} {
		eventually(t, "the guest resumes", func() bool { return strings.HasPrefix(g.state(t), "running") })
		eventually(t, "its write done", func() bool { return g.shell(t, "cat /tmp/done 2>/dev/null || true") == "0" })
		g.shell(t, "head -c 6291456 /dev/vda | cmp - /tmp/written")
	}
	if state := stays.state(t); !strings.HasPrefix(state, "paused") {
		t.Errorf("the guest that its user has paused is %s", state)
	}
	d.virsh(t, "resume", stays.name)
	eventually(t, "the other's write done", func() bool { return stays.shell(t, "cat /tmp/done 2>/dev/null || true") == "0" })
}

// isStoppedByENOSPC asks a QEMU without a daemon whether it has stopped because of ENOSPC.
func isStoppedByENOSPC(t *testing.T, monitor string) bool {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "unix", monitor)
	if err != nil {
		return false
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := conn.Write([]byte(`{"execute":"qmp_capabilities"}{"execute":"query-status","id":1}`)); err != nil {
		return false
	}
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		if strings.Contains(lines.Text(), `"id": 1`) || strings.Contains(lines.Text(), `"id":1`) {
			return strings.Contains(lines.Text(), "io-error")
		}
	}
	return false
}
