package bare

import (
	"slices"
	"testing"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

func TestFilesThatWereHandedOverAreOpenedByTheirPath(t *testing.T) {
	got, err := handed([]string{
		"-add-fd", "fd=30,set=256,opaque=/d/lab-1.raw", "-add-fd", "fd=31,set=256,opaque=/d/lab-1.raw", "-add-fd", "set=25,fd=32,opaque=/dev/null",
		"-blockdev", `{"driver":"file","filename":"/dev/fdset/256"}`, "-chardev", "file,id=s,path=/dev/fdset/25", "-chardev", "file,path=/dev/fdset/25,id=s", "-S",
	})
	want := []string{
		"-blockdev", `{"driver":"file","filename":"/d/lab-1.raw"}`, "-chardev", "file,id=s,path=/dev/null", "-chardev", "file,path=/dev/null,id=s", "-S",
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v", got, err)
	}
	for name, args := range map[string][]string{
		"no path":          {"-add-fd", "fd=33,set=1"},
		"no whole path":    {"-add-fd", "fd=33,set=1,opaque=file"},
		"a quote":          {"-add-fd", `fd=34,set=1,opaque=/d/a"b`},
		"a comma":          {"-add-fd", "fd=34,set=1,opaque=/d/a,,b"},
		"several in a set": {"-add-fd", "fd=30,set=1,opaque=/a", "-add-fd", "fd=32,set=1,opaque=/b"},
		"without its set":  {"-add-fd", "fd=30,opaque=/a"},
	} {
		if got, err := handed(args); !fault.Is(err, fault.Unsupported) {
			t.Errorf("%s: got %q, %v", name, got, err)
		}
	}
}
