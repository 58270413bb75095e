package hostnet

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestFolderWatch_Writes(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.leases")
	if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	w, err := WatchFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := os.WriteFile(path, []byte("new"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path, filepath.Join(dir, "b.leases")); err != nil {
		t.Fatal(err)
	}
	var told []string
	for !slices.Contains(told, "b.leases") { // each news comes, if not in one piece
		names, all, err := w.Next()
		if err != nil || all {
			t.Fatal(all, err)
		}
		told = append(told, names...)
	}
	if !slices.Contains(told, "a.leases") {
		t.Errorf("told of %v", told)
	}
	ended := make(chan error)
	go func() {
		_, _, err := w.Next()
		ended <- err
	}()
	w.Close()
	if err := <-ended; err == nil {
		t.Error("Next goes on after Close")
	}
	if _, err := WatchFolder(path); err == nil {
		t.Error("what is no folder is watched")
	}
}
