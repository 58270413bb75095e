package conformance

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// An iothread that virsh adds serves a disk at once, and exists after the next start. Its ID is the next free one
// of the domain.
func TestIOThreadAdd_Virsh(t *testing.T) {
	d := start(t)
	d.blank(t, "plugged.raw", 1<<20)
	d.define(t, shape{name: "threads", more: "<iothreads>1</iothreads><cputune><iothread_quota>50000</iothread_quota></cputune>"})
	v := func(args ...string) string { return d.virsh(t, args...) }
	threads := func() int { return len(strings.Split(strings.TrimSpace(v("iothreadinfo", "threads")), "\n")) } // virsh is quiet: no head
	v("start", "--paused", "threads")
	v("iothreadadd", "threads", "2", "--live", "--config")
	if n := threads(); n != 2 {
		t.Errorf("virsh iothreadinfo shows %d", n)
	}
	contains(t, "the running definition", v("dumpxml", "threads"), "<iothreads>2</iothreads>")
	contains(t, "the stored definition", v("dumpxml", "--inactive", "threads"), "<iothreads>2</iothreads>")
	disk := d.file(t, "disk.xml", fmt.Sprintf(`<disk type='file' device='disk'><driver name='qemu' type='raw' iothread='2'/><source file='%s'/>
		<target dev='vdb' bus='virtio'/></disk>`, filepath.Join(d.dir, "plugged.raw")))
	v("attach-device", "threads", disk, "--live")

	contains(t, "one that is there", d.mustFail(t, "iothreadadd", "threads", "2", "--live"), "already")
	contains(t, "a gap", d.mustFail(t, "iothreadadd", "threads", "4", "--config"), "add 3")
	v("iothreadadd", "threads", "3", "--config")
	contains(t, "one that the config has", d.mustFail(t, "iothreadadd", "threads", "3", "--live", "--config"), "already")
	v("destroy", "threads")
	v("start", "--paused", "threads")
	if n := threads(); n != 3 {
		t.Errorf("virsh iothreadinfo shows %d after the next start", n)
	}
}
