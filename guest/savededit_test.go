package guest_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/domain"
	"github.com/lodge-kvm/lodge/domainxml"
	"github.com/lodge-kvm/lodge/fault"
	"github.com/lodge-kvm/lodge/guest"
)

// A definition that comes with a save is held to what one has to keep to that is defined: the name
// of a device leads to no other's files, and a start takes no more than the machine had.
func TestADefinitionThatComesWithASaveHasBounds(t *testing.T) {
	d := newDaemonOf(t, true)
	cell := "<cpu><numa><cell id='0' cpus='0' memory='65536'/></numa></cpu>"
	g := d.define(strings.Replace(small("saved", "<controller type='virtio-serial'/>",
		"<channel type='unix'><target type='virtio' name='org.test.0'/></channel>"), "<devices>", cell+"<devices>", 1))
	ok(t, g.Start(d.ctx(), guest.StartOptions{}))
	own, err := domainxml.Format(g.View().Active, domainxml.Style{Secure: true})
	ok(t, err)
	trap := filepath.Join(d.dir, "trap")
	channel := own[strings.Index(own, "<channel"):strings.Index(own, "</channel>")]
	wrong := map[string]string{
		"alias": strings.Replace(own, channel, "<channel type='unix'><target type='virtio' name='org.test.0'/>"+
			"<alias name='ua-x/"+strings.Repeat("../", 16)+trap[1:]+"'/>"+channel[strings.Index(channel, "<address"):], 1),
		"iothreads": strings.Replace(own, "<os>", "<iothreads>18446744073709551615</iothreads><os>", 1),
		"cells":     strings.Replace(own, "memory='65536' unit='KiB'", "memory='1' unit='TiB'", 1),
		"alias vnc": strings.Replace(own, "</devices>", strings.Repeat("<graphics type='vnc' autoport='yes'/>", 2)+"</devices>", 1),
	}
	for word, doc := range wrong {
		if doc == own {
			t.Fatalf("%s: nothing was changed in\n%s", word, own)
		}
		refused(t, g.ManagedSave(d.ctx(), guest.SaveOptions{XML: doc}), fault.Invalid, word)
		d.want(g, domain.Running, domain.ReasonBooted)
	}
	ok(t, g.ManagedSave(d.ctx(), guest.SaveOptions{XML: own}))
	d.settle(g, domain.ShutOff)
	for word, doc := range wrong {
		refused(t, g.RedefineManagedSave(d.ctx(), guest.SaveOptions{XML: doc}), fault.Failed, word)
	}
	ok(t, g.Start(d.ctx(), guest.StartOptions{}))
	d.want(g, domain.Running, domain.ReasonRestored)
	if _, err := os.Stat(trap + ".sock"); err == nil {
		t.Error("the name of a device led to a socket elsewhere")
	}
}
