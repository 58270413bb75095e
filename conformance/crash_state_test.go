package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/digitalocean/go-libvirt"
	"go.etcd.io/bbolt"

	"github.com/lodge-kvm/lodge/internal/base/atomicfile"
	"github.com/lodge-kvm/lodge/internal/mechanism/operation"
)

// state describes everything that can be seen of a daemon and of the objects that it made, one line each. It
// leaves out values that differ between two healthy moments.
func (c *crash) state() (string, error) {
	var lines []string
	say := func(format string, args ...any) {
		for line := range strings.SplitSeq(strings.TrimSpace(fmt.Sprintf(format, args...)), "\n") {
			line = passing.Replace(line)
			if c.anonymous {
				line = anyUUID.ReplaceAllString(line, "uuid*")
			}
			lines = append(lines, line)
		}
	}
	var errs []error
	for _, look := range []func(say func(string, ...any)) error{
		c.sayGuests, c.sayImage, c.sayNetworks, c.sayPools, c.saySecrets, c.sayFiles, c.sayRecords, c.sayHost,
	} {
		errs = append(errs, look(say))
	}
	return strings.Join(lines, "\n"), errors.Join(errs...)
}

var anyUUID = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)

// passing replaces counters and objects that come and go.
var passing = replacements{
	{regexp.MustCompile(`vnet\d+`), "vnet*"},
	{regexp.MustCompile(`(<domain [^>]*)id='\d+'`), "${1}id='*'"},
	{regexp.MustCompile(`index='\d+'`), "index='*'"},
	{regexp.MustCompile(`libvirt-\d+-`), "libvirt-*-"},
	{regexp.MustCompile(` tray='\w+'`), ""}, // known once the drive was used
	{regexp.MustCompile(`/dev/pts/\d+`), "/dev/pts/*"},
	{regexp.MustCompile(`operation-[0-9a-f-]{36}`), "operation-*"},
	{regexp.MustCompile(`\+\d+:\+\d+`), "+*:+*"}, // each start has a user of its own
}

type replacements []struct {
	what *regexp.Regexp
	by   string
}

func (r replacements) Replace(text string) string {
	for _, one := range r {
		text = one.what.ReplaceAllString(text, one.by)
	}
	return text
}

func (c *crash) sayGuests(say func(string, ...any)) error {
	all, _, err := c.l.ConnectListAllDomains(1, 0)
	if err != nil {
		return err
	}
	slices.SortFunc(all, func(a, b libvirt.Domain) int { return strings.Compare(a.Name, b.Name) })
	var errs []error
	for _, dom := range all {
		errs = append(errs, c.sayGuest(dom, say))
	}
	return errors.Join(errs...)
}

// sayImage describes the guest's save image in the user's file.
func (c *crash) sayImage(say func(string, ...any)) error {
	path := filepath.Join(c.dir, crashImage)
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	xml, err := c.l.DomainSaveImageGetXMLDesc(path, 0)
	say("image %s", strings.ReplaceAll(xml, "\n", "\nimage "))
	return err
}

func (c *crash) sayGuest(dom libvirt.Domain, say func(string, ...any)) error {
	state, _, err := c.l.DomainGetState(dom, 0)
	if err != nil {
		return err
	}
	persistent, err := c.l.DomainIsPersistent(dom)
	if err != nil {
		return err
	}
	auto, err := c.l.DomainGetAutostart(dom)
	if err != nil {
		return err
	}
	managed, err := c.l.DomainHasManagedSaveImage(dom, 0)
	if err != nil {
		return err
	}
	say("guest %s: state %d, persistent %d, autostart %d, managed save %d", dom.Name, state, persistent, auto, managed)
	if managed != 0 {
		xml, err := c.l.DomainManagedSaveGetXMLDesc(dom, 0)
		if err != nil {
			return err
		}
		say("saved %s", strings.ReplaceAll(xml, "\n", "\nsaved "))
	}
	if persistent != 0 {
		xml, err := c.l.DomainGetXMLDesc(dom, libvirt.DomainXMLInactive|libvirt.DomainXMLSecure)
		if err != nil {
			return err
		}
		say("%s", xml)
	}
	if libvirt.DomainState(state) == libvirt.DomainShutoff {
		return nil
	}
	xml, err := c.l.DomainGetXMLDesc(dom, libvirt.DomainXMLSecure)
	if err != nil {
		return err
	}
	say("live %s", strings.ReplaceAll(xml, "\n", "\nlive "))
	return c.sayMachine(dom, say)
}

