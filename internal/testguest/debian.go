package testguest

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// kernelPackage always depends on the newest kernel that Debian builds for
// virtual machines.
const kernelPackage = "linux-image-cloud-amd64"

// maxMember bounds one file taken out of a package.
const maxMember = 256 << 20

// packages returns the Debian packages of the image. It downloads packages that are missing in dir, and uses
// existing ones without asking the network for newer versions.
func packages(ctx context.Context, dir string, say func(string)) (kernel, busybox string, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", "", err
	}
	kernel, busybox = present(dir, "linux-image-[0-9]*_*.deb"), present(dir, "busybox-static_*.deb")
	if kernel == "" {
		name, err := kernelName(ctx)
		if err != nil {
			return "", "", err
		}
		if err := download(ctx, dir, name, say); err != nil {
			return "", "", err
		}
		kernel = present(dir, "linux-image-[0-9]*_*.deb")
	}
	if busybox == "" {
		if err := download(ctx, dir, "busybox-static", say); err != nil {
			return "", "", err
		}
		busybox = present(dir, "busybox-static_*.deb")
	}
	if kernel == "" || busybox == "" {
		return "", "", errors.New("cannot make the guest image: apt-get download left no package behind")
	}
	return kernel, busybox, nil
}

// present gives the last file that matches, or "".
func present(dir, pattern string) string {
	found, _ := filepath.Glob(filepath.Join(dir, pattern))
	if len(found) == 0 {
		return ""
	}
	return found[len(found)-1]
}

func kernelName(ctx context.Context) (string, error) {
	listing, err := output(ctx, "", "apt-cache", "depends", "--important", kernelPackage)
	if err != nil {
		return "", err
	}
	for text := range strings.Lines(listing) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(text), "Depends: linux-image-"); ok {
			return "linux-image-" + name, nil
		}
	}
	return "", fmt.Errorf("cannot find a kernel for the guest image: apt knows no package %s; run apt-get update", kernelPackage)
}

func download(ctx context.Context, dir, name string, say func(string)) error {
	say("downloading Debian package " + name)
	// As root apt would switch to a user without write access here.
	_, err := output(ctx, dir, "apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", name)
	return err
}

func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	command := exec.CommandContext(ctx, name, args...)
	command.Dir = dir
	var stderr bytes.Buffer
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("cannot run %s %s: %w: %s", name, strings.Join(args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return string(out), nil
}

// take reads a package without unpacking it and gives the files that want
// chooses, by their path in it without a leading slash.
func take(ctx context.Context, deb string, want func(path string) bool) (map[string][]byte, error) {
	command := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", deb)
	stream, err := command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", deb, err)
	}
	files, failed := members(tar.NewReader(stream), want)
	_, _ = io.Copy(io.Discard, stream) // so that dpkg-deb can end
	if err := errors.Join(failed, command.Wait()); err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", deb, err)
	}
	return files, nil
}

func members(from *tar.Reader, want func(path string) bool) (map[string][]byte, error) {
	files := map[string][]byte{}
	for {
		header, err := from.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, err
		}
		path := strings.TrimPrefix(header.Name, "./")
		if header.Typeflag != tar.TypeReg || !want(path) {
			continue
		}
		if header.Size > maxMember {
			return nil, fmt.Errorf("%s has %d bytes, more than the %d that are sane", path, header.Size, int64(maxMember))
		}
		if files[path], err = io.ReadAll(from); err != nil {
			return nil, err
		}
	}
}
