package testguest

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"
)

func TestArchive_ReadByCpio(t *testing.T) {
	if _, err := exec.LookPath("cpio"); err != nil {
		t.Skip("no cpio here to read it with")
	}
	var out bytes.Buffer
	a := NewArchive(&out)
	a.Dir("bin")
	a.File("bin/odd", 0o755, []byte("12345"))
	a.Link("bin/sh", "odd")
	a.Char("console", 0o600, 5, 1)
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	list := exec.CommandContext(t.Context(), "cpio", "-itv", "--numeric-uid-gid")
	list.Stdin = &out
	listing, err := list.Output()
	if err != nil {
		t.Fatalf("cpio cannot read it: %v", err)
	}
	for _, want := range []string{"drwxr-xr-x   2 0        0 ", "-rwxr-xr-x   1 0        0               5 ", "bin/sh -> odd", "crw-------   1 0        0          5,   1 "} {
		if !strings.Contains(string(listing), want) {
			t.Errorf("no %q in\n%s", want, listing)
		}
	}
}

func TestArrange_DependenciesFirst(t *testing.T) {
	files := map[string][]byte{
		"lib/modules/6.1/kernel/net/virtio_net.ko":      object("depends=virtio,net_failover"),
		"lib/modules/6.1/kernel/net/net_failover.ko":    object("depends=failover"),
		"lib/modules/6.1/kernel/net/failover.ko":        object("depends="),
		"lib/modules/6.1/kernel/virtio/virtio.ko":       object("license=GPL"),
		"lib/modules/6.1/kernel/char/virtio-rng.ko":     object("depends=virtio"),
		"lib/modules/6.1/kernel/unwanted/everything.ko": object("depends="),
	}
	order, err := Arrange(t.Context(), files, []string{"virtio-rng", "virtio_net", "built_in_here"})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range order {
		names = append(names, m.Name)
	}
	if got, want := strings.Join(names, " "), "virtio virtio_rng failover net_failover virtio_net"; got != want {
		t.Errorf("order %q, want %q", got, want)
	}
}

func TestArrange_InvalidModule(t *testing.T) {
	files := map[string][]byte{"lib/modules/6.1/virtio.ko": []byte("no ELF")}
	if _, err := Arrange(t.Context(), files, []string{"virtio"}); err == nil || !strings.Contains(err.Error(), "virtio.ko") {
		t.Fatalf("got %v", err)
	}
}
