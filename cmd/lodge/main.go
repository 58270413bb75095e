// Command lodge is the command line: it reads flags, hands them to the rooms
// that do the work, and shows what they say.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/lodge-kvm/lodge/internal/cli"
)

// version is stamped by the build.
var version = "development"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	err := command().ExecuteContext(ctx)
	if err == nil {
		return
	}
	if err.Error() != "" {
		fmt.Fprintln(os.Stderr, "lodge:", err)
	}
	stop()
	os.Exit(int(status(err)))
}

// status is what the caller is told where a command did not go well.
func status(err error) cli.Status {
	if ending, ok := errors.AsType[*cli.Ending](err); ok {
		return ending.Status
	}
	return cli.SomeFailed
}

// unusable makes an error that of a command which was called wrongly.
func unusable(err error) error {
	if err == nil {
		return nil
	}
	return &cli.Ending{Status: cli.Unusable, Text: err.Error()}
}

// wants checks how many arguments a command was given, and says how it is called.
func wants(arguments cobra.PositionalArgs) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		switch err := arguments(c, args); {
		case err == nil:
			return nil
		case c.HasSubCommands():
			text := fmt.Sprintf("there is no command %q; %s --help lists those there are", c.CommandPath()+" "+args[0], c.CommandPath())
			c.SuggestionsMinimumDistance = 2 // letters that may be wrong
			if alike := c.SuggestionsFor(args[0]); len(alike) > 0 {
				text += " (is it " + strings.Join(alike, " or ") + "?)"
			}
			return unusable(errors.New(text))
		default:
			return unusable(fmt.Errorf("%w; call it as: %s", err, c.UseLine()))
		}
	}
}

func command() *cobra.Command {
	c := &cobra.Command{
		Use:           "lodge",
		Short:         "Work on whole sets of KVM guests, look at hosts, and measure them",
		Args:          wants(cobra.NoArgs), // of a name that is no command, too
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return unusable(err) })
	var d daemonFlags
	d.add(c)
	c.AddCommand(verbCommands(&d)...)
	c.AddCommand(lookCommands(&d)...)
	c.AddCommand(tileCommand(&d), cloneCommand(&d), storeCommand(), importCommand(&d), probeCommand(), labCommand(), &cobra.Command{
		Use:   "version",
		Short: "Say which Lodge this is",
		Args:  wants(cobra.NoArgs),
		Run: func(c *cobra.Command, _ []string) {
			fmt.Fprintln(c.OutOrStdout(), "lodge", version, runtime.Version())
		},
	})
	return c
}