// sayMachine describes the devices that QEMU itself reports.
func (c *crash) sayMachine(dom libvirt.Domain, say func(string, ...any)) error {
	for _, question := range []struct {
		command string
		parts   *regexp.Regexp
	}{
		{`{"execute":"query-status"}`, regexp.MustCompile(`"running": ?(?:true|false)`)},
		{`{"execute":"qom-list","arguments":{"path":"/machine/peripheral"}}`, regexp.MustCompile(`"name": ?"[^"]*"`)},
		{`{"execute":"qom-list","arguments":{"path":"/objects"}}`, regexp.MustCompile(`"name": ?"[^"]*"`)},
		{`{"execute":"query-chardev"}`, regexp.MustCompile(`"label": ?"[^"]*"`)},
		{`{"execute":"query-hotpluggable-cpus"}`, regexp.MustCompile(`"qom-path": ?"[^"]*"`)},
		{`{"execute":"query-block"}`, regexp.MustCompile(`"(?:tray_open|locked)": ?\w+|"node-name": ?"libvirt[^"]*"`)},
		{`{"execute":"query-named-block-nodes","arguments":{"flat":true}}`, regexp.MustCompile(`"node-name": ?"libvirt[^"]*"`)},
	} {
		answer, err := c.l.QEMUDomainMonitorCommand(dom, question.command, 0)
		if err != nil {
			return err
		}
		found := question.parts.FindAllString(answer, -1)
		for i := range found {
			found[i] = strings.ReplaceAll(found[i], ": ", ":")
		}
		slices.Sort(found)
		say("%s: %s says %s", dom.Name, question.command, strings.Join(found, " "))
	}
	return c.sayMore(dom, say)
}

func (c *crash) sayNetworks(say func(string, ...any)) error {
	all, _, err := c.l.ConnectListAllNetworks(1, 0)
	if err != nil {
		return err
	}
	slices.SortFunc(all, func(a, b libvirt.Network) int { return strings.Compare(a.Name, b.Name) })
	for _, n := range all {
		if n.Name == "default" {
			continue
		}
		active, err := c.l.NetworkIsActive(n)
		if err != nil {
			return err
		}
		persistent, err := c.l.NetworkIsPersistent(n)
		if err != nil {
			return err
		}
		var auto int32
		if persistent != 0 {
			if auto, err = c.l.NetworkGetAutostart(n); err != nil {
				return err
			}
		}
		xml, err := c.l.NetworkGetXMLDesc(n, 0)
		if err != nil {
			return err
		}
		say("network %s: active %d, persistent %d, autostart %d\n%s", n.Name, active, persistent, auto, xml)
		if persistent != 0 {
			kept, err := c.l.NetworkGetXMLDesc(n, uint32(libvirt.NetworkXMLInactive))
			if err != nil {
				return err
			}
			say("kept %s", strings.ReplaceAll(kept, "\n", "\nkept "))
		}
	}
	return nil
}

func (c *crash) sayPools(say func(string, ...any)) error {
	all, _, err := c.l.ConnectListAllStoragePools(1, 0)
	if err != nil {
		return err
	}
	slices.SortFunc(all, func(a, b libvirt.StoragePool) int { return strings.Compare(a.Name, b.Name) })
	for _, p := range all {
		active, err := c.l.StoragePoolIsActive(p)
		if err != nil {
			return err
		}
		persistent, err := c.l.StoragePoolIsPersistent(p)
		if err != nil {
			return err
		}
		var auto int32
		if persistent != 0 {
			if auto, err = c.l.StoragePoolGetAutostart(p); err != nil {
				return err
			}
		}
		say("pool %s: active %d, persistent %d, autostart %d", p.Name, active, persistent, auto)
		if active != 0 {
			if err := c.sayVolumes(p, say); err != nil {
				return err
			}
		}
	}
	return nil
}

var volumeFormat = regexp.MustCompile(`<format type='[^']*'/>`)

func (c *crash) sayVolumes(p libvirt.StoragePool, say func(string, ...any)) error {
	all, _, err := c.l.StoragePoolListAllVolumes(p, 1, 0)
	if err != nil {
		return err
	}
	slices.SortFunc(all, func(a, b libvirt.StorageVol) int { return strings.Compare(a.Name, b.Name) })
	for _, v := range all {
		_, capacity, _, err := c.l.StorageVolGetInfo(v)
		if err != nil {
			return err
		}
		xml, err := c.l.StorageVolGetXMLDesc(v, 0)
		if err != nil {
			return err
		}
		say("volume %s/%s: capacity %d, %s", p.Name, v.Name, capacity, strings.Join(volumeFormat.FindAllString(xml, -1), " "))
	}
	return nil
}

// isOwedImage reports whether a file records a pending cleanup of a disk. QEMU closes the disk's images when its
// guest runs, and the guests of the matrix are paused.
func isOwedImage(path string) bool {
	if !strings.HasPrefix(filepath.Base(path), "operation-") {
		return false
	}
	r, err := atomicfile.ReadJSON[operation.Record](path)
	return err == nil && r != nil && r.Kind == "cleanup" && strings.Contains(string(r.Payload), `"Images":`)
}

