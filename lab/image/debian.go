package image

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Suite is the Debian that guests are made of, whatever the host's own is.
const Suite = "bookworm"

// Packages are what guests have beyond what Debian needs to run at all.
var Packages = strings.Fields(`
	linux-image-cloud-amd64 kmod iproute2 e2fsprogs
	nginx-light apache2 libapache2-mod-php php-fpm php-mysql mariadb-server
	sysbench fio stress-ng`)

// Tools are the host's Debian packages that Build runs.
var Tools = []string{"mmdebstrap", "erofs-utils", "e2fsprogs", "debian-archive-keyring"}

// version changes whenever the same packages would make another tree.
const version = "2"

// epoch is the time that files are given which are made here.
const epoch = "1700000000"

// Fixed, so that equal content gives equal file systems where that is cheap.
const (
	usrID    = "4c6f6467-6520-6c61-6220-757372000000"
	rootID   = "4c6f6467-6520-6c61-6220-726f6f740000"
	rootSize = "2G" // sparse
)

// bootstrap makes the tree. Neither documents nor a first file system of Debian's
// own are wanted.
func bootstrap(tree string) []string {
	argv := []string{"mmdebstrap", "--variant=minbase", "--mode=root", "--format=directory", `--aptopt=APT::Install-Recommends "false"`}
	for _, unwanted := range []string{"doc", "man", "locale", "info"} {
		argv = append(argv, "--dpkgopt=path-exclude=/usr/share/"+unwanted+"/*")
	}
	argv = append(argv, "--customize-hook="+fetchGeneric)
	return append(argv, "--include="+strings.Join(Packages, ","), Suite, tree)
}

// genericModules are those of Debian's generic kernel that guests are given: folders
// and files below its folder of modules.
var genericModules = strings.Fields(`
	arch/x86/crypto block crypto lib net/core
	fs/mbcache.ko fs/jbd2 fs/ext4 fs/erofs fs/netfs fs/fscache fs/cachefiles
	drivers/net/virtio_net.ko drivers/net/net_failover.ko drivers/net/ethernet/intel/e1000 drivers/net/ethernet/intel/e1000e drivers/ptp drivers/pps
	drivers/acpi drivers/ata drivers/block drivers/cdrom drivers/char drivers/input drivers/scsi drivers/virtio`)

// fetchGeneric puts Debian's generic kernel, of the very version that the clouds' has,
// into the folder "generic" of the tree. It is not installed: of its 400 MB guests
// need three hundredths, and nothing is to be made for it. Run by mmdebstrap.
var fetchGeneric = `set -e
	mkdir "$1/generic"
	cd "$1/generic"
	version=$(basename ../boot/vmlinuz-*-cloud-amd64 -cloud-amd64)
	name=linux-image-${version#vmlinuz-}-amd64
	APT_CONFIG="$MMDEBSTRAP_APT_CONFIG" apt-get --quiet download "$name"
	dpkg-deb --fsys-tarfile ./*.deb | tar --extract --wildcards './boot/vmlinuz-*'` + patterns(genericModules) + `
	dpkg-deb --show ./*.deb >package
	rm ./*.deb`

// patterns are tar's for modules of whatever version.
func patterns(modules []string) string {
	var b strings.Builder
	for _, one := range modules {
		b.WriteString(" './lib/modules/*/kernel/" + one + "'")
	}
	return b.String()
}

// recipe names all that a tree is made from, but for the versions of its packages.
func recipe() string {
	sum := sha256.Sum256([]byte(version + epoch + usrID + rootID + rootSize + strings.Join(bootstrap(""), " ")))
	return hex.EncodeToString(sum[:8])
}

