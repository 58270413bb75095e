package main

import (
	"context"
	"errors"
	"fmt"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/lodge-kvm/lodge/api/lodgev1"
	"github.com/lodge-kvm/lodge/internal/cli"
)

func tileCommand(d *daemonFlags) *cobra.Command {
	c := &cobra.Command{
		Use:   "tile",
		Short: "Make, run and remove sets of guests that belong together",
		Args:  wants(cobra.NoArgs),
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(
		tileCreateCommand(d), tileRemoveCommand(d), tileListCommand(d),
		tileVerbCommand(d, "start", "start", "Start the guests of tiles"),
		tileVerbCommand(d, "stop", "shutdown", "Ask the guests of tiles to shut down, and wait until they have"),
	)
	return c
}

func tileCreateCommand(d *daemonFlags) *cobra.Command {
	f := &setFlags{daemon: d}
	var template string
	request := &lodgev1.CreateTilesRequest{}
	c := &cobra.Command{
		Use:   "create SET --template FILE",
		Short: "Make tiles from a template: their volumes and their guests",
		Long: `Make the tiles SET/1, SET/2, ... from a template: their volumes and their guests.
Each is made whole or not at all.`,
		Args: wants(cobra.ExactArgs(1)),
		RunE: func(c *cobra.Command, args []string) error {
			if template == "" {
				return unusable(errors.New("no template given; name its file with --template"))
			}
			document, err := readDocument(c.InOrStdin(), template)
			if err != nil {
				return unusable(fmt.Errorf("cannot read the template: %w", err))
			}
			request.Set, request.Template, request.DryRun = args[0], document, f.request.DryRun
			return f.follow(c, "create", "tile", func(ctx context.Context, d *cli.Client) (*connect.ServerStreamForClient[lodgev1.Step], error) {
				return d.CreateTiles(ctx, request)
			})
		},
	}
	c.Flags().StringVar(&template, "template", "", "`file` of the template, - for standard input")
	c.Flags().Uint32Var(&request.First, "first", 1, "`number` of the first tile")
	c.Flags().Uint32Var(&request.Count, "count", 1, "`number` of tiles")
	f.addForTiles(c)
	return c
}

// addForTiles adds the flags for making and removing tiles.
func (f *setFlags) addForTiles(c *cobra.Command) {
	c.Flags().BoolVar(&f.request.DryRun, "dry-run", false, "show what would be done, and do nothing")
	c.Flags().BoolVar(&f.json, "json", false, "show the plan, each result and the summary as lines of JSON")
	c.Flags().BoolVarP(&f.quiet, "quiet", "q", false, "show failures and the summary only")
}

func tileRemoveCommand(d *daemonFlags) *cobra.Command {
	f := &setFlags{daemon: d}
	c := &cobra.Command{
		Use:   "remove TILE",
		Short: "End and undefine the guests of tiles, and delete the volumes made for them",
		Long: `End and undefine the guests of tiles, and delete the volumes that were made for
them. TILE is SET, SET/NUMBER, or a glob of that.`,
		Args: wants(cobra.ExactArgs(1)),
		RunE: func(c *cobra.Command, args []string) error {
			request := &lodgev1.RemoveTilesRequest{Tiles: args[0], DryRun: f.request.DryRun}
			return f.follow(c, "remove", "tile", func(ctx context.Context, d *cli.Client) (*connect.ServerStreamForClient[lodgev1.Step], error) {
				return d.RemoveTiles(ctx, request)
			})
		},
	}
	f.addForTiles(c)
	return c
}

// tileVerbCommand returns a command that applies a verb to all guests of tiles.
func tileVerbCommand(d *daemonFlags, name, verb, short string) *cobra.Command {
	f := &setFlags{daemon: d}
	c := &cobra.Command{
		Use:   name + " TILE...",
		Short: short,
		Long:  short + ". TILE is SET, SET/NUMBER, or a glob of that.",
		Args:  wants(cobra.MinimumNArgs(1)),
		RunE: func(c *cobra.Command, args []string) error {
			for _, tile := range args {
				f.request.Select = append(f.request.Select, "tile="+tile)
			}
			return f.act(c, verb)
		},
	}
	f.add(c)
	if verb == "shutdown" {
		c.Flags().DurationVar(&f.grace, "grace", 0, "end the guest after this `time`, as destroy does (default: never)")
	}
	return c
}

func tileListCommand(d *daemonFlags) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "ls",
		Short: "List tiles",
		Args:  wants(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			daemon := d.dial()
			defer daemon.Close()
			return daemon.ShowTiles(c.Context(), asJSON, c.OutOrStdout())
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "one line of JSON a tile")
	return c
}
