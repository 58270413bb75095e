package guest_test

import (
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/guest/hotplug"
	"github.com/lodge-kvm/lodge/internal/guest/launch"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// TestAttach_SocketWithoutAModeConnects: the running guest reads a new device as its definition does.
func TestAttach_SocketWithoutAModeConnects(t *testing.T) {
	d := newDaemonOf(t, true)
	path := filepath.Join(d.dir, "service")
	l, err := (&net.ListenConfig{}).Listen(d.ctx(), "unix", path)
	ok(t, err)
	defer l.Close()
	g := d.define(small("plugged", "<controller type='virtio-serial' index='0'/>"))
	ok(t, launch.Start(d.ctx(), g, scope.Daemon("a test"), launch.StartOptions{}))
	ok(t, hotplug.Attach(d.ctx(), g, scope.Daemon("a test"), "<channel type='unix'><source path='"+path+"'/><target type='virtio' name='org.test.0'/></channel>", machine.Affect{Live: true, Config: true}))
	if text := liveText(t, g); !strings.Contains(text, "<source mode='connect' path='"+path+"'/>") {
		t.Errorf("it listens in the running guest:\n%s", text)
	}
	if b := g.View().Inactive.Devices.Channels[0].Backend; b.Mode != "connect" {
		t.Errorf("mode %q in its definition", b.Mode)
	}
}
