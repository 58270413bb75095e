package conformance

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/digitalocean/go-libvirt"

	"github.com/lodge-kvm/lodge/internal/base/failpoint"
	"github.com/lodge-kvm/lodge/internal/base/failpoint/failpointtest"
)

// The default duration of the storm. The seed repeats the random choices, but not the scheduling.
const (
	stormVariable     = "LODGE_STORM"
	stormSeedVariable = "LODGE_STORM_SEED"
	stormTime         = 30 * time.Second
	owned, contested  = 6, 2 // guests with one client, and with three
	rivals            = 3
)

// storm is a test with many clients that make random calls on many guests. Meanwhile the daemon and QEMUs are
// killed again and again.
type storm struct {
	*daemon
	guests   []*stormGuest
	points   []string    // the fail points that the daemon dies at; none: it is built without
	stopping atomic.Bool // the daemon is being ended: calls may fail
}

// guestState is the part of a guest's state that calls determine.
type guestState struct {
	Defined bool
	Phase   phase
	Managed phase // what a managed save image holds; off: there is none
	Image   phase // the same of the image file of the test's own
}

type phase int

const (
	off phase = iota
	running
	paused
	unknown // only what an image holds
)

func (f guestState) exists() bool { return f.Defined || f.Phase != off }

// stormGuest is one guest with its expected state.
type stormGuest struct {
	dom       libvirt.Domain
	xml, disk string
	image     string
	contested bool

	mu sync.Mutex
	// may holds the possible states: one, or two after a call that was cut off.
	may []guestState
	// loose says that others than its client have changed the guest.
	loose bool
	begun bool // its QEMU was, or may have been, exchanged since the round began
}

// act is a call of a client. then is the guest's state after its success. Devices are attached and detached only
// while a guest is paused, and by one client: QEMU 7.2 may wait forever for an emulated processor in device_add.
type act struct {
	name string
	when func(f guestState) bool
	do   func(l *libvirt.Libvirt, g *stormGuest) error
	then func(f guestState) guestState
}

func same(f guestState) guestState     { return f }
func active(f guestState) bool         { return f.Phase != off }
func is(p phase) func(guestState) bool { return func(f guestState) bool { return f.Phase == p } }

var acts = []act{
	{
		"define", func(guestState) bool { return true },
		func(l *libvirt.Libvirt, g *stormGuest) error { _, err := l.DomainDefineXML(g.xml); return err },
		func(f guestState) guestState { f.Defined = true; return f },
	},
	{
		"undefine", func(f guestState) bool { return f.Defined },
		func(l *libvirt.Libvirt, g *stormGuest) error {
			return l.DomainUndefineFlags(g.dom, libvirt.DomainUndefineManagedSave)
		},
		func(f guestState) guestState { f.Defined, f.Managed = false, off; return f },
	},
	{
		"start", func(f guestState) bool { return f.Defined && f.Phase == off && f.Managed != unknown }, create(0),
		func(f guestState) guestState { f.Phase, f.Managed = max(f.Managed, running), off; return f },
	},
	{
		"start paused", func(f guestState) bool { return f.Defined && f.Phase == off }, create(libvirt.DomainStartPaused),
		func(f guestState) guestState { f.Phase, f.Managed = paused, off; return f },
	},
	{
		"create", func(f guestState) bool { return !f.exists() },
		func(l *libvirt.Libvirt, g *stormGuest) error { _, err := l.DomainCreateXML(g.xml, 0); return err },
		func(f guestState) guestState { f.Phase = running; return f },
	},
	{
		"suspend", is(running), func(l *libvirt.Libvirt, g *stormGuest) error { return l.DomainSuspend(g.dom) },
		func(f guestState) guestState { f.Phase = paused; return f },
	},
	{
		"resume", is(paused), func(l *libvirt.Libvirt, g *stormGuest) error { return l.DomainResume(g.dom) },
		func(f guestState) guestState { f.Phase = running; return f },
	},
	{
		"destroy", active, func(l *libvirt.Libvirt, g *stormGuest) error { return l.DomainDestroy(g.dom) },
		func(f guestState) guestState { f.Phase = off; return f },
	},
	{
		"managed save", func(f guestState) bool { return f.Defined && f.Phase != off },
		func(l *libvirt.Libvirt, g *stormGuest) error { return l.DomainManagedSave(g.dom, 0) },
		func(f guestState) guestState { f.Managed, f.Phase = f.Phase, off; return f },
	},
	{
		"save", active,
		func(l *libvirt.Libvirt, g *stormGuest) error { return l.DomainSaveFlags(g.dom, g.image, nil, 0) },
		func(f guestState) guestState { f.Image, f.Phase = f.Phase, off; return f },
	},
	{
		"restore", func(f guestState) bool { return f.Phase == off && f.Image != off && f.Managed == off },
		func(l *libvirt.Libvirt, g *stormGuest) error { return l.DomainRestoreFlags(g.image, nil, 0) },
		func(f guestState) guestState { f.Phase = f.Image; return f },
	},
	{"reset", active, func(l *libvirt.Libvirt, g *stormGuest) error { return l.DomainReset(g.dom, 0) }, same},
	{"plug a disk in and out", is(paused), plug, same},
	{"plug a NIC in", is(paused), plugNIC, same},
	{"title", active, func(l *libvirt.Libvirt, g *stormGuest) error {
		return l.DomainSetMetadata(g.dom, 1, libvirt.OptString{"stormy"}, nil, nil, libvirt.DomainAffectLive)
	}, same},
}

