package main

import (
	"context"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/lodge-kvm/lodge/internal/cli"
)

// daemonFlags name the daemon to connect to.
type daemonFlags struct{ socket, host, pki string }

const defaultSocket = "/run/lodge/lodge.sock"

func (d *daemonFlags) add(c *cobra.Command) {
	socket := os.Getenv("LODGE_SOCKET")
	if socket == "" {
		socket = defaultSocket
	}
	c.PersistentFlags().StringVar(&d.socket, "socket", socket, "`path` of the daemon's socket; also set by LODGE_SOCKET")
	c.PersistentFlags().StringVar(&d.host, "host", "", "use the daemon of another host, `NAME[:PORT]`, with certificates")
	c.PersistentFlags().StringVar(&d.pki, "pki", "", "`directory` of cacert.pem, clientcert.pem and clientkey.pem for --host (default: ~/.pki/libvirt, else /etc/pki as libvirt's clients)")
}

func (d *daemonFlags) dial() *cli.Client {
	if d.host != "" {
		return cli.DialHost(d.host, cli.CertificatesBelow(d.pki))
	}
	return cli.Dial(d.socket)
}

// lookCommands are the commands that change nothing.
func lookCommands(d *daemonFlags) []*cobra.Command {
	return []*cobra.Command{psCommand(d), checkCommand(d), whyCommand(d), topCommand(d), memoryCommand(d), eventsCommand(d), queueCommand(d), statusCommand(d)}
}

func psCommand(d *daemonFlags) *cobra.Command {
	var form string
	c := &cobra.Command{
		Use:   "ps [SELECTOR...]",
		Short: "List guests",
		Long:  "List guests. A guest that hangs delays no answer: its last known state is shown.\n\n" + selectorHelp,
		RunE: func(c *cobra.Command, args []string) error {
			daemon := d.dial()
			defer daemon.Close()
			return daemon.List(c.Context(), args, form, width(c.OutOrStdout()), c.OutOrStdout())
		},
	}
	c.Flags().StringVarP(&form, "output", "o", cli.Narrow, "`form`: table, wide, or json (one line a guest)")
	return c
}

func checkCommand(d *daemonFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "check [SELECTOR...]",
		Short: "Show warnings about guests: taints, deprecated settings, shared identities",
		Long: `Show warnings about guests, one a line: taints, deprecated settings, and identities
that guests share although only one should have them (MAC addresses, generation IDs,
vsock CIDs, SMBIOS serials, UEFI variables, writable disks, ports of displays). The
exit status is 0 when there is no warning.

` + selectorHelp,
		RunE: func(c *cobra.Command, args []string) error {
			daemon := d.dial()
			defer daemon.Close()
			return daemon.Check(c.Context(), args, c.OutOrStdout())
		},
	}
}

func whyCommand(d *daemonFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "why [SELECTOR...]",
		Short: "Explain what the daemon chose for guests: defaults, and their memory",
		Long: `Explain what the daemon chose for guests without being asked. Defaults take one line
each: the choice, its reason, and the command that undoes it. For guests that run,
lines with "memory:" explain the target of the balloon: what the guest has, the sum
behind the target, the reason, the age of its last report, and what changes it.

` + selectorHelp,
		RunE: func(c *cobra.Command, args []string) error {
			daemon := d.dial()
			defer daemon.Close()
			return daemon.Why(c.Context(), args, c.OutOrStdout())
		},
	}
}

func topCommand(d *daemonFlags) *cobra.Command {
	var once bool
	var by string
	var every time.Duration
	c := &cobra.Command{
		Use:   "top [SELECTOR...]",
		Short: "Show the load of guests, live",
		Long: `Show the load of guests: processor, memory, disks and network, from the daemon's
samples, with their age. A guest that does not answer keeps its last sample,
marked stale. Keys sort the live table; q leaves.

` + selectorHelp,
		RunE: func(c *cobra.Command, args []string) error {
			daemon := d.dial()
			defer daemon.Close()
			top := &cli.Top{Client: daemon, Selectors: args, Every: every, By: by, Out: c.OutOrStdout()}
			if once || width(c.OutOrStdout()) == 0 {
				return top.Once(c.Context())
			}
			return live(c.Context(), top.Live)
		},
	}
	c.Flags().BoolVar(&once, "once", false, "show the table once; the default where the output is no terminal")
	c.Flags().StringVar(&by, "sort", "cpu", "sort by this `column`: cpu, memory, disk, net, age or name")
	c.Flags().DurationVar(&every, "every", 2*time.Second, "`time` between two updates")
	return c
}

