package machine

import (
	"sync"
	"time"

	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
)

// DeviceClaims records which instance has each PCI device of the host, so that no two take the same one. An
// instance claims a device before it looks at the device's driver. It drops the claim after its record no
// longer names the device. The zero value is ready.
type DeviceClaims struct {
	Mu   sync.Mutex
	Held map[kernel.PCIAddress]*Instance
}

// Ports are the display ports that guests of this daemon hold. Ports of other programs are found by trying
// to listen.
type Ports struct {
	Mu   sync.Mutex
	Held map[int]bool
}

// SpaceWatch are the guests that wait for disk space.
type SpaceWatch struct {
	*Registry
	Wake chan struct{} // buffered: signals that a guest waits

	Mu       sync.Mutex
	Waiting  map[*Guest][]string      // the full folders of each guest
	Backoffs map[string]*SpaceBackoff // of folders with resumed guests
}

// SpaceBackoff is how long a folder is not checked.
type SpaceBackoff struct {
	Until time.Time
	Pause time.Duration
}
