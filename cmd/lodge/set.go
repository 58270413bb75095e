package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"golang.org/x/term"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/lodge-kvm/lodge/api/lodgev1"
	"github.com/lodge-kvm/lodge/internal/cli"
)

// setFlags are the flags of every command that works on a set.
type setFlags struct {
	daemon  *daemonFlags
	request lodgev1.ActRequest
	options lodgev1.Options
	timeout time.Duration
	grace   time.Duration
	json    bool
	quiet   bool
}

func (f *setFlags) add(c *cobra.Command) {
	c.Flags().Uint32Var(&f.request.Parallel, "parallel", 0, "work on this many `guests` at once (default: 64)")
	c.Flags().BoolVar(&f.request.DryRun, "dry-run", false, "show what would be done, and do nothing")
	c.Flags().BoolVar(&f.request.StopAtFailure, "stop-at-failure", false, "begin no other guest after one has failed")
	c.Flags().DurationVar(&f.timeout, "timeout", 0, "give up on a guest after this `time` (default: no limit; 90s for shutdown)")
	c.Flags().BoolVar(&f.json, "json", false, "show the plan, each result and the summary as lines of JSON")
	c.Flags().BoolVarP(&f.quiet, "quiet", "q", false, "show failures and the summary only")
}

// verb is a command that does one thing to a set.
type verb struct {
	name, short string
	aliases     []string
	flags       func(c *cobra.Command, f *setFlags)
}

var verbs = []verb{
	{name: "start", short: "Start guests, in the order of their priority and dependencies", flags: func(c *cobra.Command, f *setFlags) {
		c.Flags().BoolVar(&f.options.Paused, "paused", false, "leave the processors stopped")
		c.Flags().BoolVar(&f.options.ForceBoot, "force-boot", false, "discard a saved image")
		c.Flags().BoolVar(&f.options.BypassCache, "bypass-cache", false, "read a saved image without the page cache")
	}},
	{name: "shutdown", short: "Ask guests to shut down, and wait until they have", aliases: []string{"stop"}, flags: func(c *cobra.Command, f *setFlags) {
		c.Flags().StringVar(&f.options.Mode, "mode", "", "ask by acpi or agent (`how`; default: the agent where one answers)")
		c.Flags().DurationVar(&f.grace, "grace", 0, "end the guest after this `time`, as destroy does (default: never)")
	}},
	{name: "destroy", short: "End guests at once, as pulling the plug does", flags: func(c *cobra.Command, f *setFlags) {
		c.Flags().BoolVar(&f.options.Graceful, "graceful", false, "let QEMU write out its caches first")
	}},
	{name: "suspend", short: "Pause guests: their processors stop"},
	{name: "resume", short: "Let paused guests run again"},
	{name: "save", short: "Save guests to disk and end them; their next start continues", flags: func(c *cobra.Command, f *setFlags) {
		c.Flags().BoolVar(&f.options.BypassCache, "bypass-cache", false, "write without the page cache")
	}},
	{name: "restore", short: "Start guests that were saved", flags: func(c *cobra.Command, f *setFlags) {
		c.Flags().BoolVar(&f.options.Paused, "paused", false, "leave the processors stopped")
		c.Flags().BoolVar(&f.options.BypassCache, "bypass-cache", false, "read without the page cache")
	}},
	{name: "reboot", short: "Ask guests to reboot", flags: func(c *cobra.Command, f *setFlags) {
		c.Flags().StringVar(&f.options.Mode, "mode", "", "ask by acpi or agent (`how`; default: the agent where one answers)")
	}},
	{name: "reset", short: "Reset guests, as the reset button does"},
	{name: "undefine", short: "Remove the definitions of guests", flags: func(c *cobra.Command, f *setFlags) {
		c.Flags().BoolVar(&f.options.ManagedSave, "managed-save", false, "also delete the saved image")
		c.Flags().BoolVar(&f.options.Nvram, "nvram", false, "also delete the UEFI variables")
		c.Flags().BoolVar(&f.options.KeepNvram, "keep-nvram", false, "keep the UEFI variables")
		c.Flags().BoolVar(&f.options.Tpm, "tpm", false, "also delete the state of the TPM")
	}},
}

func verbCommands(d *daemonFlags) []*cobra.Command {
	commands := []*cobra.Command{defineCommand(d), settingCommand(d)}
	for _, v := range verbs {
		f := &setFlags{daemon: d}
		c := &cobra.Command{
			Use: v.name + " SELECTOR...", Aliases: v.aliases, Short: v.short, Long: v.short + ".\n\n" + selectorHelp,
			Args: wants(cobra.MinimumNArgs(1)),
			RunE: func(c *cobra.Command, args []string) error {
				f.request.Select = args
				return f.act(c, v.name)
			},
		}
		f.add(c)
		if v.flags != nil {
			v.flags(c, f)
		}
		commands = append(commands, c)
	}
	return commands
}

