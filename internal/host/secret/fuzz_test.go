package secret

import (
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// FuzzParse: an accepted document is within the bounds, and is parsed again as printed.
func FuzzParse(f *testing.F) {
	f.Add("<secret ephemeral='yes' private='no'><uuid>11111111-2222-3333-4444-555555555555</uuid><description>a</description><usage type='volume'><volume>/v</volume></usage></secret>")
	f.Add("<secret><usage type='ceph'><name>n</name></usage></secret>")
	f.Add("<secret><usage type='none'/><odd/></secret>")
	f.Fuzz(func(t *testing.T, doc string) {
		d, err := Parse(doc, false)
		if err != nil {
			if fault.Is(err, fault.Internal) {
				t.Fatal(err)
			}
			return
		}
		if len(d.Description) > maxText || len(d.Usage.ID) > maxUsage {
			t.Fatalf("texts of %d and %d bytes", len(d.Description), len(d.Usage.ID))
		}
		text, err := d.XML()
		if err != nil {
			t.Fatal(err)
		}
		if again, err := Parse(text, d.UUID != ""); err != nil || again != d {
			t.Fatalf("%+v is read again as %+v, %v\n%s", d, again, err, text)
		}
	})
}
