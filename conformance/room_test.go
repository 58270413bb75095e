package conformance

import (
	"strings"
	"testing"
)

// TestGuestsGoOnWhenThereIsRoomAgain fills the file system below the disks of two
// guests: both are paused with the reason, and with room the one goes on by itself,
// having lost nothing, while the other, paused by its user meanwhile, does not. The
// daemon is replaced in between.
func TestGuestsGoOnWhenThereIsRoomAgain(t *testing.T) {
	needs(t)
	d := start(t)
	d.output(t, "mkdir", d.dir+"/disks")
	d.output(t, "mount", "-t", "tmpfs", "-o", "size=3m", "small", d.dir+"/disks")
	var guests []*guest
	for _, name := range []string{"goes-on", "stays"} {
		image := d.dir + "/disks/" + name
		d.output(t, "truncate", "--size=6M", image)
		guests = append(guests, d.boot(t, shape{name: name, devices: `
			<disk type='file'><driver name='qemu' type='raw'/><source file='` + image + `'/><target dev='vda' bus='virtio'/></disk>`}))
	}
	goesOn, stays := guests[0], guests[1]
	const write = "yes written | head -c 6291456 > /tmp/written && dd if=/tmp/written of=/dev/vda bs=1M conv=fsync 2>/dev/null; echo $? > /tmp/done"
	for _, g := range guests {
		g.sh(t, "setsid sh -c '"+write+"' < /dev/null > /dev/null 2>&1 &")
	}
	for _, g := range guests {
		eventually(t, "paused", func() bool { return g.state(t) == "paused (I/O error)" })
		contains(t, "the disk's error", d.virsh(t, "domblkerror", g.name), "vda: no space")
		contains(t, "the statistics", d.virsh(t, "domstats", "--state", g.name), "state.state=3", "state.reason=5")
	}
	d.virsh(t, "suspend", stays.name)
	d.signal(t, "KILL")
	d.launch(t)
	d.output(t, "mount", "-o", "remount,size=64m", d.dir+"/disks")
	eventually(t, "the guest goes on", func() bool { return strings.HasPrefix(goesOn.state(t), "running") })
	eventually(t, "its write done", func() bool { return goesOn.sh(t, "cat /tmp/done 2>/dev/null || true") == "0" })
	goesOn.sh(t, "head -c 6291456 /dev/vda | cmp - /tmp/written")
	if state := stays.state(t); !strings.HasPrefix(state, "paused") {
		t.Errorf("the guest that its user has paused is %s", state)
	}
	d.virsh(t, "resume", stays.name)
	eventually(t, "the other's write done", func() bool { return stays.sh(t, "cat /tmp/done 2>/dev/null || true") == "0" })
}
