package domainxml

import (
	"regexp"
	"strings"

	"github.com/lodge-kvm/lodge/internal/word/device"
)

// The dump of a running guest names sockets that its host made for that run
// alone. The next start makes others. Their paths identify them: libvirt's lie in its own
// folders, with a layout that changed over the years, and Lodge's in a guest's run directory.

// libvirtDirs are the folders where libvirt keeps files of running guests.
var libvirtDirs = []string{"/var/lib/libvirt/qemu/", "/run/libvirt/qemu/", "/var/run/libvirt/qemu/"}

var (
	// channelFolder matches the part between libvirt's folder of channels and a channel's name: the guest's
	// name with a dot, or a folder for the guest.
	channelFolder = regexp.MustCompile(`^channel/(target/)?([^/]+\.|domain-[^/]+/|[0-9]+-[^/]+/)$`)
	// runFolder is the end of a folder that libvirt made for a guest, wherever it is.
	runFolder = regexp.MustCompile(`/domain-[^/]+/$`)
	// ownSocket matches a socket that Lodge made in a guest's run directory.
	ownSocket = regexp.MustCompile(`/guest/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}/(own/)?[^/]+\.sock$`)
)

func inLibvirtDir(path string) (below string, is bool) {
	for _, dir := range libvirtDirs {
		if below, is = strings.CutPrefix(path, dir); is {
			return below, true
		}
	}
	return "", false
}

// isGeneratedChannel says whether a channel's socket was given its path by a host.
func isGeneratedChannel(path, name string) bool {
	folder, is := strings.CutSuffix(path, name)
	if !is || name == "" {
		return false
	}
	below, libvirts := inLibvirtDir(folder)
	return libvirts && channelFolder.MatchString(below) || runFolder.MatchString(folder)
}

// settleSocket removes the path of a socket that a host chose for one run, so that the next start chooses another.
func settleSocket(b *device.Backend, name string) {
	if b.Type == "unix" && b.Mode != "connect" && (isGeneratedChannel(b.Path, name) || ownSocket.MatchString(b.Path)) {
		b.Path, b.Mode = "", ""
	}
}

// settleListen is settleSocket for a display. A VNC display gets an address again, as in libvirt: it may
// have had a socket only because of its host's settings.
func settleListen(kind string, l *device.Listen) {
	if l.Type != "socket" {
		return
	}
	if _, libvirts := inLibvirtDir(l.Socket); libvirts {
		l.Socket = ""
		if kind == "vnc" {
			l.Type = "address"
		}
	} else if ownSocket.MatchString(l.Socket) {
		l.Socket = ""
	}
}
