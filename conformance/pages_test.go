package conformance

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// pagePatience limits the commands of one page.
const pagePatience = 100 * time.Second

// pages lists the pages with commands to run. The commands of a page with ownDaemon start its daemon.
var pages = []struct {
	path      string
	ownDaemon bool
	before    string // shell commands that make what the page speaks of
	programs  []string
}{
	{path: "README.md", ownDaemon: true, programs: []string{"make", "dnsmasq", "nft", "xz"}},
	{path: "docs/guide.md", programs: []string{"qemu-img", "curl"}},
	{path: "docs/operations.md", before: "virsh net-start default", programs: []string{"dnsmasq", "nft"}},
	{path: "docs/access.md"},
	{path: "docs/cloning.md", before: golden, programs: []string{"qemu-img"}},
	{path: "docs/lab.md"},
}

// golden makes the guest that the page about clones calls so, and the files that its commands read.
const golden = `
touch user.yaml net.yaml
virsh pool-create-as default dir --target "$PWD/pool" --build
virsh pool-create-as fast dir --target "$PWD/fast" --build
virsh vol-create-as default golden.qcow2 1M --format qcow2
guest() { echo "<domain type='qemu'><name>$1</name><memory unit='MiB'>16</memory><vcpu>1</vcpu>
<os><type arch='x86_64' machine='q35'>hvm</type></os><devices>$2</devices></domain>"; }
guest golden "<disk type='volume'><driver name='qemu' type='qcow2'/><source pool='default' volume='golden.qcow2'/><target dev='vda'/></disk>
<interface type='user'/>" | lodge define -
guest web "" >web.xml`

// block is a fenced block of a page: its language and its lines, with the number of the first.
type block struct {
	language string
	lines    []string
	at       int
}

func blocksOf(text string) []block {
	var found []block
	open := false
	for i, line := range strings.Split(text, "\n") {
		switch fence, is := strings.CutPrefix(line, "```"); {
		case is && !open:
			open, found = true, append(found, block{language: fence, at: i + 2})
		case is:
			open = false
		case open:
			last := &found[len(found)-1]
			last.lines = append(last.lines, line)
		}
	}
	return found
}

// pageCommand is a command of a page with the output that the page shows.
type pageCommand struct {
	at     int // line of the page
	text   string
	status string
	shows  []string
}

var exitStatus = regexp.MustCompile(`# exit status (\d+)`)

func commandsOf(b block) []pageCommand {
	var all []pageCommand
	for i, line := range b.lines {
		switch text, is := strings.CutPrefix(line, "$ "); {
		case is:
			c := pageCommand{at: b.at + i, text: text, status: "0"}
			if m := exitStatus.FindStringSubmatch(text); m != nil {
				c.status = m[1]
			}
			all = append(all, c)
		case len(all) > 0 && strings.TrimSpace(line) != "":
			all[len(all)-1].shows = append(all[len(all)-1].shows, line)
		}
	}
	return all
}

var (
	identity = regexp.MustCompile(`\b[0-9a-f]{2}(:[0-9a-f]{2}){5}\b|\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b`)
	duration = regexp.MustCompile(`\b\d+(\.\d+)?(ms|µs|s|m)\b`)
	number   = regexp.MustCompile(`\d+(\.\d+)?`)
	gaps     = regexp.MustCompile(`\s+`)
)

// outline is a line without what differs from run to run: identities, times, numbers and gaps. A line that is only a
// number stays as it is: there the number is the answer.
func outline(line string) string {
	line = strings.TrimSpace(line)
	if number.FindString(line) == line {
		return line
	}
	line = identity.ReplaceAllString(line, "ID")
	line = duration.ReplaceAllString(line, "TIME")
	line = number.ReplaceAllString(line, "N")
	return gaps.ReplaceAllString(line, " ")
}

// lacking gives the first line that a page shows and the output does not have, in that order. A shown line may be the
// beginning of one, or have "..." for the rest.
func lacking(shows []string, output string) string {
	rest := strings.Split(output, "\n")
next:
	for _, want := range shows {
		wanted, _, _ := strings.Cut(want, "...")
		for i, line := range rest {
			if strings.Contains(outline(line), outline(wanted)) {
				rest = rest[i+1:]
				continue next
			}
		}
		return want
	}
	return ""
}

// TestPages runs the commands of README and of the pages that it leads to, each page on a fresh daemon.
func TestPages(t *testing.T) {
	needs(t)
	for _, page := range pages {
		t.Run(filepath.Base(page.path), func(t *testing.T) {
			needs(t, page.programs...)
			text, err := os.ReadFile(filepath.Join("..", page.path))
			if err != nil {
				t.Fatal(err)
			}
			s := newPageSession(t, page.ownDaemon)
			var commands []pageCommand
			if page.before != "" {
				commands = append(commands, pageCommand{text: page.before, status: "0"})
			}
			for _, b := range blocksOf(string(text)) {
				switch b.language {
				case "console":
					commands = append(commands, commandsOf(b)...)
				case "sh":
					s.parse(t, b)
				case "yaml", "text":
				default:
					t.Errorf("line %d: a block of %q: console is run, sh is parsed, yaml and text are neither", b.at-1, b.language)
				}
			}
			s.run(t, commands)
		})
	}
}

