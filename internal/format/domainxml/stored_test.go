package domainxml

import (
	"testing"

	"github.com/lodge-kvm/lodge/internal/word/device"
)

// Earlier versions stored sockets without a mode, which then listened, and accepted requisite disks.
// Their guests still exist and must not change.
func TestStored_SocketsWithoutAModeListen(t *testing.T) {
	const (
		unix = "<channel type='unix'><source path='/run/a'/><target type='virtio' name='a'/></channel>"
		tcp  = "<serial type='tcp'><source host='127.0.0.1' service='4000'/></serial>"
		egd  = "<rng model='virtio'><backend model='egd' type='tcp'><source host='127.0.0.1' service='4001'/></backend></rng>"
		usb  = "<redirdev bus='usb' type='tcp'><source host='127.0.0.1' service='4002'/></redirdev>"
	)
	doc := in(unix+tcp+egd+usb, "")
	for submitted, want := range map[bool]string{false: "bind", true: "connect"} {
		def, err := Parse(doc, Options{Submitted: submitted, Host: testHost()})
		if err != nil {
			t.Fatal(err)
		}
		s := &def.Devices
		for name, b := range map[string]*device.Backend{
			"channel": &s.Channels[0].Backend, "serial": &s.Serials[0].Backend, "rng": s.RNGs[0].Char, "redirdev": &s.Redirs[0].Backend,
		} {
			if b.Mode != want {
				t.Errorf("%s, submitted %v: mode %q, want %q", name, submitted, b.Mode, want)
			}
		}
	}
}

func TestStored_RequisiteDisk(t *testing.T) {
	doc := in("<disk type='file'><source file='/a' startupPolicy='requisite'/><target dev='vda'/></disk>", "")
	if _, err := Parse(doc, Options{Host: testHost()}); err != nil {
		t.Error(err)
	}
	if err := submit(doc); err == nil {
		t.Error("a new one is taken")
	}
}
