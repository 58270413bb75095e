package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/lodge-kvm/lodge/api/lodgev1"
	"github.com/lodge-kvm/lodge/internal/cli"
	"github.com/lodge-kvm/lodge/internal/daemon"
	"github.com/lodge-kvm/lodge/internal/edge/importer"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/remote"
)

func importCommand() *cobra.Command {
	var o importer.Options
	var address, socket, elsewhere string
	c := &cobra.Command{
		Use:   "import DIR",
		Short: "Define the guests and other objects of an /etc/libvirt tree or an export",
		Long: `Define the domains, networks, pools and secrets of a directory that is laid out as
/etc/libvirt: that of a host whose guests move to Lodge, or an export. Autostart and
templates are kept; nothing is started now. Objects that exist already are left
alone, unless --replace is given. Hooks, and network filters that a domain refers to,
are refused by name. UEFI variables that libvirt keeps of a domain are copied. Other
files in /var/lib/libvirt (a managed save, snapshots, the state of a TPM) are left
there, and named with the steps to take before the first start.

Each file's result is shown. The exit status is 0 when every file was taken or left
alone, 1 when some failed, and 2 when the directory or the daemon cannot be used.`,
		Args: cli.Wants(cobra.ExactArgs(1)),
		RunE: func(c *cobra.Command, args []string) error {
			if address == "" && elsewhere != "" {
				return cli.AsUnusable(errors.New("import works on this host only; log in on the other host and run it there"))
			}
			var own *cli.Client
			if address == "" {
				address = filepath.Join(filepath.Dir(socket), "libvirt-sock")
				own = cli.Dial(socket)
				defer own.Close()
			}
			conn, err := remote.Dial(c.Context(), address)
			switch {
			case err == nil:
				defer conn.Close()
				o.Host = host{conn, own}
			case o.DryRun:
				fmt.Fprintf(c.ErrOrStderr(), "%v; the files are read without a daemon\n", err)
			default:
				return cli.AsUnusable(err)
			}
			return importTree(c, args[0], o)
		},
	}
	c.Flags().BoolVar(&o.DryRun, "dry-run", false, "show what would be done, and do nothing; needs no daemon")
	c.Flags().BoolVar(&o.Replace, "replace", false, "replace the definitions of objects that exist already")
	of := os.Getenv("LODGE_SOCKET")
	if of == "" {
		of = daemon.DefaultRun + "/lodge.sock"
	}
	c.Flags().StringVar(&socket, "socket", of, "`path` of the socket of Lodge's own API; also set by LODGE_SOCKET")
	c.Flags().StringVar(&elsewhere, "host", "", "refused: import works on this host only")
	_ = c.Flags().MarkHidden("host") // lodge's other commands have it; here it is refused
	c.Flags().StringVar(&address, "connect", "", "the daemon's libvirt `socket` or URI (default: libvirt-sock beside --socket)")
	return c
}

func importTree(c *cobra.Command, dir string, o importer.Options) error {
	failed, all := 0, 0
	err := importer.Import(c.Context(), dir, o, func(r importer.Result) {
		all++
		if r.Err != nil {
			failed++
		}
		showResult(c.OutOrStdout(), r)
	})
	if err != nil {
		return cli.AsUnusable(err)
	}
	if failed > 0 {
		return &cli.Ending{Status: cli.SomeFailed, Text: fmt.Sprintf("%d of %d files were not taken", failed, all)}
	}
	return nil
}

// host is the daemon that receives the import, over libvirt's protocol, and over Lodge's own
// for requests that libvirt's lacks; nil: the daemon may not be Lodge.
type host struct {
	conn *remote.Conn
	own  *cli.Client
}

// The error codes of a daemon that has no such object.
var absent = map[int32]bool{42: true, 43: true, 49: true, 66: true}

