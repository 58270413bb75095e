package guest_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/guest"
)

// TestTheTPMHasNoPrivileges: the emulator of a guest's TPM has no capability, and
// no way to gain one, and serves the guest all the same.
func TestTheTPMHasNoPrivileges(t *testing.T) {
	if _, err := exec.LookPath("swtpm"); err != nil {
		t.Skip("needs swtpm")
	}
	for _, isolated := range []bool{true, false} {
		t.Run(fmt.Sprintf("isolated=%v", isolated), func(t *testing.T) { testTPM(t, isolated) })
	}
}

func testTPM(t *testing.T, isolated bool) {
	d := newDaemonOf(t, isolated)
	g := d.define(small("tpm", "<tpm model='tpm-crb'><backend type='emulator' version='2.0'/></tpm>"))
	ok(t, g.Start(d.ctx(), guest.StartOptions{}))
	pid, err := os.ReadFile(filepath.Join(d.dir, "run/guest", g.UUID(), "swtpm.pid"))
	ok(t, err)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%s/status", strings.TrimSpace(string(pid))))
	ok(t, err)
	for _, want := range []string{"CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1"} {
		if !strings.Contains(string(status), want) {
			t.Errorf("swtpm has no %q:\n%s", want, status)
		}
	}
}