// pageSession is a shell beside a daemon that is found where the pages say.
type pageSession struct {
	*world
	root   string // the checkout
	folder string // where the commands run: the checkout, or a folder with links to its entries
}

func newPageSession(t *testing.T, ownDaemon bool) *pageSession {
	t.Helper()
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	lodgeWithLab(t)
	s := &pageSession{root: root, folder: root}
	if !ownDaemon {
		d := start(t)
		s.world, s.folder = d.world, filepath.Join(d.dir, "page")
		s.output(t, "sh", "-c", `mkdir "$2" && ln -s "$1"/* "$2"`, "sh", root, s.folder)
		s.place(t, d.data, "/var/lib/lodge")
		s.place(t, d.run, "/run/lodge")
		return s
	}
	if _, err := os.Stat("/run/lodge/lodge.sock"); err == nil {
		t.Skip("a daemon uses /run/lodge on this host, and the page starts another one there")
	}
	s.world = newWorld(t)
	s.place(t, filepath.Join(s.dir, "data"), "/var/lib/lodge")
	s.place(t, filepath.Join(s.dir, "run"), "/run/lodge")
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
		defer cancel()
		if out, err := s.command(ctx, filepath.Join(root, "scripts/down"), "/var/lib/lodge", "/run/lodge").CombinedOutput(); err != nil {
			t.Errorf("make down: %v\n%s", err, out)
		}
	})
	return s
}

// place shows a folder of the test where the pages say. Only the world sees it there.
func (s *pageSession) place(t *testing.T, folder, shown string) {
	t.Helper()
	if _, err := os.Stat(shown); err != nil {
		t.Cleanup(func() { _ = os.Remove(shown) }) // it stays where others use it meanwhile
	}
	s.output(t, "sh", "-c", `mkdir -p "$1" "$2" && mount --bind "$1" "$2"`, "sh", folder, shown)
}

// pageScript runs each command in one shell, and marks where its output begins and how it ended. Standard error is shown
// as on a terminal.
func pageScript(commands []pageCommand) string {
	var b strings.Builder
	for i, c := range commands {
		fmt.Fprintf(&b, "echo; echo '@@ begin %d'\neval %s\nstatus=$?; echo; echo \"@@ end %d $status\"\n", i, quoted(c.text), i)
	}
	return b.String()
}

func quoted(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

var marked = regexp.MustCompile(`(?s)\n@@ begin (\d+)\n(.*?)\n@@ end \d+ (\d+)\n`)

// run runs commands in one shell, in the checkout, and compares status and output with what the page shows.
func (s *pageSession) run(t *testing.T, commands []pageCommand) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), pagePatience)
	defer cancel()
	c := s.shell(ctx, pageScript(commands))
	out, err := c.CombinedOutput()
	if err != nil {
		t.Errorf("the shell ends with %v", err)
	}
	results := marked.FindAllStringSubmatch("\n"+string(out), -1)
	for i, command := range commands {
		if i >= len(results) {
			t.Fatalf("line %d: %s: no end within %v\n%s", command.at, command.text, pagePatience, out)
		}
		shown, status := results[i][2], results[i][3]
		if status != command.status {
			t.Errorf("line %d: %s: exit status %s, not %s\n%s", command.at, command.text, status, command.status, shown)
		}
		if line := lacking(command.shows, shown); line != "" {
			t.Errorf("line %d: %s: the page shows %q, and it says\n%s", command.at, command.text, line, shown)
		}
	}
}

func (s *pageSession) shell(ctx context.Context, script string) *exec.Cmd {
	c := s.command(ctx, "bash", "-o", "pipefail", "-c", "cd "+quoted(s.folder)+"\n"+script)
	c.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "LIBVIRT_DEFAULT_URI=qemu:///system?socket=/run/lodge/libvirt-sock",
		"LC_ALL=C.UTF-8", "MAKEFLAGS=", "MAKELEVEL=", "LODGE_SOCKET=")
	return c
}

// parse tries commands that take too long, or need another host: make has the target, and lodge has the command and
// its flags. Other programs are not tried.
func (s *pageSession) parse(t *testing.T, b block) {
	t.Helper()
	for i, line := range b.lines {
		command, _, _ := strings.Cut(line, " #")
		words := strings.Fields(command)
		switch {
		case len(words) == 0:
			continue
		case words[0] == "make":
			command = strings.Replace(command, "make", "make -n -C "+quoted(s.root), 1) + " >/dev/null"
		case words[0] == "lodge":
			command += " --help >/dev/null"
		default:
			continue
		}
		if out, err := s.shell(t.Context(), command).CombinedOutput(); err != nil {
			t.Errorf("line %d: %s: %v\n%s", b.at+i, line, err, out)
		}
	}
}
