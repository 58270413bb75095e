package image

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// A qemu-img that was compromised by an image can write anything to the files that it has open, and can open the
// files that it got read-only once more to write. So while it runs, the backing files of the images are recorded
// as for a QEMU, and a header that names another one afterwards is refused.

// toolImage is an image that qemu-img has open, with the format it is opened as.
type toolImage struct {
	file   *os.File
	format Format
}

// toolImages are the layers of a chain.
func (c Chain) toolImages() (all []toolImage) {
	for _, l := range c {
		all = append(all, toolImage{l.File, l.Format})
	}
	return all
}

// withRecords calls do, which runs qemu-img on the images, with their backing files recorded.
func withRecords(images []toolImage, do func() error) (err error) {
	for _, p := range images {
		release, e := p.record()
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

// toolRuns are the current runs of qemu-img on one file.
type toolRuns struct {
	count   int
	backing string // the record of the file
	// removeAtEnd: the last run removes the record, because no other user needs it. A user that outlives
	// the runs, such as a QEMU that starts meanwhile, sets it to false.
	removeAtEnd bool
}

// record records what an image's header names. A record that another user made, before or meanwhile, stays
// after qemu-img has ended.
func (p toolImage) record() (release func() error, err error) {
	if !p.format.IsLayered() {
		return func() error { return nil }, nil
	}
	file, end, err := lockOpenFile(p.file)
	if err != nil {
		return nil, err
	}
	defer end()
	r := toolRunsOn(file)
	if r == nil {
		r = &toolRuns{}
		if _, below, noted := readRecord(p.file); noted {
			r.backing = below
		} else {
			info, err := Inspect(p.file, p.format)
			if err == nil {
				err = writeRecord(p.file, info.backingText())
			}
			if err != nil {
				return nil, err
			}
			r.backing, r.removeAtEnd = info.backingText(), true
		}
		setToolRuns(file, r)
	}
	r.count++
	return func() error { return p.release(r) }, nil
}

// release removes the record with the last run, if the header is unchanged.
func (p toolImage) release(r *toolRuns) error {
	file, end, err := lockOpenFile(p.file)
	if err != nil {
		return err
	}
	defer end()
	if r.count--; r.count == 0 {
		setToolRuns(file, nil)
	}
	if !r.removeAtEnd {
		return nil
	}
	now, err := Inspect(p.file, p.format)
	if err == nil && now.backingText() != r.backing {
		err = fault.New(fault.Failed, fault.Volume, "qemu-img, perhaps compromised by one of the images, has changed the backing file in the header of %s; the image cannot be used", p.file.Name())
	}
	if err != nil {
		r.removeAtEnd = false // the record stays
		return err
	}
	mark, _, noted := readRecord(p.file)
	if !noted || r.count > 0 {
		return nil
	}
	return unix.Fremovexattr(int(p.file.Fd()), mark)
}
