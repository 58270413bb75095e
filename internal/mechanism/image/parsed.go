package image

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
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

// runs are those of the tool on a file.
type runs struct {
	count int
	below string // what is noted of the file
	// alone says that nobody else wants it noted any more, or has: the last one forgets it. Who does
	// not end with them, such as a QEMU that is started meanwhile, has it noted by the same words.
	alone bool
}

// guard notes what an image's header names. What somebody else notes, before or meanwhile, stays when the tool has ended.
func (p parsed) guard() (release func() error, err error) {
	if !p.format.IsLayered() {
		return func() error { return nil }, nil
	}
	file, end, err := turnOf(p.file)
	if err != nil {
		return nil, err
	}
	defer end()
	r := runsOn(file)
	if r == nil {
		r = &runs{}
		if _, below, noted := lentAs(p.file); noted {
			r.below = below
		} else {
			info, err := Inspect(p.file, p.format)
			if err == nil {
				err = note(p.file, info.below())
			}
			if err != nil {
				return nil, err
			}
			r.below, r.alone = info.below(), true
		}
		setRuns(file, r)
	}
	r.count++
	return func() error { return p.release(r) }, nil
}

// release forgets it with the last run, if the header is as it was.
func (p parsed) release(r *runs) error {
	file, end, err := turnOf(p.file)
	if err != nil {
		return err
	}
	defer end()
	if r.count--; r.count == 0 {
		setRuns(file, nil)
	}
	if !r.alone {
		return nil
	}
	now, err := Inspect(p.file, p.format)
	if err == nil && now.below() != r.below {
		err = fault.New(fault.Failed, fault.Volume, "qemu-img, which one of the images may have taken over, has changed what the header of %s names as the layer below; it is not used so", p.file.Name())
	}
	if err != nil {
		r.alone = false // it stays noted
		return err
	}
	mark, _, noted := lentAs(p.file)
	if !noted || r.count > 0 {
		return nil
	}
	return unix.Fremovexattr(int(p.file.Fd()), mark)
}
