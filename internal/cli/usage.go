package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// StatusOf gives the exit status of a command that ended with this error: that of an
// Ending, else SomeFailed.
func StatusOf(err error) Status {
	if ending, ok := errors.AsType[*Ending](err); ok {
		return ending.Status
	}
	return SomeFailed
}

// AsUnusable makes an error that of a command which was called wrongly. It gives nil for nil.
func AsUnusable(err error) error {
	if err == nil {
		return nil
	}
	return &Ending{Status: Unusable, Text: err.Error()}
}

// TakeGlobalFlags lets a command that `lodge` hands to another program take lodge's global flags: lodge
// passes them on wherever they stood. They are hidden and do nothing. A flag of the same name that the
// command, or one below it, has itself is used instead.
func TakeGlobalFlags(c *cobra.Command) {
	for _, name := range []string{"socket", "host", "pki"} {
		if c.Flags().Lookup(name) != nil {
			continue
		}
		c.PersistentFlags().String(name, "", "not used here")
		_ = c.PersistentFlags().MarkHidden(name) // the flag is there
	}
}

// UsageTemplate is cobra's, with the examples first. `lodge`, and the commands that it hands to `lodged`, use it.
const UsageTemplate = `{{if .HasExample}}Examples:
{{.Example}}

{{end}}Usage:{{if .Runnable}}
  {{.UseLine}}{{end}}{{if .HasAvailableSubCommands}}
  {{.CommandPath}} COMMAND{{end}}{{if .Aliases}}

Also called: {{range .Aliases}}{{.}} {{end}}{{end}}{{if .HasAvailableSubCommands}}{{$all := .Commands}}{{if eq (len .Groups) 0}}

Commands:{{range $all}}{{if .IsAvailableCommand}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}{{else}}{{range $group := .Groups}}

{{.Title}}{{range $all}}{{if eq .GroupID $group.ID}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}{{end}}{{end}}{{end}}{{if .HasAvailableLocalFlags}}

Flags:
{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}{{end}}{{if .HasAvailableInheritedFlags}}

Flags of every command:
{{.InheritedFlags.FlagUsages | trimTrailingWhitespaces}}{{end}}{{if .HasHelpSubCommands}}

Topics, with lodge help TOPIC:{{range .Commands}}{{if .IsAdditionalHelpTopicCommand}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}{{end}}{{if .HasAvailableSubCommands}}

{{.CommandPath}} COMMAND --help explains a command.{{end}}
`

// Wants checks how many arguments a command was given, and says how it is called. For a
// command with commands below it, it says which of them may have been meant.
func Wants(arguments cobra.PositionalArgs) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		switch err := arguments(c, args); {
		case err == nil:
			return nil
		case c.HasSubCommands():
			text := fmt.Sprintf("there is no command %q; %s --help lists the commands", c.CommandPath()+" "+args[0], c.CommandPath())
			c.SuggestionsMinimumDistance = 2 // letters that may be wrong
			if alike := c.SuggestionsFor(args[0]); len(alike) > 0 {
				text += " (did you mean " + strings.Join(alike, " or ") + "?)"
			}
			return AsUnusable(errors.New(text))
		default:
			return AsUnusable(fmt.Errorf("%w; usage: %s", err, c.UseLine()))
		}
	}
}
