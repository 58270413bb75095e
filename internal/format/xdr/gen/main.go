// Command gen makes the Go side of the procedure tables in the folder above:
// one file each for limits and numbers, types, codecs and the table of procedures. It runs
// in that folder ("go generate ./internal/format/xdr") and its output is checked in.
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	if err := write("."); err != nil {
		fmt.Fprintln(os.Stderr, "cannot generate:", err)
		os.Exit(1)
	}
}

func write(dir string) error {
	files, err := generate(dir)
	if err != nil {
		return err
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// generate reads the tables in dir and returns the text of each Go file by name.
func generate(dir string) (map[string][]byte, error) {
	t := newTable()
	for _, name := range []string{"remote.table", "qemu.table"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		if err := t.parse(string(text)); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return t.emit()
}
