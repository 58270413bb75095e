package image

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// A qemu-img that an image has taken over writes what it likes into all that it has open, and opens again to write
// what it was handed to read. So what the headers name is noted meanwhile, as for a QEMU, and a header that
// names something else after it leads nowhere.

// toolImage is an image that the tool has, as what it takes it for.
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

// withRecords has do run the tool on images.
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

// toolRuns are those of the tool on a file.
type toolRuns struct {
	count   int
	backing string // what is noted of the file
	// removeAtEnd says that nobody else wants it noted any more, or has: the last one forgets it. Who does
	// not end with them, such as a QEMU that is started meanwhile, has it noted by the same words.
	removeAtEnd bool
}

// record notes what an image's header names. What somebody else notes, before or meanwhile, stays when the tool has ended.
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

// release forgets it with the last run, if the header is as it was.
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
		err = fault.New(fault.Failed, fault.Volume, "qemu-img, which one of the images may have taken over, has changed what the header of %s names as the layer below; it is not used so", p.file.Name())
	}
	if err != nil {
		r.removeAtEnd = false // it stays noted
		return err
	}
	mark, _, noted := readRecord(p.file)
	if !noted || r.count > 0 {
		return nil
	}
	return unix.Fremovexattr(int(p.file.Fd()), mark)
}
