// Command lodge is the command line: it reads flags, hands them to the packages
// that do the work, and shows the results.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/lodge-kvm/lodge/internal/cli"
)

// version is stamped by the build.
var version = "development"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	c := command()
	err := runPlugin(c, os.Args[1:])
	if err == nil {
		err = c.ExecuteContext(ctx)
	}
	if err == nil {
		return
	}
	if err.Error() != "" {
		fmt.Fprintln(os.Stderr, "lodge:", err)
	}
	stop()
	os.Exit(int(cli.StatusOf(err)))
}

// unusable marks an error as one of wrong usage of a command.
func unusable(err error) error { return cli.AsUnusable(err) }

// wants checks the number of a command's arguments; its error shows the usage.
func wants(arguments cobra.PositionalArgs) cobra.PositionalArgs { return cli.Wants(arguments) }

func command() *cobra.Command {
	c := &cobra.Command{
		Use:           "lodge",
		Short:         "Work on sets of KVM guests, look after their host, and measure it",
		Args:          wants(cobra.NoArgs), // also refuses a name that is no command
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return unusable(err) })
	var d daemonFlags
	d.add(c)
	c.AddCommand(verbCommands(&d)...)
	c.AddCommand(lookCommands(&d)...)
	c.AddCommand(pluginCommands()...)
	c.AddCommand(tileCommand(&d), cloneCommand(&d), &cobra.Command{
		Use:   "version",
		Short: "Show the version of lodge",
		Args:  wants(cobra.NoArgs),
		Run: func(c *cobra.Command, _ []string) {
			fmt.Fprintln(c.OutOrStdout(), "lodge", version, runtime.Version())
		},
	})
	arrange(c)
	examples(c)
	completeArguments(c, &d)
	return c
}
