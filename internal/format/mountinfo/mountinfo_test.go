package mountinfo

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	got := slices.Collect(Parse("22 1 0:21 / /proc rw - proc proc rw\n" +
		"40 22 8:1 / /mnt/a\\040b rw,relatime shared:1 master:2 - ext4 /dev/sda1 rw\n" +
		"41 22 0:40 /s\\011b /mnt/a\\040b rw - nfs4 host:/x\\134y rw,vers=4.2\nbroken\nx 1 2 3 / - a b c\n42 1 0:1 / /short - tmpfs x\n"))
	want := []Mount{
		{22, "/", "/proc", "proc", "proc", "rw"},
		{40, "/", "/mnt/a b", "ext4", "/dev/sda1", "rw"},
		{41, "/s\tb", "/mnt/a b", "nfs4", `host:/x\y`, "rw,vers=4.2"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("%+v\nwant\n%+v", got, want)
	}
}

// FuzzParse: points and sources, which users choose, are read as they were before the
// kernel escaped them.
func FuzzParse(f *testing.F) {
	f.Add("a\u00a0b\r", "\u2000", "")
	f.Add("a b", "host:/x y", "36 35 98:0 / /mnt rw - ext4 /dev/sda1 rw\n")
	f.Add("\\040", "\\", "1 2\n3 4 5:6 / /\\0 - x\n-1 0 0:0 / /\\777 - a b - c d")
	f.Fuzz(func(t *testing.T, point, source, others string) {
		for m := range Parse(others) {
			if strings.ContainsAny(m.Type, " \n") || len(m.Point)+len(m.Source) > len(others) {
				t.Fatalf("%+v", m)
			}
		}
		point = "/" + point // as all are
		escape := strings.NewReplacer(" ", `\040`, "\t", `\011`, "\n", `\012`, `\`, `\134`, "#", `\043`)
		line := fmt.Sprintf("36 35 98:0 / %s rw shared:1 - nfs4 %s rw\n", escape.Replace(point), escape.Replace(source))
		want := []Mount{{ID: 36, Root: "/", Point: point, Type: "nfs4", Source: source, Options: "rw"}}
		if got := slices.Collect(Parse(line)); !slices.Equal(got, want) {
			t.Fatalf("%q is read as %+v", line, got)
		}
	})
}
