package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// The help begins with examples and groups every command by its task.
func TestHelp_GroupedByTask(t *testing.T) {
	out, err := lodge(t, "--help")
	if err != nil {
		t.Fatal(err)
	}
	at := 0
	for _, part := range []string{"Examples:", "Usage:", "See guests and the daemon:", "  ps ", "Start and stop guests:", "  start ", "Make, change and remove guests:", "  clone ", "Look after the host:", "  lab ", "The command line:", "Flags:", "Topics", "  selectors "} {
		i := strings.Index(out[at:], part)
		if i < 0 {
			t.Fatalf("%q is not there, or before its place:\n%s", part, out)
		}
		at += i
	}
	root := command()
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if c.GroupID == "" && c.IsAvailableCommand() {
			t.Errorf("lodge %s is in no group", c.Name())
		}
	}
}

func TestHelp_Topics(t *testing.T) {
	for topic, want := range map[string]string{"selectors": "label=NAME[:GLOB]", "exit-status": "no daemon listens"} {
		if out, err := lodge(t, "help", topic); err != nil || !strings.Contains(out, want) {
			t.Errorf("help %s: %v\n%s", topic, err, out)
		}
	}
}

// The shell is offered flags' values and terms, also where no daemon listens.
func TestComplete_NoDaemon(t *testing.T) {
	nowhere := t.TempDir() + "/lodge.sock"
	for _, c := range []struct {
		typed []string
		want  string
	}{
		{[]string{"ps", "-o", ""}, "wide"},
		{[]string{"top", "--sort", "m"}, "memory"},
		{[]string{"memory", "-o", ""}, "wide"},
		{[]string{"memory", "sta"}, "state="},
		{[]string{"start", "sta"}, "state="},
		{[]string{"shutdown", "state=pau"}, "state=paused"},
		{[]string{"set", "web-1", "mem"}, "memory="},
		{[]string{"tile", "start", ""}, ":4"},
		{[]string{"clone", "golden", "web", "--pool", ""}, ":4"},
	} {
		args := append([]string{cobra.ShellCompRequestCmd, "--socket", nowhere}, c.typed...)
		if out, err := lodge(t, args...); err != nil || !strings.Contains(out, c.want) {
			t.Errorf("%q: %v\n%s", c.typed, err, out)
		}
	}
}

func TestPluginWords_ReadsCobrasAnswer(t *testing.T) {
	for _, c := range []struct {
		answer    string
		words     string
		directive cobra.ShellCompDirective
	}{
		{"tile\ntile-pinned\n:4\n", "tile tile-pinned", cobra.ShellCompDirectiveNoFileComp},
		{"check\tLook all records through\n:4\n", "check\tLook all records through", cobra.ShellCompDirectiveNoFileComp},
		{":0\n", "", cobra.ShellCompDirectiveDefault},
		{"", "", cobra.ShellCompDirectiveDefault},
		{"nonsense", "", cobra.ShellCompDirectiveDefault},
	} {
		words, directive := pluginWords([]byte(c.answer))
		if got := strings.Join(words, " "); got != c.words || directive != c.directive {
			t.Errorf("%q: %q, %d", c.answer, got, directive)
		}
	}
}
