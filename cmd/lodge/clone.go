package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/lodge-kvm/lodge/api/lodgev1"
	"github.com/lodge-kvm/lodge/internal/cli"
)

func cloneCommand(d *daemonFlags) *cobra.Command {
	f := &setFlags{daemon: d}
	var seed seedFlags
	request := &lodgev1.CloneGuestsRequest{}
	c := &cobra.Command{
		Use:   "clone SOURCE NAME...",
		Short: "Make copies of a guest, with identities and disks of their own",
		Long: `Make guests with the hardware of SOURCE, which must be shut off. Each clone has a UUID,
MAC addresses, generation ID, serial numbers, UEFI variables and disks of its own. It is
made whole or not at all. Read-only disks, shareable disks and CDs are shared.

--thin makes the new disks as layers above those of SOURCE instead of copies. SOURCE
becomes a template: it cannot be started any more.

--seed gives each clone a CD or disk for cloud-init, with a new instance ID and random
bytes, so that cloud-init makes new SSH host keys and a new machine ID.`,
		Args: wants(cobra.MinimumNArgs(2)),
		RunE: func(c *cobra.Command, args []string) error {
			request.Source, request.Names, request.DryRun = args[0], args[1:], f.request.DryRun
			if err := seed.read(c.InOrStdin(), request); err != nil {
				return unusable(err)
			}
			return f.follow(c, "clone", "guest", func(ctx context.Context, d *cli.Client) (*connect.ServerStreamForClient[lodgev1.Step], error) {
				return d.CloneGuests(ctx, request)
			})
		},
	}
	c.Flags().BoolVar(&request.Thin, "thin", false, "layer the disks above those of SOURCE, and make SOURCE a template")
	c.Flags().StringVar(&request.Pool, "pool", "", "`pool` for the new volumes (default: that of each disk)")
	c.Flags().BoolVar(&seed.wanted, "seed", false, "make a seed for cloud-init")
	c.Flags().StringVar(&seed.userData, "user-data", "", "`file` of user data for the seed, - for standard input")
	c.Flags().StringVar(&seed.networkConfig, "network-config", "", "`file` of the network configuration for the seed")
	c.Flags().BoolVar(&request.NoRng, "no-rng", false, "give no virtio-rng to clones of a guest that has none")
	f.addForTiles(c)
	return c
}

// seedFlags are the flags for the content of clones' seed images. The strings name files.
type seedFlags struct {
	wanted                  bool
	userData, networkConfig string
}

func (f *seedFlags) read(stdin io.Reader, into *lodgev1.CloneGuestsRequest) error {
	if !f.wanted {
		if f.userData != "" || f.networkConfig != "" {
			return errors.New("--user-data and --network-config need --seed")
		}
		return nil
	}
	into.Seed = &lodgev1.Seed{}
	for _, part := range []struct {
		file string
		into *string
	}{{f.userData, &into.Seed.UserData}, {f.networkConfig, &into.Seed.NetworkConfig}} {
		if part.file == "" {
			continue
		}
		var err error
		if *part.into, err = readDocument(stdin, part.file); err != nil {
			return fmt.Errorf("cannot read the seed: %w", err)
		}
	}
	return nil
}
