package conformance

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// liveTuning changes the running guest's resource limits on the host, and reads them back.
func liveTuning(t *testing.T, g *guest) {
	device := strings.Fields(g.d.virsh(t, "domiflist", "live"))[0]
	for _, c := range []struct {
		set, get string
		pieces   []string
	}{
		{"schedinfo live --live cpu_shares=512", "schedinfo live", []string{"cpu_shares     : 512"}},
		{"memtune live --hard-limit 4194304 --live", "memtune live", []string{"hard_limit     : 4194304"}},
		{"blkdeviotune live vda --total-iops-sec 5000 --live", "blkdeviotune live vda", []string{"total_iops_sec : 5000"}},
		{"vcpupin live 0 0 --live", "vcpupin live", []string{"0   0\n"}},
		{"emulatorpin live 0 --live", "emulatorpin live", []string{"0"}},
		{"domiftune live " + device + " --inbound 100000 --live", "domiftune live " + device, []string{"inbound.average: 100000"}},
		{"dommemstat live --period 2 --live", "dumpxml live", []string{"<stats period='2'/>"}},
	} {
		g.d.virsh(t, strings.Fields(c.set)...)
		contains(t, c.get, g.d.virsh(t, strings.Fields(c.get)...), c.pieces...)
	}
	g.d.virsh(t, "vcpupin", "live", "0", "r", "--live")
	g.d.virsh(t, "emulatorpin", "live", "r", "--live")
}

// liveFileSystem enlarges the guest's disk, makes a file system on it, and freezes it through the agent.
func liveFileSystem(t *testing.T, g *guest) {
	g.d.virsh(t, "blockresize", "live", "vda", "96M")
	eventually(t, "a larger disk", func() bool { return g.shell(t, "cat /sys/class/block/vda/size") == strconv.Itoa(96<<20/512) })
	contains(t, "domblkinfo", g.d.virsh(t, "domblkinfo", "live", "vda"), "Capacity:       100663296")
	g.shell(t, "mke2fs -q /dev/vda 8192 > /dev/null 2>&1; mount -t ext2 /dev/vda /mnt")
	contains(t, "domfsinfo", g.d.virsh(t, "domfsinfo", "live"), "/mnt", "ext2")
	status := func() string {
		return g.d.virsh(t, "qemu-agent-command", "live", `{"execute":"guest-fsfreeze-status"}`)
	}
	g.d.virsh(t, "domfsfreeze", "live")
	contains(t, "the frozen guest", status(), "frozen")
	g.d.virsh(t, "domfsthaw", "live")
	contains(t, "the guest after that", status(), "thawed")
	g.shell(t, "umount /mnt")
}

// liveDump writes the guest's memory to a file that debuggers can read. The guest keeps running.
func liveDump(t *testing.T, g *guest) {
	unbroken := g.startMarker(t)
	path := filepath.Join(g.d.dir, "core")
	g.d.virsh(t, "dump", "live", path, "--memory-only", "--live")
	core, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer core.Close()
	magic := make([]byte, 4)
	if _, err := core.Read(magic); err != nil || string(magic) != "\x7fELF" {
		t.Errorf("the dump begins with %q, %v", magic, err)
	}
	unbroken(t)
}
