package image

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/testguest"
)

func TestTheAgentOfAnImageIsFoundInIt(t *testing.T) {
	var out bytes.Buffer
	a := testguest.NewArchive(&out)
	a.Dir("dev")
	a.File("etc", 0o644, []byte("four5"))
	a.File("init", 0o755, []byte("the agent"))
	a.File("more", 0o644, []byte("more"))
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	i, path := Image{Initrd: filepath.Join(dir, "initrd")}, filepath.Join(dir, "agent")
	if err := os.WriteFile(i.Initrd, out.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := i.Agent(path); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	info, failed := os.Stat(path)
	if err != nil || failed != nil || string(text) != "the agent" || info.Mode()&0o111 == 0 {
		t.Errorf("%q, %v, %v", text, info, err)
	}
	for what, content := range map[string][]byte{"nothing": nil, "words": []byte("no archive"), "the half": out.Bytes()[:out.Len()/2]} {
		if err := os.WriteFile(i.Initrd, content, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := i.Agent(path); err == nil || !strings.Contains(err.Error(), "cannot read the guest's agent") {
			t.Errorf("out of %s: %v", what, err)
		}
	}
}

// An archive is a file of the host's; a wrong one costs an error and no more.
func TestHostileArchivesGiveErrors(t *testing.T) {
	number := func(n string) string { return strings.Repeat("0", 8-len(n)) + n }
	for _, c := range []struct{ size, long string }{{"FFFFFFFF", "5"}, {"5", "FFFFFFFF"}, {"5", "0"}, {"-1", "5"}, {"x", "5"}} {
		head := "070701" + strings.Repeat(number("0"), 6) + number(c.size) + strings.Repeat(number("0"), 4) + number(c.long) + number("0")
		if content, err := member(bufio.NewReader(strings.NewReader(head+"init\x00")), "init"); err == nil {
			t.Errorf("%+v gives %d bytes", c, len(content))
		}
	}
}
