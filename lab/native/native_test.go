package native_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/lab/image/imagetest"
	"github.com/lodge-kvm/lodge/lab/native"
	"github.com/lodge-kvm/lodge/lab/service"
)

// start makes a place with an agent built from this tree, in a subnet of the
// test's own.
func start(t *testing.T) (*native.Place, native.How) {
	t.Helper()
	i := imagetest.Find(t)
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		t.Skip("needs loop devices")
	}
	how := native.How{
		Name: fmt.Sprintf("test%d", os.Getpid()), Image: i, Agent: filepath.Join(t.TempDir(), "agent"), Dir: t.TempDir(), CPUs: []int{0}, Memory: 1 << 30,
		Host:    netip.MustParsePrefix(fmt.Sprintf("198.18.%d.%d/30", os.Getpid()>>6&255, os.Getpid()&63<<2|1)),
		Address: netip.MustParsePrefix(fmt.Sprintf("198.18.%d.%d/30", os.Getpid()>>6&255, os.Getpid()&63<<2|2)),
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-o", how.Agent, "../agent/cmd")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if said, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	started := time.Now()
	p, err := native.Start(t.Context(), how)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("answers after %v", time.Since(started))
	t.Cleanup(func() { _ = p.Close() })
	return p, how
}

// left tells what of a place is still on the host.
func left(t *testing.T, how native.How) []string {
	t.Helper()
	var found []string
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), how.Dir) {
		found = append(found, "a mount")
	}
	loops, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, path := range loops {
		if file, _ := os.ReadFile(path); strings.HasPrefix(string(file), how.Dir) {
			found = append(found, path)
		}
	}
	links, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		addresses, _ := l.Addrs()
		if strings.Contains(fmt.Sprint(addresses), how.Host.String()) {
			found = append(found, l.Name)
		}
	}
	groups, _ := filepath.Glob("/sys/fs/cgroup/*/lodge-lab-" + how.Name)
	more, _ := filepath.Glob("/sys/fs/cgroup/lodge-lab-" + how.Name)
	files, _ := filepath.Glob(how.Dir + "/*.raw")
	return append(append(append(found, groups...), more...), files...)
}

// Promise: L10
func TestServicesRunOutsideOfAGuestAndLeaveNothing(t *testing.T) {
	p, how := start(t)
	for _, c := range []struct{ what, script, want string }{
		{"its name", "hostname", how.Name},
		{"its processors", "nproc", "1"},
		{"its address", "ip -br -4 addr show dev eth0", how.Address.String()},
		{"the shared /usr", "findmnt -no FSTYPE /usr", "erofs"},
		{"its own processes only", "ls -d /proc/[0-9]* | wc -l", ""},
		{"a daemon", "setsid -f sleep 10000; echo left", "left"},
	} {
		out, err := p.Run(t.Context(), "sh", "-c", c.script)
		if err != nil || !strings.Contains(out, c.want) {
			t.Errorf("%s: %q, %v", c.what, out, err)
		}
	}
	for _, kind := range []string{"nginx", "mariadb"} {
		one, err := service.New(kind, nil)
		if err != nil {
			t.Fatal(err)
		}
		started := time.Now()
		if err := one.Start(t.Context(), p.Session); err != nil {
			t.Fatal(err)
		}
		t.Logf("%s serves after %v", kind, time.Since(started))
	}
	client := http.Client{Timeout: time.Minute}
	defer client.CloseIdleConnections()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+how.Address.Addr().String()+"/10k", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(answer.Body)
	answer.Body.Close()
	if err != nil || len(body) != 10<<10 {
		t.Errorf("%d bytes, %v", len(body), err)
	}
	if here := left(t, how); len(here) < 3 {
		t.Errorf("of a running place there is only %v: the search for what is left finds too little", here)
	}
	// Services run, and a daemon that nobody knows of.
	closing := time.Now()
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	t.Logf("closed after %v", time.Since(closing))
	for deadline := time.Now().Add(time.Minute); len(left(t, how)) > 0; <-time.After(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("there is left: %v", left(t, how))
		}
	}
}

func TestAPlaceThatCannotStartLeavesNothing(t *testing.T) {
	p, how := start(t)
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	how.Image.Usr = how.Image.Kernel // no file system
	if _, err := native.Start(t.Context(), how); err == nil || !strings.Contains(err.Error(), "cannot mount") {
		t.Errorf("got %v", err)
	}
	for deadline := time.Now().Add(time.Minute); len(left(t, how)) > 0; <-time.After(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("there is left: %v", left(t, how))
		}
	}
}

// heldIn names the folder of a place that a copy of this program holds until it is
// killed.
const heldIn = "LODGE_TEST_PLACE"

// held is what that place is like.
func held(t *testing.T, dir string) native.How {
	t.Helper()
	number := os.Getpid()
	if os.Getenv(heldIn) != "" {
		number = os.Getppid()
	}
	i := imagetest.Find(t)
	return native.How{
		Name: fmt.Sprintf("lab-test%d-t1-web", number), Image: i, Agent: filepath.Join(dir, "agent"), Dir: dir, Memory: 1 << 30,
		Host:    netip.MustParsePrefix(fmt.Sprintf("198.19.%d.%d/30", number>>6&255, number&63<<2|1)),
		Address: netip.MustParsePrefix(fmt.Sprintf("198.19.%d.%d/30", number>>6&255, number&63<<2|2)),
	}
}

func TestHoldAPlace(t *testing.T) {
	dir := os.Getenv(heldIn)
	if dir == "" {
		t.Skip("is run by another test")
	}
	p, err := native.Start(t.Context(), held(t, dir))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Run(t.Context(), "sh", "-c", "setsid -f sleep 10000"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stdout.WriteString("held\n"); err != nil {
		t.Fatal(err)
	}
	select {}
}

// What a lab that is killed leaves of a place is a control group, which Sweep takes
// away, and the root in its folder.
// Promise: L46
func TestOfAKilledLabSweepTakesTheRest(t *testing.T) {
	dir := t.TempDir()
	how := held(t, dir)
	if err := native.Possible(); err != nil {
		t.Skip(err)
	}
	if err := how.Image.Agent(how.Agent); err != nil {
		t.Fatal(err)
	}
	lab := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestHoldAPlace$", "-test.v")
	lab.Env = append(os.Environ(), heldIn+"="+dir)
	said, err := lab.StdoutPipe()
	if err == nil {
		err = lab.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(said)
	for lines.Scan() && lines.Text() != "held" {
		t.Log(lines.Text())
	}
	if here := left(t, how); len(here) < 3 {
		t.Errorf("of a running place there is only %v", here)
	}
	_ = lab.Process.Kill()
	_ = lab.Wait()
	if err := native.Sweep("lab-test" + fmt.Sprint(os.Getpid()) + "-"); err != nil {
		t.Error(err)
	}
	want := []string{filepath.Join(dir, "root.raw")}
	for deadline := time.Now().Add(time.Minute); !slices.Equal(left(t, how), want); <-time.After(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("there is left: %v", left(t, how))
		}
	}
}
