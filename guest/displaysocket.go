package guest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/lodge-kvm/lodge/chamber"
	"github.com/lodge-kvm/lodge/domain"
	"github.com/lodge-kvm/lodge/fault"
	"github.com/lodge-kvm/lodge/qemu"
)

// placeDisplays lets displays make their sockets where the user wants them: what
// QEMU takes for that directory is one of its own, and a link leads there.
func (r *Registry) placeDisplays(def *domain.Definition, c *chamber.Chamber) error {
	own := c.Own[0]
	for _, path := range displaySockets(def, own.At) {
		dir := filepath.Join(own.Dir, fmt.Sprintf("display%d", len(c.Own)))
		err := os.Mkdir(dir, 0o700)
		if err == nil {
			err = os.Lchown(dir, int(c.User.UID), int(c.User.GID))
		}
		if err == nil {
			err = linkSocket(filepath.Join(dir, filepath.Base(path)), path, r.RunDir)
		}
		if err != nil {
			return fault.Wrap(err, fault.Failed, fault.Host, "cannot make a place for the display's socket %s", path)
		}
		c.Own = append(c.Own, chamber.Own{Dir: dir, At: filepath.Dir(path)})
	}
	return nil
}

// displaySockets are the sockets of displays that do not lie in the guest's own
// directory.
func displaySockets(def *domain.Definition, own string) []string {
	var paths []string
	for _, g := range def.Devices.Graphics {
		if len(g.Listens) > 0 && g.Listens[0].Type == "socket" && g.Listens[0].Socket != "" && filepath.Dir(g.Listens[0].Socket) != own {
			paths = append(paths, g.Listens[0].Socket)
		}
	}
	return paths
}

// linkSocket makes a link at path. It replaces what an earlier run left, and
// nothing else.
func linkSocket(to, path, runDir string) error {
	if err := qemu.RemoveDeserted(path); err != nil {
		return err
	}
	if err := unlinkSocket(path, runDir); err != nil {
		return err
	}
	return os.Symlink(to, path)
}

func unlinkSocket(path, runDir string) error {
	if to, err := os.Readlink(path); err == nil && strings.HasPrefix(to, runDir+"/") {
		return os.Remove(path)
	}
	return nil
}
