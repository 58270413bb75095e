package conformance

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// consoleFence opens the blocks of a page whose commands are run. Their commands begin with commandPrompt; a command
// that ends with a backslash continues on the next line. Other lines are output, which is not compared.
const (
	consoleFence  = "```console"
	commandPrompt = "$ "
)

// shownCommands returns the commands of a page's console blocks, in their order.
func shownCommands(t *testing.T, page string) []string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var commands []string
	inside, continued := false, false
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		command, begins := strings.CutPrefix(line, commandPrompt)
		switch {
		case !inside:
			inside = line == consoleFence
			continue
		case line == "```":
			inside = false
			continue
		case continued:
			commands[len(commands)-1] += "\n" + line
		case begins:
			commands = append(commands, command)
		default:
			continue
		}
		continued = strings.HasSuffix(line, `\`)
	}
	if len(commands) == 0 {
		t.Fatalf("%s shows no commands", page)
	}
	return commands
}

// TestDocs_ShownCommands runs the commands that README and the guide show, each page on a fresh daemon with what
// `make up` leaves: eight running guests. The guests here have no system to boot, so that they run at once.
func TestDocs_ShownCommands(t *testing.T) {
	needs(t, "curl", "qemu-img", "pgrep")
	for _, page := range []string{"README.md", "docs/guide.md"} {
		t.Run(filepath.Base(page), func(t *testing.T) {
			commands := shownCommands(t, filepath.Join("..", page))
			lodgeWithLab(t)
			d := start(t)
			d.startTileOfUp(t)
			d.runShown(t, commands)
		})
	}
}

// startTileOfUp starts guests with the names that scripts/up gives.
func (d *daemon) startTileOfUp(t *testing.T) {
	t.Helper()
	folder := filepath.Join(d.dir, "up")
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, role := range []string{"web", "web2", "client", "backend", "cpu", "disk", "db", "idle"} {
		d.file(t, "up/"+role+".xml", fmt.Sprintf(`<domain type='qemu'>
  <name>tile1-%s</name><memory unit='MiB'>16</memory><vcpu>1</vcpu>
  <os><type arch='x86_64' machine='q35'>hvm</type></os>
  <devices><controller type='usb' model='none'/><memballoon model='none'/></devices>
</domain>`, role))
	}
	d.set(t, 0, "define", folder)
	d.set(t, 0, "start", "tile1-*")
}

// runShown runs commands in one shell after another: `make` commands are the test's own to do, and split the shells.
// Exported variables are given on.
func (d *daemon) runShown(t *testing.T, commands []string) {
	t.Helper()
	pidFile := filepath.Join(d.run, "lodged.pid") // scripts/up writes it; the daemon does not
	t.Cleanup(func() { _ = os.Remove(pidFile) })
	record := func() {
		if err := os.WriteFile(pidFile, []byte(d.pid), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	record()
	var exports, shell []string
	run := func() {
		d.shell(t, append(exports, shell...))
		shell = nil
	}
	for _, command := range commands {
		command = d.ownPaths(command)
		switch {
		case strings.HasPrefix(command, "make build"): // the test has built the programs
		case strings.HasPrefix(command, "make up"):
			run()
			d.launchIfDead(t)
			record()
		case strings.HasPrefix(command, "export "):
			exports = append(exports, command)
		default:
			shell = append(shell, command)
		}
	}
	run()
}

// ownPaths puts the test's folders in place of those of `make up` and of the checkout.
func (d *daemon) ownPaths(command string) string {
	return strings.NewReplacer("/run/lodge/", d.run+"/", "/var/lib/lodge/", d.data+"/", "$PWD/bin", bin).Replace(command)
}

// shell runs lines in one shell inside the world, from the root of the checkout. The first one that fails ends it.
func (d *daemon) shell(t *testing.T, lines []string) {
	t.Helper()
	checkout, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	// A file, because a command line would have the words that pgrep looks for.
	d.file(t, "shown.sh", "set -euxo pipefail\ncd '"+checkout+"'\n"+strings.Join(lines, "\n")+"\n")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c := d.command(ctx, "bash", filepath.Join(d.dir, "shown.sh"))
	c.Env = append(os.Environ(), "LODGE_SOCKET="+filepath.Join(d.run, "lodge.sock"), "LIBVIRT_DEFAULT_URI="+d.uri(), "PATH="+bin+":"+os.Getenv("PATH"))
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("a command that is shown fails: %v\n%s", err, out)
	}
}

// launchIfDead starts the next daemon after a command killed the last one.
func (d *daemon) launchIfDead(t *testing.T) {
	t.Helper()
	select {
	case <-d.ended:
	case <-time.After(time.Second):
		return // it runs
	}
	d.launch(t)
}