// debian fills a folder with a kernel, its modules, /usr and a root.
func debian(ctx context.Context, part string, say func(string)) error {
	tree := filepath.Join(part, "tree")
	say("installing Debian packages for the guest (220 MB to download)")
	if err := run(ctx, say, bootstrap(tree)...); err != nil {
		return err
	}
	status, err := os.ReadFile(filepath.Join(tree, "var/lib/dpkg/status"))
	if err != nil {
		return err
	}
	packages := installed(string(status))
	if err := takeGeneric(filepath.Join(tree, "generic"), part, packages); err != nil {
		return err
	}
	if err := take(tree, part); err != nil {
		return err
	}
	say("making /usr")
	if err := run(ctx, nil, "mkfs.erofs", "--quiet", "-T"+epoch, "-U"+usrID, "-x-1", filepath.Join(part, "usr.erofs"), filepath.Join(part, "usr")); err != nil {
		return err
	}
	say("making the root")
	root := filepath.Join(part, "root.raw")
	if err := run(ctx, nil, "mke2fs", "-q", "-F", "-t", "ext4", "-m", "0", "-U", rootID, "-L", "lab-root",
		"-E", "root_owner=0:0,hash_seed="+rootID, "-d", tree, root, rootSize); err != nil {
		return err
	}
	for _, dir := range []string{tree, filepath.Join(part, "usr")} {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	return writeFacts(part, contents{Packages: packages})
}

// takeGeneric moves the other kernel and its modules out of the tree, and notes its
// package's version.
func takeGeneric(from, part string, packages map[string]string) error {
	shown, err := os.ReadFile(filepath.Join(from, "package"))
	if err != nil {
		return err
	}
	name, version, ok := strings.Cut(strings.TrimSpace(string(shown)), "\t")
	if !ok {
		return fmt.Errorf("the generic kernel's package says %q of itself", shown)
	}
	packages[name] = version
	kernels, err := filepath.Glob(filepath.Join(from, "boot/vmlinuz-*"))
	if err != nil || len(kernels) != 1 {
		return fmt.Errorf("there are %d generic kernels and not one", len(kernels))
	}
	if err := os.Rename(kernels[0], filepath.Join(part, genericKernel)); err != nil {
		return err
	}
	if err := copyModules(filepath.Join(from, "lib/modules"), filepath.Join(part, genericModulesDir)); err != nil {
		return err
	}
	return os.RemoveAll(from)
}

// What the generic kernel's files are called in a tree.
const (
	genericKernel     = "vmlinuz-generic"
	genericModulesDir = "modules-generic"
)

// take moves the kernel, its modules and /usr out of a tree, and removes what no
// guest needs. Apt's folders go too: what is in them changes owner with the place
// that the tree is made in.
func take(tree, part string) error {
	kernels, err := filepath.Glob(filepath.Join(tree, "boot/vmlinuz-*"))
	if err != nil || len(kernels) != 1 {
		return fmt.Errorf("there are %d kernels in the tree and not one", len(kernels))
	}
	if err := os.Rename(kernels[0], filepath.Join(part, "vmlinuz")); err != nil {
		return err
	}
	if err := copyModules(filepath.Join(tree, "usr/lib/modules"), filepath.Join(part, "modules")); err != nil {
		return err
	}
	if err := os.Rename(filepath.Join(tree, "usr"), filepath.Join(part, "usr")); err != nil {
		return err
	}
	for _, unwanted := range []string{"boot", "vmlinuz", "vmlinuz.old", "initrd.img", "initrd.img.old", "var/lib/apt", "var/cache/apt", "etc/machine-id"} {
		if err := os.RemoveAll(filepath.Join(tree, unwanted)); err != nil {
			return err
		}
	}
	return os.Mkdir(filepath.Join(tree, "usr"), 0o755)
}

// copyModules keeps the modules that a guest may need before it has its /usr, and
// those that they may need in turn.
func copyModules(from, to string) error {
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".ko") {
			return err
		}
		inside, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		_, inside, _ = strings.Cut(inside, "/") // the kernel's version
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, inside)
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return err
		}
		return os.WriteFile(target, content, 0o644)
	})
}

// run runs a tool and tells of each line that it says. Cancelled, the tool gets
// time to clean up: mmdebstrap has mounts.
func run(ctx context.Context, say func(string), argv ...string) error {
	command := exec.CommandContext(ctx, argv[0], argv[1:]...)
	command.Env = append(os.Environ(), "SOURCE_DATE_EPOCH="+epoch, "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C.UTF-8",
		"INITRD=No") // read by the kernel package's scripts
	command.Cancel = func() error { return command.Process.Signal(unix.SIGTERM) }
	command.WaitDelay = 30 * time.Second
	said := &lines{say: say}
	command.Stdout, command.Stderr = said, said
	if err := command.Run(); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fmt.Errorf("cannot run %s: %w: %s", argv[0], err, bytes.TrimSpace(said.last))
	}
	return nil
}

// lines tells of each whole line, and keeps the end for an error.
type lines struct {
	say  func(string)
	rest []byte
	last []byte
}

// lastWords bounds what is kept.
const lastWords = 2000

func (l *lines) Write(p []byte) (int, error) {
	l.last = append(l.last, p...)
	l.last = l.last[max(0, len(l.last)-lastWords):]
	if l.say == nil {
		return len(p), nil
	}
	from := bufio.NewReader(io.MultiReader(bytes.NewReader(l.rest), bytes.NewReader(p)))
	for {
		line, err := from.ReadString('\n')
		if err != nil {
			l.rest = []byte(line)
			return len(p), nil
		}
		if text := strings.TrimSpace(line); text != "" {
			l.say(text)
		}
	}
}
