package provision

import (
	"testing"
)

func TestWithoutNotices(t *testing.T) {
	for said, want := range map[string]string{
		"": "",
		"char device redirected to /dev/pts/1 (label charserial0)\n":                     "",
		"char device redirected to /dev/pts/1 (label charserial0)\nqemu: no more\n":      "qemu: no more\n",
		"qemu: no device\nchar device redirected to /dev/pts/1 (label a)\nqemu: no more": "qemu: no device\nqemu: no more",
	} {
		if got := withoutNotices(said); got != want {
			t.Errorf("%q becomes %q, want %q", said, got, want)
		}
	}
}