func create(flags libvirt.DomainCreateFlags) func(*libvirt.Libvirt, *stormGuest) error {
	return func(l *libvirt.Libvirt, g *stormGuest) error {
		_, err := l.DomainCreateWithFlags(g.dom, uint32(flags))
		return err
	}
}

func plug(l *libvirt.Libvirt, g *stormGuest) error {
	err := l.DomainAttachDeviceFlags(g.dom, g.disk, uint32(libvirt.DomainAffectLive))
	if err != nil && !strings.Contains(err.Error(), "already exists") { // from a call that was cut off
		return err
	}
	return l.DomainDetachDeviceFlags(g.dom, g.disk, uint32(libvirt.DomainAffectLive))
}

// plugNIC attaches a NIC and leaves it in the guest, which has few slots for NICs.
func plugNIC(l *libvirt.Libvirt, g *stormGuest) error {
	err := l.DomainAttachDeviceFlags(g.dom, `<interface type='network'><source network='lan'/><model type='virtio'/></interface>`, uint32(libvirt.DomainAffectLive))
	var refused libvirt.Error
	if errors.As(err, &refused) && strings.Contains(refused.Message, "PCI") {
		return nil
	}
	return err
}

// Promise: W5
func TestStorm(t *testing.T) {
	needs(t, "dnsmasq", "nft")
	seed, lasts := stormSettings(t)
	t.Logf("repeat with %s=%d", stormSeedVariable, seed)
	draw := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // to be repeated, not to be secret
	s := &storm{daemon: start(t)}
	if os.Getenv(stormVariable) != "" {
		s.useFailpoints(t)
	}
	s.lan(t, "lan", 9)
	s.makeGuests(t)
	end := time.Now().Add(lasts)
	rounds := 0
	for ; time.Now().Before(end) && !t.Failed(); rounds++ {
		s.round(t, draw, true)
	}
	t.Logf("record: %d rounds in %s", rounds, lasts)
	if t.Failed() {
		return
	}
	s.removeAllAndCompare(t, draw)
}

