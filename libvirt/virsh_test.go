package libvirt

import (
	"context"
	"os/exec"
	"strings"
	"testing"
)

// virsh runs the distribution's own client against the house.
func (h *house) virsh(args ...string) (string, error) {
	h.t.Helper()
	path, err := exec.LookPath("virsh")
	if err != nil {
		h.t.Skip("virsh is not installed")
	}
	ctx, cancel := context.WithTimeout(h.t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, append([]string{"-c", "qemu:///system?socket=" + h.socket}, args...)...)
	cmd.Env = append(cmd.Environ(), "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func TestVirsh(t *testing.T) {
	h := serve(t)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"uri"}, "qemu:///system"},
		{[]string{"hostname"}, ""},
		{[]string{"-r", "uri"}, "qemu:///system"},
		{[]string{"event", "--all", "--timeout", "1"}, "event loop timed out"},
		{[]string{"net-event", "--event", "lifecycle", "--timeout", "1"}, "event loop timed out"},
		{[]string{"-k", "1", "-K", "3", "event", "--event", "lifecycle", "--timeout", "4"}, "event loop timed out"},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			out, err := h.virsh(c.args...)
			if !strings.Contains(out, c.want) {
				t.Fatalf("%v: %s", err, out)
			}
		})
	}
}