func (h host) Known(ctx context.Context, s importer.Sort, name string) (bool, error) {
	var err error
	switch s {
	case importer.Domain:
		err = h.conn.Call(ctx, xdr.ProcDomainLookupByName, &xdr.WithName{Name: name}, &xdr.WithDomain{})
	case importer.Network:
		err = h.conn.Call(ctx, xdr.ProcNetworkLookupByName, &xdr.WithName{Name: name}, &xdr.WithNetwork{})
	case importer.Pool:
		err = h.conn.Call(ctx, xdr.ProcStoragePoolLookupByName, &xdr.WithName{Name: name}, &xdr.WithPool{})
	case importer.Secret:
		id, wrong := uuid.Parse(name)
		if wrong != nil {
			return false, nil // it has none yet
		}
		err = h.conn.Call(ctx, xdr.ProcSecretLookupByUUID, &xdr.WithUUID{UUID: xdr.UUID(id)}, &xdr.WithSecret{})
	}
	if refusal, ok := errors.AsType[*remote.Error](err); ok && absent[refusal.Code] {
		return false, nil
	}
	return err == nil, err
}

func (h host) Define(ctx context.Context, s importer.Sort, doc string, t importer.Traits) (did string, err error) {
	switch s {
	case importer.Domain:
		return h.defineDomain(ctx, doc, t)
	case importer.Network:
		return "", h.defineNetwork(ctx, doc, t)
	case importer.Pool:
		var made xdr.WithPool
		if err := h.conn.Call(ctx, xdr.ProcStoragePoolDefineXML, &xdr.WithXMLFlags{XML: doc}, &made); err != nil || !t.Autostart {
			return "", err
		}
		return "", h.conn.Call(ctx, xdr.ProcStoragePoolSetAutostart, &xdr.StoragePoolSetAutostartArgs{Pool: made.Pool, Autostart: true}, nil)
	case importer.Secret:
		var made xdr.WithSecret
		if err := h.conn.Call(ctx, xdr.ProcSecretDefineXML, &xdr.WithXMLFlags{XML: doc}, &made); err != nil || t.Value == nil {
			return "", err
		}
		return "", h.conn.Call(ctx, xdr.ProcSecretSetValue, &xdr.SecretSetValueArgs{Secret: made.Secret, Value: t.Value}, nil)
	}
	return "", fmt.Errorf("no definitions are of sort %q", s)
}

// defineNetwork defines a network, also in place of another with its name.
func (h host) defineNetwork(ctx context.Context, doc string, t importer.Traits) error {
	made, err := h.addNetwork(ctx, doc)
	if refusal, ok := errors.AsType[*remote.Error](err); ok && refusal.Code == otherUUID && t.Replaces != "" {
		made, err = h.replaceNetwork(ctx, t.Replaces, doc, err)
	}
	if err != nil || !t.Autostart {
		return err
	}
	return h.startNetworkWithHost(ctx, made)
}

// replaceNetwork defines a network in place of one with its name and another UUID, after the
// daemon refused to have both. Every libvirt and every Lodge makes a network "default", each with
// its own UUID. The other network is undefined first, unless it runs. If the new one is then
// refused, the other is defined again as it was.
func (h host) replaceNetwork(ctx context.Context, name, doc string, refusal error) (made xdr.Network, err error) {
	var there xdr.WithNetwork
	var active xdr.WithActive
	var was xdr.WithXML
	var starts xdr.WithAutostart
	err = h.conn.Call(ctx, xdr.ProcNetworkLookupByName, &xdr.WithName{Name: name}, &there)
	if err == nil {
		err = h.conn.Call(ctx, xdr.ProcNetworkIsActive, &there, &active)
	}
	if err == nil && active.Active {
		err = errors.New("the network is active; end it (virsh net-destroy) and import again")
	}
	if err == nil {
		err = h.conn.Call(ctx, xdr.ProcNetworkGetXMLDesc, &xdr.NetworkGetXMLDescArgs{Network: there.Network}, &was)
	}
	if err == nil {
		err = h.conn.Call(ctx, xdr.ProcNetworkGetAutostart, &there, &starts)
	}
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), replacing) // if the client gives up now, one of the two networks is still defined
	defer stop()
	if err == nil {
		err = h.conn.Call(ctx, xdr.ProcNetworkUndefine, &there, nil)
	}
	if err != nil {
		return made, fmt.Errorf("%w; %w", refusal, err)
	}
	if made, err = h.addNetwork(ctx, doc); err == nil {
		return made, nil
	}
	back, lost := h.addNetwork(ctx, was.XML)
	if lost == nil && starts.Autostart {
		lost = h.startNetworkWithHost(ctx, back)
	}
	return made, errors.Join(err, lost)
}

