// Package image makes the guest that the lab's workloads run in, from the
// distribution's packages: Debian with web servers, PHP, MariaDB and the usual
// benchmarks.
//
// All guests share one /usr, an uncompressed erofs that the host keeps in its
// page cache once, and each has a small root of its own: an overlay over Root. The
// kernel, which is Debian's for clouds or, where that lacks drivers, the generic one,
// comes with a first file system of its own, in which the lab's agent is the first
// process: no systemd, no udev.
//
// What belongs here: making images, finding them, and what their kernel is told.
// Services in the guest are set up by lab/service.
package image

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Image is a guest that can be booted. Its files must not be written to.
type Image struct {
	Kernel string `json:"kernel"` // a bzImage
	Initrd string `json:"initrd"`
	Usr    string `json:"usr"`  // erofs, to be attached read-only with the serial number "usr"
	Root   string `json:"root"` // raw, the base of each guest's own disk with the serial number "root"
	// Generic is Debian's kernel for all machines, of the same version: with drivers
	// that the one for clouds lacks, AHCI among them. Older images have none.
	Generic Kernel `json:"generic,omitzero"`
	// Digest tells images apart that may measure differently: the packages with
	// their versions, the recipe and the agent.
	Digest   string            `json:"digest"`
	Packages map[string]string `json:"packages"` // versions by name
}

// Kernel is one with a first file system of its own.
type Kernel struct {
	Kernel string `json:"kernel"`
	Initrd string `json:"initrd"`
}

// files are all that an image is made of.
func (i *Image) files() []*string {
	all := []*string{&i.Kernel, &i.Initrd, &i.Usr, &i.Root}
	if i.Generic != (Kernel{}) {
		all = append(all, &i.Generic.Kernel, &i.Generic.Initrd)
	}
	return all
}

const (
	facts   = "image.json" // written last: what has it is whole
	current = "current"    // names the folder of the newest image
)

// Find gives the newest image in a cache.
func Find(cache string) (Image, error) {
	dir, err := filepath.EvalSymlinks(filepath.Join(cache, current))
	if errors.Is(err, fs.ErrNotExist) {
		return Image{}, fault.New(fault.NotFound, fault.Host, "there is no guest image of the lab's in %s: make one with lodge lab image, or with make lab-image in the sources; or name another folder with --images", cache)
	}
	if err != nil {
		return Image{}, fmt.Errorf("cannot find the lab's guest image: %w", err)
	}
	return read(dir)
}

// read gives the image in a folder, with whole paths.
func read(dir string) (Image, error) {
	var i Image
	dir, err := filepath.Abs(dir)
	if err != nil {
		return i, err
	}
	text, err := os.ReadFile(filepath.Join(dir, facts))
	if err != nil {
		return i, fmt.Errorf("cannot read the lab's guest image: %w", err)
	}
	if err := json.Unmarshal(text, &i); err != nil {
		return i, fmt.Errorf("cannot read the lab's guest image in %s: %w", dir, err)
	}
	for _, path := range i.files() {
		*path = filepath.Join(dir, *path)
		if _, err := os.Stat(*path); err != nil {
			return i, fault.Wrap(err, fault.NotFound, fault.Host, "the lab's guest image in %s is not whole: remove the folder and make it anew", dir)
		}
	}
	return i, nil
}
