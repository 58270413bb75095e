package libvirt

import (
	"bytes"
	"context"
	"crypto/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// loopDisk gives a block device of 64 MiB. Its partitions end with it.
func loopDisk(t *testing.T) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root for a loop device")
	}
	for _, program := range []string{"sfdisk", "partx", "losetup"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not installed", program)
		}
	}
	backing := filepath.Join(t.TempDir(), "backing")
	if err := os.WriteFile(backing, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(backing, 64<<20); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "losetup", "--find", "--show", backing).CombinedOutput()
	if err != nil {
		t.Skipf("needs a loop device: %s", out)
	}
	device := strings.TrimSpace(string(out))
	t.Cleanup(func() {
		_ = exec.CommandContext(context.Background(), "partx", "--delete", device).Run() // fails where none is left
		if out, err := exec.CommandContext(context.Background(), "losetup", "--detach", device).CombinedOutput(); err != nil {
			t.Errorf("%s: %s", device, out)
		}
	})
	return device
}

func TestVirsh_DiskPool(t *testing.T) {
	s := storageShell(t)
	device := loopDisk(t)
	s.words["DISK"], s.words["PART"] = device, filepath.Base(device)+"p"
	s.does("pool-define-as disks disk --source-dev DISK --source-format gpt --target /dev", "Pool disks defined")
	s.fails("pool-start disks", "has no partition table that can be read; build the pool to make one")
	s.does("pool-build disks --no-overwrite", "Pool disks built")
	s.fails("pool-build disks --no-overwrite", "holds gpt already; build with overwrite to lose it")
	s.does("pool-build disks --overwrite", "Pool disks built")
	s.does("pool-start disks", "Pool disks started")
	s.does("pool-list --type disk --name", "^disks$")
	s.does("pool-list --type dir,logical --name", "^$")
	s.does("pool-info disks", "State: running Persistent: yes Autostart: no Capacity: 64.00 MiB Allocation: 0.00 B Available: 62.00 MiB")
	s.fails("vol-create-as disks data 8M", "the next partition of "+device+" is ")
	s.does("vol-create-as disks PART1 8M", "Vol PART1 created")
	s.does("vol-create-as disks PART2 4M --format linux-swap", "Vol PART2 created")
	s.fails("vol-create-as disks PART3 63M", "no contiguous free space of 66060288 bytes is left")
	s.does("pool-info disks", "Allocation: 12.00 MiB Available: 50.00 MiB")
	s.does("vol-list disks --details", "PART1 /dev/PART1 block 8.00 MiB 8.00 MiB PART2 /dev/PART2 block 4.00 MiB 4.00 MiB$")
	s.does("vol-dumpxml PART2 --pool disks",
		`<volume type='block'> <name>PART2</name> <key>/dev/PART2</key> <source> <device path='DISK'> <extent start='9437184' end='13631488'/> </device> </source>`,
		`<target> <path>/dev/PART2</path> <format type='linux-swap'/> <permissions>`)
	s.does("pool-dumpxml disks", `<source> <device path='DISK'> <freeExtent start='13631488' end='[0-9]+'/> </device> <format type='gpt'/> </source> <target> <path>/dev</path>`)
	s.does("vol-pool /dev/PART1", "^disks$")
	s.fails("vol-resize PART1 16M --pool disks", "partitions cannot be resized")

	content := make([]byte, 1<<20)
	if _, err := rand.Read(content); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.words["TMP"], "up"), content, 0o600); err != nil {
		t.Fatal(err)
	}
	s.does("vol-upload PART1 TMP/up --pool disks --offset 4096")
	s.does("vol-download PART1 TMP/down --pool disks --offset 4096 --length 1048576")
	if got, err := os.ReadFile(filepath.Join(s.words["TMP"], "down")); err != nil || !bytes.Equal(got, content) {
		t.Errorf("what comes down is not what went up: %v", err)
	}
	s.does("vol-clone PART1 PART3 --pool disks", "Vol PART3 cloned from PART1")
	s.does("vol-wipe PART1 --pool disks", "Vol PART1 wiped")
	s.does("vol-delete PART1 --pool disks", "Vol PART1 deleted")
	s.does("vol-list disks", "^Name Path -+ PART2 /dev/PART2 PART3 /dev/PART3$")
	s.does("pool-refresh disks")
	s.does("pool-destroy disks", "Pool disks destroyed")
	s.fails("pool-delete disks", "partition table cannot be deleted")
	s.does("pool-undefine disks", "Pool disks has been undefined")
}

// Without device-mapper no volume group can be active; what virsh can ask of
// one before that is the same everywhere.
func TestVirsh_LogicalPool(t *testing.T) {
	s := storageShell(t)
	s.does("pool-define-as guests logical --source-dev /dev/nothing --source-name lodge-nothing", "Pool guests defined")
	s.does("pool-list --all --type logical --name", "^guests$")
	s.does("pool-dumpxml guests",
		"<source> <device path='/dev/nothing'/> <name>lodge-nothing</name> <format type='lvm2'/> </source> <target> <path>/dev/lodge-nothing</path> </target>")
	s.fails("pool-define-as other logical --source-name=--config", "is no name of a pool for LVM")
	if _, err := exec.LookPath("vgs"); err != nil {
		s.fails("pool-start guests", "install the package lvm2")
		return
	}
	s.fails("pool-start guests", "cannot activate volume group lodge-nothing")
	s.fails("pool-build guests", "/dev/nothing")
	s.does("find-storage-pool-sources logical", "^<sources")
}