// sayFiles lists the files in the test's world: the daemon's own, and those that clients asked it to create.
func (c *crash) sayFiles(say func(string, ...any)) error {
	return filepath.WalkDir(c.dir, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // it has gone meanwhile
		}
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(c.dir, path)
		switch {
		case name == "data/guest/tpm": // holds one for each that has one
			return nil
		case name == "commands" || filepath.Base(name) == "log":
			return fs.SkipDir
		case c.knowsGuest(anyUUID.FindString(name)) && (strings.HasPrefix(name, "data/guest/nvram/") || strings.HasPrefix(name, "data/guest/tpm/")) && !strings.HasSuffix(name, ".partial"):
			return nil // they stay for the guest's next start
		case isOwedImage(path):
			return nil
		case strings.HasSuffix(name, ".leases") && c.knowsNetwork(strings.TrimSuffix(filepath.Base(name), ".leases")):
			return nil // it stays for the network's next start
		case name == "pid" || strings.HasPrefix(name, "data/lodge.db"):
			return nil
		}
		say("file %s", name)
		return nil
	})
}

func (c *crash) knowsGuest(uuid string) bool {
	all, _, err := c.l.ConnectListAllDomains(1, 0)
	return err == nil && slices.ContainsFunc(all, func(g libvirt.Domain) bool { return uuidText(g.UUID) == uuid })
}

func (c *crash) knowsNetwork(uuid string) bool {
	all, _, err := c.l.ConnectListAllNetworks(1, 0)
	return err == nil && slices.ContainsFunc(all, func(n libvirt.Network) bool { return uuidText(n.UUID) == uuid })
}

// sayRecords lists the keys in a copy of the store, because the daemon has locked the file.
func (c *crash) sayRecords(say func(string, ...any)) (err error) {
	text, err := os.ReadFile(filepath.Join(c.data, "lodge.db"))
	if err != nil {
		return err
	}
	beside := filepath.Join(c.commands, "lodge.db")
	if err := os.WriteFile(beside, text, 0o600); err != nil {
		return err
	}
	defer func() { // a copy that is taken during a write may be unreadable
		if broken := recover(); broken != nil {
			err = fmt.Errorf("the copy of the store is broken: %v", broken)
		}
	}()
	db, err := bbolt.Open(beside, 0o600, &bbolt.Options{ReadOnly: true, Timeout: time.Second})
	if err != nil {
		return err
	}
	defer db.Close() //nolint:errcheck // opened to read
	templates := 0
	defer func() { say("records of templates: %d", templates) }()
	return db.View(func(tx *bbolt.Tx) error {
		return tx.ForEach(func(kind []byte, b *bbolt.Bucket) error {
			return b.ForEach(func(key, value []byte) error {
				say("record %s %s", kind, key)
				if bytes.Contains(value, []byte(`"Template":true`)) {
					templates++
				}
				return nil
			})
		})
	})
}

// sayHost lists the daemon's objects in the kernel: processes, links, control groups, mounts and, on request,
// firewall rules.
func (c *crash) sayHost(say func(string, ...any)) error {
	var found []string
	for _, words := range c.processes() {
		argv := strings.Fields(words)
		program := filepath.Base(argv[0])
		switch {
		case strings.HasPrefix(program, "lodged"), program == "sh", program == "nsenter", program == "nft":
			continue
		}
		whose := guestName.FindString(words)
		if whose == "" {
			whose = strings.ReplaceAll(words, c.dir, "")
		}
		found = append(found, "process "+program+" "+whose)
	}
	keeper := fmt.Sprintf("/proc/%d", c.keeper.Process.Pid)
	links, err := os.ReadDir(keeper + "/root/sys/class/net")
	if err != nil {
		return err
	}
	for _, l := range links {
		found = append(found, "link "+l.Name())
	}
	for _, g := range c.guestGroups() {
		found = append(found, "control group "+g)
	}
	for at := range c.mounts() {
		if !c.foreign[at] {
			found = append(found, "mount "+at)
		}
	}
	slices.Sort(found)
	say("%s", strings.Join(found, "\n"))
	if !c.firewall {
		return nil
	}
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	rules, err := c.command(ctx, "nft", "-j", "list", "chains").Output()
	if err != nil {
		return err
	}
	var all struct{ Nftables []map[string]any }
	if err := json.Unmarshal(rules, &all); err != nil {
		return err
	}
	for _, one := range all.Nftables {
		if chain, is := one["chain"].(map[string]any); is {
			say("chain %v %v", chain["table"], chain["name"])
		}
	}
	return nil
}

// mounts lists where something is mounted in the daemon's world.
func (c *crash) mounts() map[string]bool {
	all := map[string]bool{}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", c.keeper.Process.Pid))
	c.must(err)
	for line := range strings.Lines(string(text)) {
		all[strings.Fields(line)[4]] = true
	}
	return all
}