func stormSettings(t *testing.T) (seed uint64, lasts time.Duration) {
	t.Helper()
	seed, lasts = rand.Uint64(), stormTime //nolint:gosec // it is printed
	var err error
	if text := os.Getenv(stormSeedVariable); text != "" {
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	if text := os.Getenv(stormVariable); text != "" {
		if lasts, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	return seed, lasts
}

func (s *storm) makeGuests(t *testing.T) {
	t.Helper()
	for i := range owned + contested {
		g := &stormGuest{contested: i >= owned, may: []guestState{{}}}
		g.dom = libvirt.Domain{Name: fmt.Sprintf("storm%d", i), ID: -1}
		g.dom.UUID = libvirt.UUID{0x57, 15: byte(i + 1)}
		g.image = filepath.Join(s.dir, g.dom.Name+".image")
		g.disk = fmt.Sprintf(`<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='%s'/><target dev='sda' bus='usb'/></disk>`,
			s.blank(t, g.dom.Name+".raw", 1<<20))
		g.xml = fmt.Sprintf(`<domain type='qemu'><name>%s</name><uuid>%s</uuid><memory unit='MiB'>48</memory><vcpu>1</vcpu>
			<os><type arch='x86_64' machine='q35'>hvm</type></os><features><acpi/><tcg><tb-cache unit='MiB'>32</tb-cache></tcg></features>
			<devices><serial type='pty'/><controller type='usb' model='qemu-xhci'/>
			<controller type='pci' index='8' model='pcie-root-port'/>
			<interface type='network'><source network='lan'/><model type='virtio'/></interface></devices></domain>`, g.dom.Name, g.uuid())
		s.guests = append(s.guests, g)
	}
}

func (g *stormGuest) uuid() string {
	return uuidText(g.dom.UUID)
}

func uuidText(u libvirt.UUID) string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[0:4], u[4:6], u[6:8], u[8:10], u[10:16])
}

// round runs the clients, ends the daemon if ends is set, and then checks the state of everything.
func (s *storm) round(t *testing.T, draw *rand.Rand, ends bool) {
	t.Helper()
	before := s.pids()
	s.stopping.Store(false)
	over := make(chan struct{})
	var clients sync.WaitGroup
	for _, g := range s.guests {
		g.begun, g.loose = false, g.contested
		n := 1
		if g.contested {
			n = rivals
		}
		for range n {
			own := rand.New(rand.NewPCG(draw.Uint64(), 0)) //nolint:gosec // as above
			l := s.connect(t)
			clients.Go(func() {
				defer func() { _ = l.Disconnect() }() // the daemon may have gone first
				s.client(t, l, g, own, over)
			})
		}
	}
	looking := s.gather(t, draw, over)
	if ends && len(s.points) > 0 && draw.IntN(2) == 0 {
		s.arm(t, failpoint.Armed{Point: s.points[draw.IntN(len(s.points))], Action: failpoint.Kill, Nth: 1 + draw.IntN(5)})
	}
	length := time.After(time.Duration(200+draw.IntN(2000)) * time.Millisecond)
	if draw.IntN(3) == 0 {
		s.killQEMU(draw)
	}
	select {
	case <-length:
	case <-s.ended: // at a fail point
	}
	if ends {
		s.stopping.Store(true)
		s.endAnyway(t, []string{"KILL", "KILL", "TERM"}[draw.IntN(3)])
	}
	close(over)
	s.answered(t, &clients)
	s.answered(t, &looking.all)
	if ends {
		if draw.IntN(3) == 0 {
			s.killQEMU(draw)
		}
		s.launch(t)
	}
	s.inspect(t, before)
}

// useFailpoints replaces the daemon by one with fail points.
func (s *storm) useFailpoints(t *testing.T) {
	t.Helper()
	var err error
	if s.points, err = failpointtest.Names(".."); err != nil {
		t.Fatal(err)
	}
	s.commands, s.racing = filepath.Join(s.dir, "commands"), true
	if err := os.Mkdir(s.commands, 0o700); err != nil {
		t.Fatal(err)
	}
	s.signal(t, "TERM")
	s.launch(t)
}

// arm makes the daemon die when it reaches a fail point. Calls may be cut off from now on.
func (s *storm) arm(t *testing.T, a failpoint.Armed) {
	t.Helper()
	if a.Point != "" {
		s.stopping.Store(true) // until the next round: of a daemon that died its clients hear late
	}
	if err := failpoint.Arm(s.commands, a); err != nil {
		t.Fatal(err)
	}
	if _, err := failpoint.Reached(s.commands); err != nil { // otherwise the list grows without bound
		t.Fatal(err)
	}
}

// endAnyway ends a daemon that may already have died at a fail point.
func (s *storm) endAnyway(t *testing.T, name string) {
	t.Helper()
	if len(s.points) == 0 {
		s.signal(t, name)
		return
	}
	_ = s.command(t.Context(), "kill", "-"+name, s.pid).Run() // it may have gone
	select {
	case <-s.ended:
	case <-time.After(patience):
		t.Fatalf("the daemon does not end after SIG%s", name)
	}
	s.arm(t, failpoint.Armed{})
}

