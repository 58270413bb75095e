package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// plugins are the commands that come with Lodge as programs of their own. The text says what
// to do if the program is missing.
var plugins = []struct{ name, short, program, missing string }{
	{"lab", "Measure a daemon that speaks libvirt's protocol: Lodge's, libvirt's or another", "lodge-lab", "build it with `make build`"},
	{"import", "Define the guests and other objects of an /etc/libvirt tree or an export", "lodged", "install the daemon on this host"},
	{"store", "Check, repair and export the store of a daemon", "lodged", "install the daemon on this host"},
	{"probe", "Try which features of QEMU work on this host", "lodged", "install the daemon on this host"},
}

func pluginCommands() []*cobra.Command {
	var all []*cobra.Command
	for _, p := range plugins {
		all = append(all, &cobra.Command{
			Use:                p.name,
			Short:              p.short,
			DisableFlagParsing: true, // the program parses its flags, also --help; it takes lodge's global ones
			ValidArgsFunction:  completePlugin(p.name, p.program),
			RunE: func(_ *cobra.Command, args []string) error {
				path, err := findProgram(p.program)
				if err != nil {
					return unusable(fmt.Errorf("`lodge %s` needs %s, which is neither beside lodge nor on PATH; %s, and put it there", p.name, p.program, p.missing))
				}
				if p.program == "lodged" {
					return become(path, append([]string{"lodge", p.name}, args...)) // its errors begin with "lodge:"
				}
				return become(path, append([]string{path}, args...))
			},
		})
	}
	return all
}

// runPlugin executes lodge-NAME if the first argument names no command of root's and there
// is such a program. It returns nil if there is none.
func runPlugin(root *cobra.Command, args []string) error {
	if len(args) == 0 || args[0] == "" || strings.HasPrefix(args[0], "-") || strings.ContainsRune(args[0], filepath.Separator) {
		return nil
	}
	if found, _, err := root.Find(args); err == nil && found != root || isBuiltIn(args[0]) {
		return nil
	}
	path, err := findProgram("lodge-" + args[0])
	if err != nil {
		return nil // the root command reports the unknown command
	}
	return become(path, append([]string{path}, args[1:]...))
}

// isBuiltIn reports whether cobra adds the command when it runs.
func isBuiltIn(name string) bool {
	return name == "help" || name == "completion" || strings.HasPrefix(name, cobra.ShellCompRequestCmd)
}

// own returns the path of this program, with links followed.
var own = func() (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(path)
}

// findProgram looks in this program's folder first, which holds the programs of the same build,
// and then on PATH.
func findProgram(name string) (string, error) {
	if self, err := own(); err == nil {
		beside, err := exec.LookPath(filepath.Join(filepath.Dir(self), name))
		if err == nil {
			return beside, nil
		}
	}
	path, err := exec.LookPath(name)
	if errors.Is(err, exec.ErrDot) {
		return "", fmt.Errorf("%s is in the working directory only, which is not searched: %w", name, err)
	}
	return path, err
}

// become executes a program in place of this one. argv[0] is the name that it is called by. It
// returns only if that fails.
var become = func(path string, argv []string) error {
	err := syscall.Exec(path, argv, os.Environ())
	return fmt.Errorf("cannot run %s: %w", path, err)
}
