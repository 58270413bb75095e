package image

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/fault"
)

// A qemu-img that an image has taken over writes what it likes into all that it has open, and opens again to write
// what it was handed to read. So what the headers name is noted meanwhile, as for a QEMU, and a header that
// names something else after it leads nowhere.

// parsed is an image that the tool has, as what it takes it for.
type parsed struct {
	file   *os.File
	format Format
}

// parsed are the layers of a chain.
func (c Chain) parsed() (all []parsed) {
	for _, l := range c {
		all = append(all, parsed{l.File, l.Format})
	}
	return all
}

// guarded has do run the tool on images.
func guarded(images []parsed, do func() error) (err error) {
	for _, p := range images {
		release, e := p.guard()
		if err = e; err != nil {
			break
		}
		defer func() {
			if e := release(); err == nil {
				err = e
			}
		}()
	}
	if err == nil {
		err = do()
	}
	return err
}

// guard notes what an image's header names. What was noted before stays when the tool has ended.
func (p parsed) guard() (release func() error, err error) {
	end, err := turnOf(p.file)
	if err != nil {
		return nil, err
	}
	defer end()
	if _, _, noted := lentAs(p.file); noted || !p.format.IsLayered() {
		return func() error { return nil }, nil
	}
	info, err := Inspect(p.file, p.format)
	if err == nil {
		err = note(p.file, info.below())
	}
	return func() error { return p.release(info.below()) }, err
}

// release forgets it if the header is as it was.
func (p parsed) release(before string) error {
	end, err := turnOf(p.file)
	if err != nil {
		return err
	}
	defer end()
	now, err := Inspect(p.file, p.format)
	if err == nil && now.below() != before {
		err = fault.New(fault.Failed, fault.Volume, "qemu-img, which one of the images may have taken over, has changed what the header of %s names as the layer below; it is not used so", p.file.Name())
	}
	mark, _, noted := lentAs(p.file)
	if err != nil || !noted {
		return err
	}
	return unix.Fremovexattr(int(p.file.Fd()), mark)
}
