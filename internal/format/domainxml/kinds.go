package domainxml

import (
	"libvirt.org/go/libvirtxml"

	"github.com/lodge-kvm/lodge/internal/word/device"
)

// kind is how one sort of device is read and written on its own.
type kind struct {
	make     func() device.Device
	describe func(*node, *device.Device)
	through  through
}

var kinds = map[string]kind{
	"disk":       kindOf[libvirtxml.DomainDisk](describeDisk),
	"controller": kindOf[libvirtxml.DomainController](describeController),
	"interface":  kindOf[libvirtxml.DomainInterface](describeNIC),
	"serial":     kindOf[libvirtxml.DomainSerial](describeChar),
	"parallel":   kindOf[libvirtxml.DomainParallel](describeChar),
	"console":    kindOf[libvirtxml.DomainConsole](describeChar),
	"channel":    kindOf[libvirtxml.DomainChannel](describeChar),
	"input":      kindOf[libvirtxml.DomainInput](describeInput),
	"tpm":        kindOf[libvirtxml.DomainTPM](describeTPM),
	"graphics":   kindOf[libvirtxml.DomainGraphic](describeGraphics),
	"sound":      kindOf[libvirtxml.DomainSound](describeSound),
	"audio":      kindOf[libvirtxml.DomainAudio](describeAudio),
	"video":      kindOf[libvirtxml.DomainVideo](describeVideo),
	"hostdev":    kindOf[libvirtxml.DomainHostdev](describeHostDevice),
	"redirdev":   kindOf[libvirtxml.DomainRedirDev](describeRedir),
	"hub":        kindOf[libvirtxml.DomainHub](describeHub),
	"watchdog":   kindOf[libvirtxml.DomainWatchdog](describeWatchdog),
	"memballoon": kindOf[libvirtxml.DomainMemBalloon](describeBalloon),
	"rng":        kindOf[libvirtxml.DomainRNG](describeRNG),
	"panic":      kindOf[libvirtxml.DomainPanic](describePanic),
	"memory":     kindOf[libvirtxml.DomainMemorydev](describeMemory),
	"vsock":      kindOf[libvirtxml.DomainVSock](describeVSock),
}

func kindOf[L, T any, P interface {
	*T
	device.Device
}](describe func(*node, *T)) kind {
	return kind{
		make:     func() device.Device { return P(new(T)) },
		describe: func(n *node, d *device.Device) { describe(n, (*T)((*d).(P))) },
		through:  throughModel[L],
	}
}
