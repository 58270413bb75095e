package conformance

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/digitalocean/go-libvirt"
)

// Disks and their images, the top one last. The test commits the top image of vdb, and one below the top of vdc.
var committed = map[string][]string{"vdb": {"b1", "b2", "b3"}, "vdc": {"c1", "c2", "c3", "c4"}}

// layered starts the guest with disks that have chains of several images.
func (c *crash) layered() {
	c.lan1()
	c.must(c.recreateLayers())
}

// recreateLayers recreates the images and the guest.
func (c *crash) recreateLayers() error {
	disks := ""
	for _, target := range []string{"vdb", "vdc"} {
		below := ""
		for i, name := range slices.Backward(committed[target]) {
			path := filepath.Join(c.dir, name)
			create := []string{"create", "-q", "-f", "qcow2"}
			if below != "" {
				create = append(create, "-F", "qcow2", "-b", below)
			}
			if out, err := exec.CommandContext(c.t.Context(), "qemu-img", append(create, path, "8M")...).CombinedOutput(); err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			write := fmt.Sprintf("write -q -P %d %dM 1M", i+1, i)
			if out, err := exec.CommandContext(c.t.Context(), "qemu-io", "-f", "qcow2", "-c", write, path).CombinedOutput(); err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			below = path
		}
		disks += fmt.Sprintf("<disk type='file' device='disk'><driver name='qemu' type='qcow2'/><source file='%s'/><target dev='%s' bus='virtio'/></disk>", below, target)
	}
	doc := strings.Replace(crashDoc(""), "<graphics", disks+"<graphics", 1)
	if _, err := c.l.DomainDefineXML(doc); err != nil {
		return err
	}
	return startRunning(c)
}

// restoreLayers restores the images and the guest to the state before the first step.
func restoreLayers(c *crash) error {
	if err := destroy(c); err != nil {
		return err
	}
	return c.recreateLayers()
}

// commitAll commits the active image of vdb into the base, and waits until the job is ready.
func commitAll(c *crash) error {
	if err := c.l.DomainBlockCommit(crashGuest, "vdb", nil, nil, 0, libvirt.DomainBlockCommitActive); err != nil {
		return err
	}
	for ctx := c.t.Context(); ctx.Err() == nil; pauseFor(c.t, lookAgain) {
		xml, err := c.l.DomainGetXMLDesc(crashGuest, 0)
		if err != nil {
			return err
		}
		if strings.Contains(xml, "ready='yes'") {
			return nil
		}
	}
	return errors.New("it is never ready")
}

// commitBelow commits images below the active one of vdc, and waits for the end.
func commitBelow(c *crash) error {
	at := func(name string) libvirt.OptString { return libvirt.OptString{filepath.Join(c.dir, name)} }
	if err := c.l.DomainBlockCommit(crashGuest, "vdc", at("c4"), at("c3"), 0, 0); err != nil {
		return err
	}
	for ctx := c.t.Context(); ctx.Err() == nil; pauseFor(c.t, lookAgain) {
		found, _, _, _, _, err := c.l.DomainGetBlockJobInfo(crashGuest, "vdc", 0)
		if err != nil || found == 0 {
			return err
		}
	}
	return errors.New("it never ends")
}

func endCommit(flags libvirt.DomainBlockJobAbortFlags) func(c *crash) error {
	return func(c *crash) error { return c.l.DomainBlockJobAbort(crashGuest, "vdb", flags) }
}

func commitActions() []action {
	again := func(more ...func(*crash) error) func(*crash) error {
		return func(c *crash) error {
			for _, do := range append([]func(*crash) error{restoreLayers}, more...) {
				if err := do(c); err != nil {
					return err
				}
			}
			return nil
		}
	}
	return []action{
		{"commit below the top", commitBelow, restoreLayers},
		{"commit the top", commitAll, endCommit(0)},
		{"abort that", endCommit(0), commitAll},
		{"commit the top once more", commitAll, endCommit(0)},
		{"pivot", endCommit(libvirt.DomainBlockJobAbortPivot), again(commitBelow, commitAll)},
	}
}

// wholeChains checks that no write is lost, after every commit and every kill.
func (c *crash) wholeChains() {
	c.must(destroy(c))
	for top, patterns := range map[string]int{"b3": 3, "c1": 4} {
		for i := range patterns {
			read := fmt.Sprintf("read -P %d %dM 1M", i+1, i)
			out, err := exec.CommandContext(c.t.Context(), "qemu-io", "-r", "-f", "qcow2", "-c", read, filepath.Join(c.dir, top)).CombinedOutput()
			if err != nil || strings.Contains(string(out), "verification failed") {
				c.t.Errorf("%s has lost the data written at %d MiB: %v: %s", top, i, err, out)
			}
		}
	}
	c.must(startRunning(c))
}