// answered waits until all pending calls have an answer, or their connections have ended.
func (s *storm) answered(t *testing.T, clients *sync.WaitGroup) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		clients.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(patience):
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		s.signal(t, "QUIT") // its log tells what the daemon does
		t.Fatalf("a call is never answered; the clients wait here:\n%s", stacks)
	}
}

// killQEMU kills a random guest's QEMU.
func (s *storm) killQEMU(draw *rand.Rand) {
	g := s.guests[draw.IntN(len(s.guests))]
	g.mu.Lock()
	g.loose, g.begun = true, true
	g.mu.Unlock()
	if pid := s.pids()[g.dom.Name]; pid != 0 {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// client makes one call after another on a guest, until the round is over or the daemon has ended.
func (s *storm) client(t *testing.T, l *libvirt.Libvirt, g *stormGuest, draw *rand.Rand, over <-chan struct{}) {
	for {
		select {
		case <-over:
			return
		default:
		}
		g.mu.Lock()
		f, loose := g.may[0], g.loose
		g.mu.Unlock()
		a := acts[draw.IntN(len(acts))]
		if !loose && !a.when(f) || loose && strings.HasPrefix(a.name, "plug") {
			continue
		}
		then := a.then(f)
		g.mu.Lock()
		g.may = []guestState{f, then}
		if a.name == "save" { // an aborted save destroys the image that it was to replace
			g.may[0].Image = off
		}
		g.begun = g.begun || f.Phase == off || then.Phase == off
		g.mu.Unlock()
		err := a.do(l, g)
		var refused libvirt.Error
		switch {
		case err == nil:
			g.mu.Lock()
			g.may = []guestState{then}
			g.mu.Unlock()
		case !errors.As(err, &refused) || s.stopping.Load():
			return // cut off: either may be so
		default:
			s.refused(t, g, a, f, err)
		}
	}
}

// refused judges a call that the daemon refused. This must not happen to a guest with a single client.
func (s *storm) refused(t *testing.T, g *stormGuest, a act, f guestState, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.may = []guestState{f}
	if !g.loose && !s.stopping.Load() {
		g.loose = true
		t.Errorf("%s: %s is refused although it is %+v: %v", g.dom.Name, a.name, f, err)
	}
	if strings.Contains(err.Error(), "broke:") {
		t.Errorf("%s: %s: %v", g.dom.Name, a.name, err)
	}
}

// connect returns a new client.
func (d *daemon) connect(t *testing.T) *libvirt.Libvirt {
	t.Helper()
	l, err := connected(d.socket(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

var guestName = regexp.MustCompile(`-name guest=([^, ]+)`)

// pids returns the QEMU process of every guest that has one.
func (d *daemon) pids() map[string]int {
	found := map[string]int{}
	for pid, words := range d.processes() {
		if m := guestName.FindStringSubmatch(words); m != nil {
			found[m[1]] = pid
		}
	}
	return found
}

// inspect waits until every guest has an expected state.
func (s *storm) inspect(t *testing.T, before map[string]int) {
	t.Helper()
	l := s.connect(t)
	defer func() { _ = l.Disconnect() }()
	var wrong []string
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); pauseFor(t, 20*time.Millisecond) {
		if wrong = s.findWrongs(l, before); len(wrong) == 0 {
			break
		}
	}
	for _, w := range wrong {
		t.Error(w)
	}
	for _, g := range s.guests {
		f, err := s.readState(l, g)
		if err != nil {
			t.Error(err)
		}
		g.setExpected(f)
	}
}

// setExpected makes the observed state the expected one.
func (g *stormGuest) setExpected(f guestState) {
	last := g.may[len(g.may)-1]
	if i := slices.IndexFunc(g.may, f.matches); i >= 0 && !g.loose {
		f.Managed = g.may[i].Managed
	} else if f.Managed != off {
		f.Managed = unknown
	}
	if f.Image = last.Image; g.loose || g.may[0].Image != last.Image {
		f.Image = off // whatever the file holds now
	}
	g.may = []guestState{f}
}

// matches reports whether a guest's state, as the daemon reports it, matches a possible one.
func (f guestState) matches(m guestState) bool {
	return f.Defined == m.Defined && f.Phase == m.Phase && (f.Managed == off) == (m.Managed == off)
}

func pauseFor(t *testing.T, d time.Duration) {
	select {
	case <-time.After(d):
	case <-t.Context().Done():
	}
}

// findWrongs lists all deviations from the expected state.
func (s *storm) findWrongs(l *libvirt.Libvirt, before map[string]int) (wrong []string) {
	now := s.pids()
	uuids, ids := map[string]bool{}, map[int32]string{}
	var nics []string
	for _, g := range s.guests {
		f, err := s.readState(l, g)
		if err != nil {
			wrong = append(wrong, fmt.Sprintf("%s: %v", g.dom.Name, err))
			continue
		}
		wrong = append(wrong, g.findWrongs(l, f, before[g.dom.Name], now[g.dom.Name])...)
		if f.Phase == off {
			continue
		}
		uuids[g.uuid()] = true
		dom, err := l.DomainLookupByName(g.dom.Name)
		if err != nil || ids[dom.ID] != "" {
			wrong = append(wrong, fmt.Sprintf("%s and %s have the number %d (%v)", g.dom.Name, ids[dom.ID], dom.ID, err))
		}
		ids[dom.ID] = g.dom.Name
		xml, _ := l.DomainGetXMLDesc(g.dom, 0)
		for _, m := range regexp.MustCompile(`<target dev='(vnet\d+)'`).FindAllStringSubmatch(xml, -1) {
			nics = append(nics, m[1])
		}
	}
	return append(wrong, s.findStrays(uuids, nics)...)
}

// findWrongs compares one guest with the answers that its clients got.
func (g *stormGuest) findWrongs(l *libvirt.Libvirt, f guestState, pidBefore, pid int) (wrong []string) {
	say := func(format string, args ...any) { wrong = append(wrong, g.dom.Name+": "+fmt.Sprintf(format, args...)) }
	if (f.Phase != off) != (pid != 0) {
		say("it is %+v and its process is %d", f, pid)
	}
	if f.Phase != off {
		status, err := l.QEMUDomainMonitorCommand(g.dom, `{"execute":"query-status"}`, 0)
		if err != nil || strings.Contains(status, `"running": true`) != (f.Phase == running) && strings.Contains(status, `"running":true`) != (f.Phase == running) {
			say("it is %+v and QEMU says %s (%v)", f, status, err)
		}
	}
	if g.loose {
		return wrong
	}
	if !slices.ContainsFunc(g.may, f.matches) {
		say("it is %+v and must be one of %+v", f, g.may)
	}
	if !g.begun && pidBefore != pid {
		say("its process was %d and is %d", pidBefore, pid)
	}
	return wrong
}

// readState asks the daemon about a guest. It cannot ask for the content of a save image.
func (s *storm) readState(l *libvirt.Libvirt, g *stormGuest) (f guestState, err error) {
	state, _, err := l.DomainGetState(g.dom, 0)
	if libvirt.IsNotFound(err) {
		return f, nil
	}
	if err != nil {
		return f, err
	}
	switch libvirt.DomainState(state) {
	case libvirt.DomainRunning:
		f.Phase = running
	case libvirt.DomainShutoff, libvirt.DomainCrashed:
	default:
		f.Phase = paused
	}
	persistent, err := l.DomainIsPersistent(g.dom)
	if err != nil {
		return f, err
	}
	f.Defined = persistent != 0
	managed, err := l.DomainHasManagedSaveImage(g.dom, 0)
	f.Managed = phase(managed)
	return f, err
}

// findStrays lists processes, files and links that belong to no guest.
func (s *storm) findStrays(uuids map[string]bool, nics []string) (wrong []string) {
	for name, pid := range s.pids() {
		if !slices.ContainsFunc(s.guests, func(g *stormGuest) bool { return g.dom.Name == name }) {
			wrong = append(wrong, fmt.Sprintf("process %d is of nobody: %s", pid, name))
		}
	}
	dirs, _ := filepath.Glob(filepath.Join(s.run, "guest/*"))
	for _, dir := range dirs {
		if !uuids[filepath.Base(dir)] {
			wrong = append(wrong, "a run directory of nobody: "+dir)
		}
	}
	for _, group := range s.guestGroups() {
		if !uuids[strings.TrimPrefix(filepath.Base(group), "guest-")] {
			wrong = append(wrong, "a control group of nobody: "+group)
		}
	}
	for _, pattern := range []string{"*.partial", "data/guest/save/*.partial"} {
		halves, _ := filepath.Glob(filepath.Join(s.dir, pattern))
		wrong = append(wrong, halves...)
	}
	links, err := s.command(context.Background(), "ls", "/sys/class/net").Output()
	if err != nil {
		return append(wrong, err.Error())
	}
	there := slices.DeleteFunc(strings.Fields(string(links)), func(name string) bool { return !strings.HasPrefix(name, "vnet") })
	slices.Sort(there)
	slices.Sort(nics)
	if !slices.Equal(there, nics) {
		wrong = append(wrong, fmt.Sprintf("links %v are there, and guests have %v", there, nics))
	}
	return wrong
}

// removeAllAndCompare removes all guests, and checks whether the daemon holds the same resources as before.
func (s *storm) removeAllAndCompare(t *testing.T, draw *rand.Rand) {
	t.Helper()
	s.undefineAll(t)
	s.signal(t, "TERM")
	s.launch(t)
	s.round(t, draw, false) // so that its caches are filled
	s.undefineAll(t)
	s.waitForNoClients(t)
	before := s.status(t)
	for range calmRounds {
		s.round(t, draw, false)
	}
	s.undefineAll(t)
	s.waitForRelease(t, before)
	t.Logf("the daemon used %+v before %d rounds, and %+v after", before, calmRounds, s.status(t))
	images, _ := filepath.Glob(filepath.Join(s.data, "guest/save/*"))
	if len(images) > 0 {
		t.Errorf("images without a guest are left: %v", images)
	}
	s.virsh(t, "net-destroy", "lan")
	s.signal(t, "QUIT") // it tells what its goroutines do
	s.checkGoroutines(t)
	if kept := s.records(t); kept["domain"]+kept["pool"] > 0 {
		t.Errorf("records are left: %v", kept)
	}
	s.launch(t) // to be stopped in order
}

// calmRounds is the number of rounds after which the daemon must have released everything.
const calmRounds = 3

// waitForNoClients waits until no client is connected to the daemon.
func (s *storm) waitForNoClients(t *testing.T) {
	t.Helper()
	eventually(t, "all clients are gone", func() bool { return s.status(t).LibvirtClients == 0 })
}

// leftover matches a goroutine that serves one guest, client or network.
var leftover = regexp.MustCompile(`^github\.com/lodge-kvm/lodge/internal/(guest(/\w+)?\.(\(\*(Guest|Instance|Launch|Job|WarmPool|Sampler)\)|loop|run)|` +
	`host/network\.\(\*Network\)|mechanism/(qmp|agent|fsguard)\.)`)

// checkGoroutines looks for goroutines of guests in the goroutine dump of an ended daemon.
func (s *storm) checkGoroutines(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, text := range s.log {
		if leftover.MatchString(text) {
			t.Errorf("a goroutine is left: %s", strings.Join(s.log[max(0, i-6):min(len(s.log), i+6)], "\n"))
		}
	}
}

// undefineAll ends and undefines every guest.
func (s *storm) undefineAll(t *testing.T) {
	t.Helper()
	l := s.connect(t)
	defer func() { _ = l.Disconnect() }()
	for _, g := range s.guests {
		_ = l.DomainDestroy(g.dom)                                          // it may not run
		_ = l.DomainUndefineFlags(g.dom, libvirt.DomainUndefineManagedSave) // it may not be defined
		if _, err := l.DomainLookupByName(g.dom.Name); !libvirt.IsNotFound(err) {
			t.Errorf("%s is still there: %v", g.dom.Name, err)
		}
		g.may = []guestState{{}}
	}
}
