package image

import (
	"fmt"
	"net/netip"
	"strings"
)

// Boot is what one guest's kernel and agent are told.
type Boot struct {
	Name string
	Nets []Net
	// TSC is the host's counter in kHz (machine.TSC), for guests under emulation:
	// many that calibrate it at once get it wrong, and then a second of theirs is
	// none. 0 where the processor runs the guest, or it is not known.
	TSC int
	// Extra are further arguments, such as swiotlb=512 for guests that memory is
	// plugged into.
	Extra []string
}

// Net gives the interface with a hardware address its own.
type Net struct {
	MAC     string
	Address netip.Prefix
}

// CommandLine is what the guest's kernel is started with.
func CommandLine(b Boot) string {
	words := []string{"console=ttyS0", "quiet", "mitigations=off", "panic=1", "tsc=reliable", "no_timer_check"}
	if b.TSC > 0 {
		words = append(words, fmt.Sprintf("tsc_early_khz=%d", b.TSC))
	}
	words = append(words, "lab.name="+b.Name)
	nets := make([]string, len(b.Nets))
	for i, n := range b.Nets {
		nets[i] = n.MAC + "@" + n.Address.String()
	}
	if len(nets) > 0 {
		words = append(words, "lab.net="+strings.Join(nets, ","))
	}
	return strings.Join(append(words, b.Extra...), " ")
}
