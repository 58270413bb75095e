package provision

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lodge-kvm/lodge/internal/format/domainxml"
	"github.com/lodge-kvm/lodge/internal/host/resources"
)

func TestNeed_NativeIOAndPTYs(t *testing.T) {
	def, err := domainxml.Parse(`<domain type='qemu'><name>n</name><memory>65536</memory><vcpu current='1'>4</vcpu><iothreads>2</iothreads>
		<os><type arch='x86_64' machine='q35'>hvm</type></os><devices>
		<disk type='file' device='disk'><driver name='qemu' type='raw' cache='none' io='native'/><source file='/a'/><target dev='vda' bus='virtio'/></disk>
		<disk type='file' device='disk'><driver name='qemu' type='raw' cache='none' io='native'/><source file='/b'/><target dev='vdb' bus='virtio'/></disk>
		<disk type='file' device='disk'><driver name='qemu' type='raw' cache='none' io='native' iothread='2'/><source file='/c'/><target dev='vdc' bus='virtio'/></disk>
		<disk type='file' device='disk'><driver name='qemu' type='raw' io='threads'/><source file='/d'/><target dev='vdd' bus='virtio'/></disk>
		<serial type='pty'/><console type='pty'/><console type='pty'><target type='virtio'/></console>
		</devices></domain>`, domainxml.Options{Host: &domainxml.Host{}})
	if err != nil {
		t.Fatal(err)
	}
	got := Need(def)
	want := resources.Need{Threads: baseThreads + 4 + 2, Files: baseFiles + 4*diskFiles, PTYs: 2, AIO: 2 * resources.AIOContext, DaemonFiles: daemonFiles}
	want.Maps = baseMaps + threadMaps*want.Threads + 4*deviceMaps
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatal(diff)
	}
	def.Backing.Locked = true
	if got := Need(def).Locked; got != def.Memory+LockedBeside {
		t.Errorf("a locked guest of %d bytes locks %d", def.Memory, got)
	}
}
