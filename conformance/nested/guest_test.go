package nested

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// guest holds the properties of a guest in the nested host that tests vary.
type guest struct {
	name    string
	kind    string // "kvm", or empty: emulated twice over, which takes a minute to boot
	memory  int    // MiB; 0: 160
	vcpus   int    // 0: 1
	more    string // XML at the level of the domain
	devices string // XML
}

func (g guest) xml() string {
	if g.kind == "" {
		g.kind = "qemu"
	}
	if g.memory == 0 {
		g.memory = 160
	}
	if g.kind == "kvm" {
		// With QEMU's own CPU model no guest has booted on the emulated KVM: see attempts.
		g.more += "<cpu mode='host-passthrough'/>"
	}
	return fmt.Sprintf(`<domain type='%s'>
  <name>%s</name>
  <memory unit='MiB'>%d</memory>
  <vcpu>%d</vcpu>
  <os>
    <type arch='x86_64' machine='q35'>hvm</type>
    <kernel>/srv/lodge/vmlinuz</kernel><initrd>/srv/lodge/initrd</initrd><cmdline>console=ttyS0 quiet no_timer_check</cmdline>
  </os>
  <features><acpi/></features>
  %s
  <devices>
    <serial type='file'><source path='/var/log/%s.console'/></serial>
    <channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel>
    %s
  </devices>
</domain>
`, g.kind, g.name, g.memory, max(g.vcpus, 1), g.more, g.name, g.devices)
}

// define defines a guest and returns its UUID.
func (m *machine) define(g guest) (uuid string) {
	m.t.Helper()
	path := "/root/" + g.name + ".xml"
	if err := m.Put(m.t.Context(), path, []byte(g.xml())); err != nil {
		m.t.Fatal(err)
	}
	m.virsh("define", path)
	return m.virsh("domuuid", g.name)
}

// paused defines a guest and starts it with its processors stopped.
func (m *machine) paused(g guest) (uuid string) {
	m.t.Helper()
	uuid = m.define(g)
	m.virsh("start", "--paused", g.name)
	return uuid
}

// pid returns the process number of a guest's QEMU.
func (m *machine) pid(uuid string) string {
	m.t.Helper()
	return m.run(pidScript(uuid))
}

// pidScript finds QEMU only, and not the shell that runs this script.
func pidScript(uuid string) string {
	return "pgrep --full -- '^/usr/bin/qemu-system.* -uuid " + uuid + "'"
}

// virsh runs virsh in the host.
func (m *machine) virsh(words ...string) string {
	m.t.Helper()
	return m.run(virshScript(words))
}

// refused runs a virsh command that must fail, and returns its error text.
func (m *machine) refused(words ...string) string {
	m.t.Helper()
	return m.run("! " + virshScript(words))
}

func virshScript(words []string) string {
	script := "virsh --quiet --connect qemu:///system"
	for _, w := range words {
		script += " '" + strings.ReplaceAll(w, "'", `'\''`) + "'"
	}
	return script
}

// attempts is how often boot starts a guest under KVM, each time for attemptPatience. The host is emulated by QEMU
// 7.2, which may deliver an interrupt that the guest has masked. The guest's kernel then deadlocks on a lock that
// it holds. This happens more often on a busy machine. A guest without KVM boots the first time.
const (
	attempts         = 5
	attemptPatience  = 100 * time.Second
	emulatedPatience = 4 * time.Minute
)

// boot starts a guest and waits until its user space answers. A script may set up what the guest needs before its
// processors run. The wait reads the guest's console: a client that polls would take CPU time from the guest.
func (m *machine) boot(g guest, script string) {
	m.t.Helper()
	m.define(g)
	tries, wait := attempts, attemptPatience
	if g.kind != "kvm" {
		tries, wait = 1, emulatedPatience
	}
	await := "until grep --quiet 'no login needed' /var/log/" + g.name + ".console; do sleep 1; done"
	for attempt := 1; ; attempt++ {
		m.virsh("start", "--paused", g.name)
		m.run(script)
		m.virsh("resume", g.name)
		_, err := m.Run(m.t.Context(), await, wait)
		if err == nil {
			break
		}
		if attempt == tries {
			m.t.Fatalf("guest %s does not boot, %d times: %v", g.name, tries, err)
		}
		m.t.Logf("guest %s hangs while it boots (attempt %d)", g.name, attempt)
		m.run("virsh --quiet --connect qemu:///system destroy " + g.name + "\n>/var/log/" + g.name + ".console")
	}
	m.eventually("virsh -q -c qemu:///system qemu-agent-command " + g.name + ` '{"execute":"guest-ping"}'`)
}

// eventually runs a script again and again until it succeeds.
func (m *machine) eventually(script string) {
	m.t.Helper()
	ctx, stop := context.WithTimeout(m.t.Context(), patience)
	defer stop()
	tick := time.NewTicker(2 * time.Second)
	defer tick.Stop()
	for {
		_, err := m.Run(ctx, script, patience)
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			m.t.Fatalf("not within %v: %v\nthe script was:\n%s", patience, err, script)
		}
	}
}
