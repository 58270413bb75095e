package early

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// LoadModules loads the drivers listed in the file, one path a line, each after its dependencies. A driver without
// hardware here is loaded, too, so that the hardware may be plugged in later.
func LoadModules(list string) []error {
	text, err := os.ReadFile(list)
	if err != nil {
		return []error{fmt.Errorf("cannot read the list of modules: %w", err)}
	}
	var failed []error
	for path := range strings.Lines(string(text)) {
		if err := loadModule(strings.TrimSpace(path)); err != nil {
			failed = append(failed, err)
		}
	}
	return failed
}

func loadModule(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("cannot load module: %w", err)
	}
	defer file.Close()
	err = unix.FinitModule(int(file.Fd()), "", 0)
	if err != nil && !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("cannot load module %s: %w", path, err)
	}
	return nil
}