func defineCommand(d *daemonFlags) *cobra.Command {
	f := &setFlags{daemon: d}
	c := &cobra.Command{
		Use:   "define FILE...",
		Short: "Define guests from domain XML",
		Long: `Define a guest from each FILE of domain XML, or from standard input where FILE is
"-". A directory stands for the *.xml in it. A guest that exists is defined again,
with the new definition.`,
		Args: wants(cobra.MinimumNArgs(1)),
		RunE: func(c *cobra.Command, args []string) error {
			documents, err := readDocuments(c.InOrStdin(), args)
			if err != nil {
				return unusable(err)
			}
			f.request.Documents = documents
			return f.act(c, "define")
		},
	}
	f.add(c)
	c.Flags().BoolVar(&f.options.Validate, "validate", false, "refuse elements that no version of libvirt's format has")
	return c
}

func settingCommand(d *daemonFlags) *cobra.Command {
	f := &setFlags{daemon: d}
	c := &cobra.Command{
		Use:   "set SELECTOR KEY=VALUE...",
		Short: "Change settings of guests",
		Long: `Change settings of guests, running or not: memory, vcpus, autostart, priority,
after, title, description, template (yes: for thin clones, never started), and
label.NAME. KEY= removes a setting. A lower priority number is more important.

` + selectorHelp,
		Args: wants(cobra.MinimumNArgs(2)),
		RunE: func(c *cobra.Command, args []string) error {
			settings := map[string]string{}
			for _, pair := range args[1:] {
				key, value, found := strings.Cut(pair, "=")
				if !found || key == "" {
					return unusable(fmt.Errorf("%q is not KEY=VALUE", pair))
				}
				settings[key] = value
			}
			f.request.Select, f.options.Settings = args[:1], settings
			return f.act(c, "set")
		},
	}
	f.add(c)
	return c
}

// act asks the daemon and follows the set to its end.
func (f *setFlags) act(c *cobra.Command, verb string) error {
	f.request.Verb, f.request.Options = verb, &f.options
	if f.timeout != 0 {
		f.request.Timeout = durationpb.New(f.timeout)
	}
	if f.grace != 0 {
		f.options.Grace = durationpb.New(f.grace)
	}
	return f.follow(c, verb, "guest", func(ctx context.Context, d *cli.Client) (*connect.ServerStreamForClient[lodgev1.Step], error) {
		return d.Act(ctx, &f.request)
	})
}

func (f *setFlags) follow(c *cobra.Command, verb, what string, open func(context.Context, *cli.Client) (*connect.ServerStreamForClient[lodgev1.Step], error)) error {
	d := f.daemon.dial()
	defer d.Close()
	interrupts := make(chan os.Signal, 2)
	signal.Notify(interrupts, syscall.SIGINT, syscall.SIGTERM)
	defer signal.Stop(interrupts)
	set := &cli.Set{
		Client: d, Verb: verb, What: what, JSON: f.json, Quiet: f.quiet,
		Out: c.OutOrStdout(), Err: c.ErrOrStderr(), Width: width(c.ErrOrStderr()), Interrupts: interrupts,
	}
	return set.Follow(c.Context(), func(ctx context.Context) (*connect.ServerStreamForClient[lodgev1.Step], error) { return open(ctx, d) })
}

// width is the width of the terminal behind w, in columns; 0 if w is no terminal.
func width(w io.Writer) int {
	file, ok := w.(*os.File)
	if !ok {
		return 0
	}
	columns, _, err := term.GetSize(int(file.Fd()))
	if err != nil {
		return 0
	}
	return columns
}

// readDocuments reads files, the *.xml of directories, and standard input.
func readDocuments(stdin io.Reader, names []string) ([]string, error) {
	var documents []string
	for _, name := range names {
		files := []string{name}
		if info, err := os.Stat(name); err == nil && info.IsDir() {
			if files, err = filepath.Glob(filepath.Join(name, "*.xml")); err != nil || len(files) == 0 {
				return nil, fmt.Errorf("no *.xml is in directory %s", name)
			}
		}
		for _, file := range files {
			document, err := readDocument(stdin, file)
			if err != nil {
				return nil, err
			}
			documents = append(documents, document)
		}
	}
	return documents, nil
}

func readDocument(stdin io.Reader, name string) (string, error) {
	if name != "-" {
		text, err := os.ReadFile(name)
		return string(text), err
	}
	text, err := io.ReadAll(stdin)
	return string(text), err
}
