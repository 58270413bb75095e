package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/cli"
	"github.com/lodge-kvm/lodge/internal/cli/clitest"
)

// lodged runs the command line and returns its output.
func lodged(t *testing.T, args ...string) (string, error) {
	t.Helper()
	return clitest.Run(t, command(), args...)
}

// lodge passes its global flags on to the commands that are run by lodged.
func TestHandedCommands_TakeGlobalFlags(t *testing.T) {
	global := []string{"--socket", "s", "--host=h", "--pki", "p"}
	nowhere := filepath.Join(t.TempDir(), "nowhere")
	for _, c := range []struct {
		args []string
		want string
	}{
		{append(append([]string{"store"}, global...), "check", "--data", nowhere), nowhere},
		{append([]string{"store", "check", "--data", nowhere}, global...), nowhere},
		{append(append([]string{"probe"}, global...), nowhere), nowhere},
		{append(append([]string{"import"}, global...), nowhere), "log in on the other host"},
		{[]string{"import", "--pki", "p", "--socket", filepath.Join(nowhere, "lodge.sock"), nowhere}, filepath.Join(nowhere, "libvirt-sock")},
	} {
		out, err := lodged(t, c.args...)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("lodged %s: %v, want %q\n%s", strings.Join(c.args, " "), err, c.want, out)
		}
	}
	help, err := lodged(t, "store", "check", "--help")
	if err != nil || strings.Contains(help, "--pki") {
		t.Errorf("the help shows flags without effect: %v\n%s", err, help)
	}
}

func TestHandedCommands_WrongFlag(t *testing.T) {
	for _, name := range []string{"store", "import", "probe"} {
		if _, err := lodged(t, name, "--nonsense"); cli.StatusOf(err) != cli.Unusable {
			t.Errorf("lodged %s --nonsense: %v, status %d", name, err, cli.StatusOf(err))
		}
	}
}

func TestHelp_NamesTheProgramThatWasCalled(t *testing.T) {
	was := os.Args[0]
	t.Cleanup(func() { os.Args[0] = was })
	for _, program := range []string{"lodge", "lodged"} {
		os.Args[0] = program
		_, err := lodged(t, "store", "chek")
		if err == nil || !strings.HasPrefix(err.Error(), `there is no command "`+program+` store chek"`) {
			t.Errorf("called as %s: %v", program, err)
		}
	}
}
