package mount

import (
	"fmt"
	"strings"
	"testing"
)

// FuzzTable reads the kernel's list of mounts, whose points and sources users choose:
// each is read as it was before the kernel escaped it.
func FuzzTable(f *testing.F) {
	f.Add("a\u00a0b\r", "\u2000", "")
	f.Add("a b", "host:/x y", "36 35 98:0 / /mnt rw - ext4 /dev/sda1 rw\n")
	f.Add("\\040", "\\", "1 2\n3 4 5:6 / /\\0 - x\n-1 0 0:0 / /\\777 - a b - c d")
	f.Fuzz(func(t *testing.T, point, source, others string) {
		for _, m := range parse(others) {
			if strings.ContainsAny(m.Type, " \n") {
				t.Fatalf("%+v", m)
			}
		}
		point = "/" + point // as all are
		escape := strings.NewReplacer(" ", `\040`, "\t", `\011`, "\n", `\012`, `\`, `\134`, "#", `\043`)
		line := fmt.Sprintf("36 35 98:0 / %s rw shared:1 - nfs4 %s rw\n", escape.Replace(point), escape.Replace(source))
		if got := parse(line); len(got) != 1 || got[0] != (Mount{ID: 36, Point: point, Type: "nfs4", Source: source}) {
			t.Fatalf("%q is read as %+v", line, got)
		}
	})
}