// replacing bounds the time of a replacement, which must not stop in the middle.
const replacing = 30 * time.Second

func (h host) addNetwork(ctx context.Context, doc string) (xdr.Network, error) {
	var made xdr.WithNetwork
	err := h.conn.Call(ctx, xdr.ProcNetworkDefineXML, &xdr.WithXML{XML: doc}, &made)
	return made.Network, err
}

func (h host) startNetworkWithHost(ctx context.Context, n xdr.Network) error {
	return h.conn.Call(ctx, xdr.ProcNetworkSetAutostart, &xdr.NetworkSetAutostartArgs{Network: n, Autostart: true}, nil)
}

// otherUUID is the error code of a daemon if another object has the name.
const otherUUID = 9

func (h host) defineDomain(ctx context.Context, doc string, t importer.Traits) (did string, err error) {
	var made xdr.WithDomain
	if err := h.conn.Call(ctx, xdr.ProcDomainDefineXMLFlags, &xdr.WithXMLFlags{XML: doc}, &made); err != nil {
		return "", err
	}
	if t.Variables != nil {
		if did, err = h.placeVariables(ctx, made.Domain, t); err != nil {
			return "", err
		}
	}
	if t.Template {
		if err := h.makeTemplate(ctx, uuid.UUID(made.Domain.UUID).String()); err != nil {
			return did, fmt.Errorf("defined, but not marked as a template; do not start it, or its thin clones are destroyed: %w", err)
		}
	}
	if !t.Autostart {
		return did, nil
	}
	return did, h.conn.Call(ctx, xdr.ProcDomainSetAutostart, &xdr.WithDomainAutostart{Domain: made.Domain, Autostart: true}, nil)
}

// placeVariables gives a domain that was just defined its UEFI variables. If it cannot have them
// and did not exist before, it is undefined again: its start would make new variables.
func (h host) placeVariables(ctx context.Context, made xdr.Domain, t importer.Traits) (did string, err error) {
	var is xdr.WithXML
	err = h.conn.Call(ctx, xdr.ProcDomainGetXMLDesc, &xdr.WithDomainFlags{Domain: made, Flags: inactiveXML}, &is)
	if err == nil {
		did, err = t.Variables.Place(is.XML)
	}
	if err == nil {
		return did, nil
	}
	if t.Replaces != "" {
		return "", fmt.Errorf("replaced, but without its UEFI variables; do not start it: %w", err)
	}
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), replacing)
	defer stop()
	if undo := h.conn.Call(ctx, xdr.ProcDomainUndefineFlags, &xdr.WithDomainFlags{Domain: made, Flags: keepNVRAM}, nil); undo != nil {
		return "", fmt.Errorf("defined, but without its UEFI variables; do not start it: %w", errors.Join(err, undo))
	}
	return "", err
}

// Flags of libvirt: for the XML of the stored definition, and to keep the UEFI variables.
const (
	inactiveXML = 2
	keepNVRAM   = 8
)

// makeTemplate keeps a guest from being started.
func (h host) makeTemplate(ctx context.Context, id string) error {
	if h.own == nil {
		return errors.New("--connect may name a daemon other than Lodge's, which has no templates")
	}
	steps, err := h.own.Act(ctx, &lodgev1.ActRequest{
		Verb: "set", Select: []string{"uuid=" + id}, Options: &lodgev1.Options{Settings: map[string]string{"template": "yes"}},
	})
	if err != nil {
		return err
	}
	defer func() { _ = steps.Close() }()
	for steps.Receive() {
		if f := steps.Msg().GetResult().GetFault(); f != nil {
			err = errors.Join(err, errors.New(f.GetText()))
		}
	}
	return errors.Join(err, steps.Err())
}
