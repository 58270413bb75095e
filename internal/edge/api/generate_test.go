package api

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestGeneratedCode_IsCurrent generates the code again and compares it.
func TestGeneratedCode_IsCurrent(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the generators: not among the short tests")
	}
	if _, err := exec.LookPath("protoc"); err != nil {
		t.Skip("needs protoc (Debian: protobuf-compiler, libprotobuf-dev)")
	}
	dir := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "../../../scripts/generate", dir).CombinedOutput(); err != nil {
		t.Fatalf("cannot generate: %v\n%s", err, out)
	}
	for _, name := range []string{"lodge.pb.go", "lodge.connect.go"} {
		made, err := os.ReadFile(filepath.Join(dir, "api/lodgev1", name))
		ok(t, err)
		kept, err := os.ReadFile(filepath.Join("../../../api/lodgev1", name))
		ok(t, err)
		if !bytes.Equal(withoutVersions(made), withoutVersions(kept)) {
			t.Errorf("api/lodgev1/%s is not what api/lodge/v1/lodge.proto says: run make generate", name)
		}
	}
}

// withoutVersions drops the lines that name the compiler's version: Debian's releases differ only there.
func withoutVersions(code []byte) []byte {
	var kept []byte
	for line := range bytes.Lines(code) {
		if !bytes.Contains(line, []byte("protoc ")) && !bytes.Contains(line, []byte("protoc-gen-go v")) {
			kept = append(kept, line...)
		}
	}
	return kept
}