func memoryCommand(d *daemonFlags) *cobra.Command {
	var form string
	var watch bool
	c := &cobra.Command{
		Use:   "memory [SELECTOR...]",
		Short: "Show how the host's memory is shared among guests, and why",
		Long: `Show the host's memory, and for each guest that runs what it may have at most (MAX),
what its user asked for (ASKED; it never gets less, unless memory.floor is set), what
its balloon leaves it (HAS), what the host holds for it (HELD), what it should have (TARGET), why, and the
age of its last report. lodge why GUEST explains one guest in sentences.

lodged shares memory only with --memory act. With --memory advise it shows its
decisions and moves nothing.

` + selectorHelp,
		RunE: func(c *cobra.Command, args []string) error {
			daemon := d.dial()
			defer daemon.Close()
			columns := width(c.OutOrStdout())
			view := &cli.MemoryView{Client: daemon, Selectors: args, Form: form, Out: c.OutOrStdout()}
			if watch && columns > 0 {
				return live(c.Context(), view.Live)
			}
			return view.Once(c.Context(), columns)
		},
	}
	c.Flags().StringVarP(&form, "output", "o", cli.Narrow, "`form`: table, wide, or json (one line)")
	c.Flags().BoolVar(&watch, "watch", false, "update every second, until q is pressed; once where the output is no terminal")
	return c
}

// live runs a table on the terminal, which delivers each key as it is pressed.
func live(ctx context.Context, table func(ctx context.Context, pressed <-chan byte, area func() (width, height int)) error) error {
	stdin := int(os.Stdin.Fd())
	pressed := make(chan byte)
	if before, err := term.MakeRaw(stdin); err == nil {
		defer func() { _ = term.Restore(stdin, before) }()
		go func() { // ends with the program: a read of a terminal cannot be ended
			key := make([]byte, 1)
			for {
				if n, err := os.Stdin.Read(key); n == 0 || err != nil {
					return
				}
				select {
				case pressed <- key[0]:
				case <-ctx.Done():
					return
				}
			}
		}()
	}
	return table(ctx, pressed, func() (int, int) {
		columns, rows, err := term.GetSize(int(os.Stdout.Fd()))
		if err != nil {
			return 80, 24
		}
		return columns, rows
	})
}

func eventsCommand(d *daemonFlags) *cobra.Command {
	var asJSON bool
	var after string
	c := &cobra.Command{
		Use:   "events [SELECTOR...]",
		Short: "Show events of guests, networks and pools, as they happen",
		Long: `Show the events of guests, networks and pools until interrupted. With a SELECTOR
only those of the chosen guests are shown. If the output is read too slowly, events
are lost, and a line says how many.

` + selectorHelp,
		RunE: func(c *cobra.Command, args []string) error {
			daemon := d.dial()
			defer daemon.Close()
			return daemon.Events(c.Context(), args, after, asJSON, c.OutOrStdout())
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "lines of JSON")
	c.Flags().StringVar(&after, "after", "", "show the events after this `event`: LIFE/NUMBER, as in the line \"newest event\" of lodge status")
	return c
}

func queueCommand(d *daemonFlags) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "queue",
		Short: "Show starts that wait and operations that are not finished, with the reasons",
		Args:  wants(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			daemon := d.dial()
			defer daemon.Close()
			return daemon.ShowQueue(c.Context(), asJSON, c.OutOrStdout())
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "a line of JSON")
	return c
}

func statusCommand(d *daemonFlags) *cobra.Command {
	var asJSON, collect bool
	c := &cobra.Command{
		Use:   "status",
		Short: "Show the daemon's own load, its clients, and the isolation of guests",
		Args:  wants(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			daemon := d.dial()
			defer daemon.Close()
			return daemon.ShowStatus(c.Context(), collect, asJSON, c.OutOrStdout())
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "a line of JSON")
	c.Flags().BoolVar(&collect, "collect", false, "let the daemon collect its garbage first")
	return c
}
