package law

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// namedFile is a Go file of a room that a page or a comment names, such as guest/hotplug/media.go.
var namedFile = regexp.MustCompile(`\b(?:[a-z]+/)+[a-z_]+\.go\b`)

// TestFiles_NamedOnesExist: a page or a comment of ours that names a Go file by its folder names one that exists. The
// records of past runs (docs/runs) may name older files.
func TestFiles_NamedOnesExist(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "git", "-C", "../..", "ls-files", "docs", "internal", "cmd", "conformance", "test", "lab", "CONTRIBUTING.md", "README.md").Output()
	if err != nil {
		t.Skip("needs the git repository")
	}
	all := strings.Fields(string(out))
	var files strings.Builder
	for _, name := range all {
		files.WriteString("/" + name + "\n")
	}
	for _, name := range all {
		if strings.HasPrefix(name, "docs/runs/") || !strings.HasSuffix(name, ".md") && filepath.Base(name) != "doc.go" {
			continue
		}
		text, err := os.ReadFile(filepath.Join("../..", name))
		if err != nil {
			continue // it is being moved
		}
		for _, named := range namedFile.FindAllString(string(text), -1) {
			if !strings.Contains(files.String(), "/"+named+"\n") {
				t.Errorf("%s names %s, which does not exist", name, named)
			}
		}
	}
}
