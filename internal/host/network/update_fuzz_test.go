package network

import (
	"testing"
)

// FuzzUpdate changes one entry of a network. An accepted result can be printed and parsed again, and the
// definition before it is unchanged.
func FuzzUpdate(f *testing.F) {
	const doc = `<network><name>n</name><uuid>11111111-2222-3333-4444-555555555555</uuid><forward mode='nat'><interface dev='eth0'/></forward><bridge name='br0'/>
		<dns><host ip='10.0.0.9'><hostname>nine</hostname></host><txt name='a' value='b'/><srv service='s' protocol='tcp' target='.' port='1'/></dns>
		<ip address='10.0.0.1' netmask='255.255.255.0'><dhcp><range start='10.0.0.10' end='10.0.0.20'/><host mac='52:54:00:00:00:01' name='one' ip='10.0.0.11'/></dhcp></ip>
		<ip family='ipv6' address='fd00::1' prefix='64'/><portgroup name='p' default='yes'/></network>`
	before, err := Parse(doc, true)
	if err != nil {
		f.Fatal(err)
	}
	printed, err := before.XML(1)
	if err != nil {
		f.Fatal(err)
	}
	sections := []Section{SectionDHCPHost, SectionDHCPRange, SectionForwardInterface, SectionPortGroup, SectionDNSHost, SectionDNSTXT, SectionDNSSRV, "bridge"}
	commands := []Command{AddFirst, AddLast, Modify, Delete, "none"}
	for section, entry := range []string{
		"<host mac='52:54:00:00:00:02' name='two' ip='10.0.0.12'/>", "<range start='10.0.0.30' end='10.0.0.40'/>", "<interface dev='eth1'/>", "<portgroup name='q'/>",
		"<host ip='10.0.0.8'><hostname>eight</hostname></host>", "<txt name='c' value='d'/>", "<srv service='x' protocol='udp' domain='e' target='t' port='2' priority='3' weight='4'/>", "<bridge/>",
	} {
		for command := range commands {
			f.Add(uint8(section), uint8(command), -1, entry)
		}
	}
	f.Add(uint8(0), uint8(1), 1, "<host id='0:1' ip='fd00::2'/>")
	f.Fuzz(func(t *testing.T, section, command uint8, parent int, entry string) {
		u := Update{Command: commands[int(command)%len(commands)], Section: sections[int(section)%len(sections)], Parent: parent, XML: entry}
		after, err := before.apply(u)
		if err == nil {
			err = after.check()
		}
		if same, wrong := before.XML(1); wrong != nil || same != printed {
			t.Fatalf("the definition before has changed (%v):\n%s", wrong, same)
		}
		if err != nil {
			return
		}
		text, err := after.XML(1)
		if err != nil {
			t.Fatalf("accepted and cannot be printed: %v", err)
		}
		again, err := Parse(text, true)
		if err != nil {
			t.Fatalf("printed and cannot be read: %v\n%s", err, text)
		}
		if twice, err := again.XML(1); err != nil || twice != text {
			t.Fatalf("%v\n%s\nis read as\n%s", err, text, twice)
		}
	})
}
