package kernel_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel/kerneltest"
)

func TestSELinux_Read(t *testing.T) {
	dir := kerneltest.Dir(t, kerneltest.SELinux)
	root := kernel.At(dir)
	s, on := root.SELinux()
	if !on || !s.Enforcing || !s.MCS || s.Own != "system_u:system_r:virtd_t:s0-s0:c0.c1023" {
		t.Errorf("read %+v, %v", s, on)
	}
	if want := []string{"system_u:system_r:svirt_t:s0", "system_u:system_r:svirt_tcg_t:s0"}; !slices.Equal(s.Processes, want) {
		t.Errorf("processes of guests are %v, not %v", s.Processes, want)
	}
	if want := []string{"system_u:object_r:svirt_image_t:s0", "system_u:object_r:virt_content_t:s0"}; !slices.Equal(s.Images, want) {
		t.Errorf("images of guests are %v, not %v", s.Images, want)
	}
	if all := root.ProcessLabels(); !slices.Contains(all, "system_u:system_r:container_t:s0:c10,c20") {
		t.Errorf("another's process is not among %v", all)
	}
	write(t, filepath.Join(dir, "sys/fs/selinux/enforce"), "0")
	if s, on := root.SELinux(); !on || s.Enforcing {
		t.Errorf("a permissive host is read as %+v, %v", s, on)
	}
	// The name of a policy cannot lead to another directory.
	write(t, filepath.Join(dir, "etc/selinux/config"), "SELINUXTYPE=../selinux/targeted\n")
	if s, _ := root.SELinux(); len(s.Processes) != 2 {
		t.Errorf("a policy of no name is read as %+v", s)
	}
	if _, on := kerneltest.Host(t, kerneltest.Laptop).SELinux(); on {
		t.Error("a host without SELinux has it")
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestSELinux_PolicyForbids(t *testing.T) {
	dir := kerneltest.Dir(t, kerneltest.SELinux)
	root := kernel.At(dir)
	ask := func() []string {
		t.Helper()
		missing, err := root.Forbidden("a:b:c:s0", "a:b:d:s0", "process", "transition", "signal", "sigkill", "unheard-of")
		if err != nil {
			t.Fatal(err)
		}
		return missing
	}
	if missing := ask(); len(missing) > 0 {
		t.Errorf("all is allowed, and %v is not", missing)
	}
	write(t, filepath.Join(dir, "sys/fs/selinux/access"), "40 ffffffff 0 ffffffff 12 0") // signal is bit 7
	if missing := ask(); !slices.Equal(missing, []string{"transition", "sigkill"}) {
		t.Errorf("a signal alone is allowed, and forbidden are %v", missing)
	}
	write(t, filepath.Join(dir, "sys/fs/selinux/access"), "what?")
	if _, err := root.Forbidden("a:b:c:s0", "a:b:d:s0", "process", "transition"); err == nil {
		t.Error("rubbish is an answer")
	}
	if _, err := root.Forbidden("a:b:c:s0", "a:b:d:s0", "processx", "transition"); !fault.Is(err, fault.Unsupported) {
		t.Errorf("a class that there is not: %v", err)
	}
}

// TestSELinux_FileLabels: root can set a file's context even if SELinux is off in the
// kernel.
func TestSELinux_FileLabels(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const context = "system_u:object_r:svirt_image_t:s0:c1,c2"
	if err := kernel.SetFileLabel(f, context); err != nil {
		t.Skip("files here cannot be labelled: ", err)
	}
	raw := make([]byte, 100)
	n, err := unix.Getxattr(f.Name(), "security.selinux", raw)
	if err != nil || string(raw[:n]) != context+"\x00" {
		t.Errorf("its attribute is %q (%v)", raw[:max(n, 0)], err)
	}
	if now, err := kernel.FileLabel(f); now != context || err != nil {
		t.Errorf("it is %q, %v", now, err)
	}
	for range 2 {
		if err := kernel.SetFileLabel(f, ""); err != nil {
			t.Errorf("its label cannot be taken away: %v", err)
		}
	}
	if now, err := kernel.FileLabel(f); now != "" || err != nil {
		t.Errorf("it is %q without a label, %v", now, err)
	}
	without, err := os.Open("/proc/self/limits")
	if err != nil {
		t.Fatal(err)
	}
	defer without.Close()
	if err := kernel.SetFileLabel(without, context); !fault.Is(err, fault.Unsupported) && !strings.Contains(err.Error(), "permission") {
		t.Errorf("a file system without labels says %v", err)
	}
}

func TestSELinux_SocketLabels(t *testing.T) {
	dir := kerneltest.Dir(t, kerneltest.SELinux)
	at := filepath.Join(dir, "proc/thread-self/attr/sockcreate")
	said := func() string {
		t.Helper()
		text, err := os.ReadFile(at)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	err := kernel.At(dir).WithSocketLabel("a:b:c:s0", func() error {
		if said() != "a:b:c:s0" {
			t.Errorf("the thread makes sockets of %q", said())
		}
		return os.ErrInvalid
	})
	if err != os.ErrInvalid || said() != "\n" { //nolint:errorlint // the very error
		t.Errorf("after it the thread makes sockets of %q, and the error is %v", said(), err)
	}
}

func TestAppArmor_Read(t *testing.T) {
	dir := kerneltest.Dir(t, kerneltest.AppArmor)
	root := kernel.At(dir)
	a, on := root.AppArmor()
	if !on || a.Own != "unconfined" || !strings.HasSuffix(a.ExecLabel(root), "attr/apparmor/exec") {
		t.Errorf("read %+v (%v), which enters profiles by %s", a, on, a.ExecLabel(root))
	}
	all, err := root.Profiles()
	if err != nil || len(all) != 2 || all["made-by-hand"] != "enforce" {
		t.Errorf("its profiles are %v, %v", all, err)
	}
	removed := filepath.Join(dir, "sys/kernel/security/apparmor/.remove")
	for _, name := range []string{"not-there", "made-by-hand"} {
		if err := root.RemoveProfile(name); err != nil {
			t.Error(err)
		}
	}
	if text, err := os.ReadFile(removed); err != nil || string(text) != "made-by-hand" {
		t.Errorf("the kernel was told to remove %q (%v)", text, err)
	}
	// Older kernels have one file for all security modules.
	if err := os.RemoveAll(filepath.Join(dir, "proc/self/attr/apparmor")); err != nil {
		t.Fatal(err)
	}
	if at := a.ExecLabel(root); !strings.HasSuffix(at, "attr/exec") || strings.Contains(at, "apparmor/exec") {
		t.Errorf("an older kernel enters profiles by %s", at)
	}
	if _, on := kerneltest.Host(t, kerneltest.SELinux).AppArmor(); on {
		t.Error("a host without AppArmor has it")
	}
}
