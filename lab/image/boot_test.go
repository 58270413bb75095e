package image_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/lab/image/imagetest"
)

// Promise: L9
func TestTheGuestIsWhatItsImageSays(t *testing.T) {
	i := imagetest.Find(t)
	for _, name := range []string{"nginx-light", "mariadb-server", "fio", "sysbench", "stress-ng"} {
		if i.Packages[name] == "" {
			t.Errorf("the image does not list %s", name)
		}
	}
	started := time.Now()
	g := imagetest.Boot(t, "probe", 256)
	t.Logf("answers after %v", time.Since(started))
	if g.Guest.Name != "probe" || g.Guest.CPUs != 1 || g.Guest.Boot == "" {
		t.Errorf("the guest says of itself %+v", g.Guest)
	}
	for _, c := range []struct{ what, argv, want string }{
		{"its address", "ip -br -4 addr show dev eth0", "10.0.2.15/24"},
		{"a /usr that is not written to", "findmnt -no FSTYPE,OPTIONS /usr", "erofs"},
		{"a root of its own", "sh -c 'echo kept >/root/file && cat /root/file'", "kept"},
		{"a driver of its own for what is plugged in", "modprobe -v -n bfq", "bfq"},
		{"fio", "fio --version", "fio-"},
		{"sysbench", "sysbench --version", "sysbench"},
		{"stress-ng", "stress-ng --version", "stress-ng"},
		{"no zombie", "sh -c 'sleep 0 & sleep 0.2; ! grep -l zombie /proc/[0-9]*/status; echo none'", "none"},
	} {
		out, err := g.Run(t.Context(), "sh", "-c", c.argv)
		if err != nil || !strings.Contains(out, c.want) {
			t.Errorf("%s: %q, %v", c.what, out, err)
		}
	}
	content := bytes.Repeat([]byte("megabyte"), 1<<17)
	if err := g.Put(t.Context(), "/root/mb", 0o600, bytes.NewReader(content)); err != nil {
		t.Fatal(err)
	}
	var back bytes.Buffer
	if err := g.Get(t.Context(), "/root/mb", &back); err != nil || !bytes.Equal(back.Bytes(), content) {
		t.Errorf("%d bytes came back, %v", back.Len(), err)
	}
	first, err := g.Clock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if first.Source != "tsc" {
		t.Errorf("the guest keeps time by %q", first.Source)
	}
	sample, err := g.Sample(t.Context())
	if err != nil || sample.Memory.Total < 200<<20 || sample.Disks["vda"].Reads == 0 || sample.CPU.Idle == 0 {
		t.Errorf("a sample is %+v, %v", sample, err)
	}
	second, err := g.Clock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// A guest that has calibrated its clock wrongly is out by a factor.
	there, here := second.Up-first.Up, second.At.Sub(first.At)
	if slack := (first.RTT+second.RTT)/2 + here/50; (there - here).Abs() > slack {
		t.Errorf("%v in the guest are %v outside, give or take %v", there, here, slack)
	}
	if err := g.Power(t.Context()); err != nil {
		t.Error(err)
	}
	select {
	case <-g.Ended:
	case <-time.After(time.Minute):
		t.Error("the guest does not go down")
	}
}

// The generic kernel sees what the one for clouds does not, and is the same Debian's.
// Promise: L52
func TestTheGenericKernelSeesSATA(t *testing.T) {
	g := imagetest.BootGeneric(t, "sata", 256)
	for _, c := range []struct{ what, argv, want string }{
		{"a kernel that is not for clouds", "uname -r", "-amd64"},
		{"its disk on SATA", "cat /sys/class/scsi_disk/*/device/vpd_pg80 | tr -d '\\0-\\37'", "data"},
		{"schedulers for it", "cat /sys/block/sda/queue/scheduler", "bfq"},
		{"a /usr that is not written to", "findmnt -no FSTYPE,OPTIONS /usr", "erofs"},
		{"a file system on it", "mkfs.ext4 -q -F /dev/sda && mount /dev/sda /mnt && df --output=fstype /mnt", "ext4"},
	} {
		out, err := g.Run(t.Context(), "sh", "-c", c.argv)
		if err != nil || !strings.Contains(out, c.want) || strings.Contains(out, "cloud") {
			t.Errorf("%s: %q, %v", c.what, out, err)
		}
	}
}
