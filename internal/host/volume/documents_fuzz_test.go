package volume

import (
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// FuzzDocuments parses documents of pools and volumes. An accepted pool is stored as its own document, and the
// next daemon reads it the same. No name leads out of the pool, and no argument of a tool becomes an option.
func FuzzDocuments(f *testing.F) {
	f.Add(dirXML("a", "/x"))
	f.Add(volXML("a", "qcow2", 1, "<backingStore><path>/x</path></backingStore>"))
	for _, pool := range []string{
		"type='netfs'><name>a</name><source><host name='h'/><dir path='/d'/><format type='nfs'/><protocol ver='4.1'/></source><target><path>/x</path></target>",
		"type='netfs'><name>a</name><source><host name='-o x'/><dir path='/d'/></source><target><path>/x</path></target>",
		"type='fs'><name>a</name><uuid>6A7F40B6-5A0C-4A4A-9B39-0C7C32A5BD29</uuid><source><device path='/dev/x'/><format type='xfs'/></source><target><path>/x/../y</path></target>",
		"type='logical'><name>a</name><source><device path='/dev/x'/><device path='/dev/y'/><name>vg</name><format type='lvm2'/></source><target><path>/dev/vg</path></target>",
		"type='logical'><name>vg</name>",
		"type='disk'><name>a</name><source><device path='/dev/x'/><format type='gpt'/></source><target><path>/dev</path></target>",
		"type='dir'><name>a</name><target><path>/x</path><permissions><mode>0751</mode><owner>0</owner><group>4294967294</group></permissions></target>",
		"type='dir'><name>a</name><target><path>/x</path><permissions><label>x</label></permissions></target>",
		"type='rbd'><name>a</name>",
		"type='dir'><name>&amp;&lt;'\"</name><target><path>/&#9731; x</path></target><nonsense/>",
	} {
		f.Add("<pool " + pool + "</pool>")
	}
	for _, target := range []string{
		"<format type='raw'/><encryption format='luks'><secret type='passphrase' uuid='6a7f40b6-5a0c-4a4a-9b39-0c7c32a5bd29'/><cipher name='aes' size='256' mode='xts' hash='sha256'/><ivgen name='plain64' hash='sha256'/></encryption>",
		"<format type='qcow2'/><compat>1.1</compat><clusterSize unit='KiB'>128</clusterSize><features><lazy_refcounts/><extended_l2/></features><nocow/>",
		"<format type='qcow2'/><encryption format='qcow'/>", "<permissions><mode>4755</mode></permissions>", "<clusterSize unit='E'>99</clusterSize>",
	} {
		f.Add("<volume><name>v</name><capacity unit='GB'>1</capacity><allocation unit='parsec'>0</allocation><target>" + target + "</target></volume>")
		f.Add("<volume><name>v</name><capacity unit='TiB'>1</capacity><target>" + target + "</target></volume>")
	}
	f.Fuzz(func(t *testing.T, doc string) {
		if d, err := parsePool(doc, "", true); err == nil {
			readsAgain(t, d)
		}
		if w, err := parseVolume(doc, true); err == nil {
			if checkName(fault.Volume, w.name) != nil || w.backing != nil && !filepath.IsAbs(w.backing.Name) || w.perms.mode > 0o777 {
				t.Fatalf("accepted %+v", w)
			}
		}
	})
}

// readsAgain checks an accepted pool and stores it.
func readsAgain(t *testing.T, d *definition) {
	if checkName(fault.Pool, d.name) != nil || !filepath.IsAbs(d.target) || strings.HasPrefix(d.source(), "-") || strings.HasPrefix(d.group, "-") {
		t.Fatalf("accepted %+v", d)
	}
	text, err := xmltree.Format(d.document(space{}))
	if err != nil {
		t.Fatal(err)
	}
	again, err := parsePool(text, "", true)
	if err != nil {
		t.Fatalf("%s\nis kept, and not read again: %v", text, err)
	}
	if !reflect.DeepEqual(again, d) {
		t.Fatalf("%+v is kept, and %+v read again", d, again)
	}
}
