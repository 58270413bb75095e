package main

import (
	"encoding/json"
	"fmt"
	"io"
	"text/template"

	"github.com/spf13/cobra"

	"github.com/lodge-kvm/lodge/internal/cli"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemucaps"
	"github.com/lodge-kvm/lodge/internal/mechanism/qemuprobe"
)

func probeCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "probe [BINARY]",
		Short: "Try which features of QEMU work on this host",
		Long: `Ask a QEMU binary for its features, and run a small guest under each accelerator
to see whether guests really run on this host. This takes a few seconds, and changes
nothing.`,
		Args: cli.Wants(cobra.MaximumNArgs(1)),
		RunE: func(c *cobra.Command, args []string) error {
			binary := "/usr/bin/qemu-system-x86_64"
			if len(args) > 0 {
				binary = args[0]
			}
			found, err := qemuprobe.Probe(c.Context(), binary, nil)
			if err != nil {
				return err
			}
			if asJSON {
				encoder := json.NewEncoder(c.OutOrStdout())
				encoder.SetIndent("", "  ")
				return encoder.Encode(found)
			}
			return showCapabilities(c.OutOrStdout(), found)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "show everything, as JSON")
	return c
}

var capabilities = template.Must(template.New("").Parse(
	`{{with .}}{{.Binary.Path}}: QEMU {{.Version.Major}}.{{.Version.Minor}}.{{.Version.Micro}}{{with .Version.Package}} ({{.}}){{end}}, {{.Arch}}

Accelerators, best first:
{{range .Accelerators}}  {{.Name}}: {{if .Usable}}works{{else}}does not work{{end}}{{with .Reason}}: {{.}}{{end}}
{{- if .Usable}}
    processor models: {{len .Models}}; -cpu host: {{if .HostCPU}}works{{else}}does not work{{with .HostCPUReason}}: {{.}}{{end}}{{end}}
{{- with .HostModel.Base}}; nearest to the host: {{.}}{{end}}{{end}}
{{end}}
Machines:
{{range .Machines}}{{if .Alias}}  {{.Alias}} = {{.Name}}, up to {{.MaxCPUs}} processors{{if .Default}}, the default{{end}}
{{end}}{{end}}  and {{len .Machines}} in all

Devices: {{len .Devices}}, objects: {{len .Objects}}, monitor commands: {{len .Commands}}
Networks:{{range .Netdevs}} {{.}}{{end}}
Displays:{{range .Displays}} {{.}}{{end}}
Extras:{{range .Facts}} {{.}}{{end}}
{{end}}`))

func showCapabilities(w io.Writer, c *qemucaps.Capabilities) error {
	if err := capabilities.Execute(w, c); err != nil {
		return fmt.Errorf("cannot show the features: %w", err)
	}
	return nil
}
