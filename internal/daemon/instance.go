package daemon

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// resolveRunDir makes the run directory, and resolves symbolic links in its path:
// the next daemon finds control groups, networks' programs and firewall rules by that path.
func resolveRunDir(run string) (string, error) {
	if err := os.MkdirAll(run, 0o755); err != nil {
		return "", fmt.Errorf("cannot make the run directory: %w", err)
	}
	path, err := realPath(run)
	if err != nil {
		return "", fmt.Errorf("cannot find the run directory: %w", err)
	}
	if main, err := realPath(DefaultRun); err == nil && path == main {
		path = DefaultRun
	}
	return path, nil
}

func realPath(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(path)
}

func sameDirectory(one, other string) bool {
	a, err := os.Stat(one)
	b, err2 := os.Stat(other)
	return err == nil && err2 == nil && os.SameFile(a, b)
}

// instanceName names the daemon of a run directory, for use in shared namespaces:
// empty for the main daemon.
func instanceName(run string) string {
	if run == DefaultRun {
		return ""
	}
	sum := sha256.Sum256([]byte(run))
	return hex.EncodeToString(sum[:3])
}

// instanceNumber is the instance's name as a number; 0: the main daemon.
func instanceNumber(instance string) uint32 {
	bytes, err := hex.DecodeString(instance)
	if err != nil || len(bytes) < 3 {
		return 0
	}
	return 1 + uint32(bytes[0])<<16 | uint32(bytes[1])<<8 | uint32(bytes[2])
}

// bootID identifies this boot of the host; empty if the kernel does not tell.
func bootID() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
}
