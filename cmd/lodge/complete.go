package main

import (
	"bytes"
	"context"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lodge-kvm/lodge/internal/cli"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/remote"
)

// completePatience is how long a completion may keep the shell waiting.
const completePatience = time.Second

// completion gives the words that may follow.
type completion = func(c *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective)

// ask makes a completion of a question to the daemon.
func (d *daemonFlags) ask(question func(ctx context.Context, daemon *cli.Client, typed string) []string) completion {
	return func(c *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
		ctx, stop := context.WithTimeout(c.Context(), completePatience)
		defer stop()
		daemon := d.dial()
		defer daemon.Close()
		words := question(ctx, daemon, typed)
		directive := cobra.ShellCompDirectiveNoFileComp
		if len(words) > 0 && !hasWhole(words) {
			directive |= cobra.ShellCompDirectiveNoSpace
		}
		return words, directive
	}
}

// hasWhole tells whether one of the words may be followed by another.
func hasWhole(words []string) bool {
	for _, word := range words {
		if !strings.HasSuffix(word, "=") {
			return true
		}
	}
	return false
}

func (d *daemonFlags) selectors() completion {
	return d.ask(func(ctx context.Context, daemon *cli.Client, typed string) []string {
		return daemon.CompleteSelector(ctx, typed, func() []string { return d.pools(ctx) })
	})
}

func (d *daemonFlags) tiles() completion {
	return d.ask(func(ctx context.Context, daemon *cli.Client, _ string) []string { return daemon.TileNames(ctx) })
}

// pools gives the names of pools, by libvirt's protocol; none for a daemon of another host.
func (d *daemonFlags) pools(ctx context.Context) []string {
	if d.host != "" {
		return nil
	}
	conn, err := remote.Dial(ctx, filepath.Join(filepath.Dir(d.socket), "libvirt-sock"))
	if err != nil {
		return nil
	}
	defer conn.Close()
	var answer xdr.ConnectListAllStoragePoolsRet
	if err := conn.Call(ctx, xdr.ProcConnectListAllStoragePools, &xdr.ConnectListAllStoragePoolsArgs{NeedResults: true}, &answer); err != nil {
		return nil
	}
	var names []string
	for _, pool := range answer.Pools {
		names = append(names, cli.Clean(pool.Name))
	}
	return names
}

// onlyFirst completes the first argument, and the others with next.
func onlyFirst(first, next completion) completion {
	return func(c *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return first(c, args, typed)
		}
		return next(c, args, typed)
	}
}

// settingKeys are the keys of `lodge set`.
var settingKeys = []string{"memory=", "vcpus=", "autostart=", "priority=", "after=", "title=", "description=", "template=", "memory.shares=", "memory.floor=", "memory.mode=", "label."}

func words(of ...string) completion {
	return cobra.FixedCompletions(of, cobra.ShellCompDirectiveNoFileComp)
}

func prefixes(of ...string) completion {
	return cobra.FixedCompletions(of, cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveNoSpace)
}

// completeArguments says how the shell completes the arguments and flags of all commands below root.
func completeArguments(root *cobra.Command, d *daemonFlags) {
	files := cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault)
	guests := d.ask(func(ctx context.Context, daemon *cli.Client, _ string) []string { return daemon.GuestNames(ctx) })
	arguments := map[string]completion{
		"define": files, "set": onlyFirst(d.selectors(), prefixes(settingKeys...)), "clone": onlyFirst(guests, words()),
		"tile create": words(), "tile remove": d.tiles(), "tile start": d.tiles(), "tile stop": d.tiles(),
	}
	for _, name := range []string{"ps", "top", "memory", "events", "check", "why"} {
		arguments[name] = d.selectors()
	}
	for _, v := range verbs {
		arguments[v.name] = d.selectors()
	}
	flags := map[string]completion{
		"ps --output": words(cli.Narrow, cli.Wide, cli.JSON), "memory --output": words(cli.Narrow, cli.Wide, cli.JSON), "top --sort": words("cpu", "memory", "disk", "net", "age", "name"),
		"shutdown --mode": words("acpi", "agent"), "reboot --mode": words("acpi", "agent"),
		"clone --pool": d.ask(func(ctx context.Context, _ *cli.Client, _ string) []string { return d.pools(ctx) }),
	}
	for path, complete := range arguments {
		find(root, path).ValidArgsFunction = complete
	}
	for path, complete := range flags {
		command, flag, _ := strings.Cut(path, " --")
		if err := find(root, command).RegisterFlagCompletionFunc(flag, complete); err != nil {
			panic(err) // the flag was removed, and its completion was not
		}
	}
}

// find gives a command by its path below root, such as "tile create".
func find(root *cobra.Command, path string) *cobra.Command {
	c, _, err := root.Find(strings.Fields(path))
	if err != nil || c == root {
		panic("there is no command " + path)
	}
	return c
}

// completePlugin asks the program of a plug-in for completions, as the shell would.
func completePlugin(name, program string) completion {
	return func(c *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		path, err := findProgram(program)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		asked := []string{cobra.ShellCompRequestCmd}
		if program == "lodged" {
			asked = append(asked, name) // lodged has commands of its own beside the plug-in's
		}
		ctx, stop := context.WithTimeout(c.Context(), completePatience)
		defer stop()
		out, err := exec.CommandContext(ctx, path, append(append(asked, args...), typed)...).Output()
		if err != nil {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return pluginWords(out)
	}
}

// pluginWords reads cobra's answer: a word a line, and ":" with the directive at the end.
func pluginWords(answer []byte) ([]string, cobra.ShellCompDirective) {
	text, last, found := bytes.Cut(append([]byte("\n"), answer...), []byte("\n:"))
	number, err := strconv.Atoi(strings.TrimSpace(string(last)))
	if !found || err != nil {
		return nil, cobra.ShellCompDirectiveDefault
	}
	var words []string
	for line := range strings.Lines(string(text)) {
		if word := strings.TrimSpace(line); word != "" {
			name, about, _ := strings.Cut(word, "\t")
			words = append(words, strings.TrimSuffix(cli.Clean(name)+"\t"+cli.Clean(about), "\t"))
		}
	}
	return words, cobra.ShellCompDirective(number)
}
