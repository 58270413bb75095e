package image

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// The bounds of what is read of a first file system.
const (
	maxName  = 4096
	maxAgent = 256 << 20
)

// Agent writes the image's own agent, which is the first program of its first file
// system, into a file: what answers outside of a guest is then what answers in one.
func (i Image) Agent(path string) error {
	in, err := os.Open(i.Initrd)
	if err != nil {
		return fmt.Errorf("cannot read the guest's agent: %w", err)
	}
	defer in.Close()
	program, err := member(bufio.NewReader(in), "init")
	if err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot read the guest's agent out of %s", i.Initrd)
	}
	return os.WriteFile(path, program, 0o755)
}

// member gives a file of an archive in the kernel's form (cpio, newc): a header of
// hexadecimal numbers, the name and the content, each filled up to four bytes.
func member(archive *bufio.Reader, want string) ([]byte, error) {
	const header = 6 + 13*8
	for {
		head := make([]byte, header)
		if _, err := io.ReadFull(archive, head); err != nil {
			return nil, fmt.Errorf("it has no %s: %w", want, err)
		}
		size, failed := strconv.ParseUint(string(head[54:62]), 16, 32)
		long, err := strconv.ParseUint(string(head[94:102]), 16, 32)
		if err = errors.Join(failed, err); err != nil || string(head[:6]) != "070701" || long < 1 || long > maxName || size > maxAgent {
			return nil, fmt.Errorf("it is no archive: %.20q", head)
		}
		name := make([]byte, long+(4-(header+long)%4)%4)
		if _, err := io.ReadFull(archive, name); err != nil {
			return nil, err
		}
		switch string(name[:long-1]) {
		case want:
			content := make([]byte, size)
			_, err := io.ReadFull(archive, content)
			return content, err
		case "TRAILER!!!":
			return nil, fmt.Errorf("it has no %s", want)
		}
		if _, err := archive.Discard(int(size + (4-size%4)%4)); err != nil {
			return nil, err
		}
	}
}
