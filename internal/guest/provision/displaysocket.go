package provision

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/guest/machine"
	"github.com/lodge-kvm/lodge/internal/mechanism/fsguard"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemuprocess"
	"github.com/lodge-kvm/lodge/internal/mechanism/sandbox"
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// placeDisplays lets displays make their sockets at the paths of the definition. QEMU gets a directory of
// its own in place of the socket's directory, and a link at the socket's path leads into it.
func placeDisplays(ctx context.Context, r *machine.Registry, sc scope.Scope, def *domain.Definition, c *sandbox.Spec) error {
	own := c.WritableDirs[0]
	for _, path := range displaySockets(def, own.Path) {
		dir := filepath.Join(own.HostPath, fmt.Sprintf("display%d", len(c.WritableDirs)))
		err := os.Mkdir(dir, 0o700)
		if err == nil {
			err = os.Lchown(dir, int(c.User.UID), int(c.User.GID))
		}
		if err == nil {
			err = linkSocket(ctx, sc, filepath.Join(dir, filepath.Base(path)), path, r.RunDir)
		}
		if err != nil {
			return fault.Wrap(err, machine.Failure(err), fault.Host, "cannot prepare the directory of the display's socket %s", path)
		}
		c.WritableDirs = append(c.WritableDirs, sandbox.WritableDir{HostPath: dir, Path: filepath.Dir(path)})
	}
	return nil
}

// displaySockets returns the paths of display sockets outside of the guest's own directory.
func displaySockets(def *domain.Definition, own string) []string {
	var paths []string
	for _, g := range def.Devices.Graphics {
		if len(g.Listens) > 0 && g.Listens[0].Type == "socket" && g.Listens[0].Socket != "" && filepath.Dir(g.Listens[0].Socket) != own {
			paths = append(paths, g.Listens[0].Socket)
		}
	}
	return paths
}

// linkSocket makes a link at path, if the path is permitted to the client that named it. It replaces only
// a leftover of an earlier instance.
func linkSocket(ctx context.Context, sc scope.Scope, to, path, runDir string) error {
	held := sc.FoldersFor(path)
	return fsguard.Run(ctx, path, func() error {
		return image.WithParent(path, held, func(at string) error {
			if err := qemuprocess.RemoveDeserted(at); err != nil {
				return err
			}
			if err := unlinkSocket(at, runDir); err != nil {
				return err
			}
			return os.Symlink(to, at)
		})
	})
}

// unlinkSocket removes a link that leads into the run directory of an instance. It opens the folder once and
// removes there, because another folder may take its path between the check and the removal.
func unlinkSocket(path, runDir string) error {
	folder, err := os.OpenRoot(filepath.Dir(path))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = folder.Close() }()
	if to, err := folder.Readlink(filepath.Base(path)); err == nil && strings.HasPrefix(to, runDir+"/") {
		return folder.Remove(filepath.Base(path))
	}
	return nil
}
