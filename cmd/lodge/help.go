package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/lodge-kvm/lodge/internal/cli"
)

// The groups of commands, by task, in the order of the help.
var groups = []struct {
	id, title string
	commands  []string
}{
	{"look", "See guests and the daemon:", []string{"ps", "top", "memory", "events", "queue", "status", "check", "why"}},
	{"run", "Start and stop guests:", []string{"start", "shutdown", "reboot", "suspend", "resume", "save", "restore", "reset", "destroy"}},
	{"make", "Make, change and remove guests:", []string{"define", "set", "clone", "tile", "undefine", "import"}},
	{"host", "Look after the host:", []string{"probe", "store", "lab"}},
	{"self", "The command line:", []string{"completion", "help", "version"}},
}

const rootExample = `  lodge ps 'web-*,state=running'           # list some guests
  lodge shutdown --grace 30s label=app:web # stop some, and wait until they have stopped
  lodge start --dry-run all                # see what would start, and in which order
  lodge tile create shop --template packaging/tile.xml --count 8
  lodge clone golden web-1 web-2 --seed    # guests that share no identity
  lodge top                                # load of all guests, live`

const selectorPage = `A SELECTOR chooses guests. It is one of

  web-1          a name
  web-*          a glob of names: * stands for any text, ? for one character
  all            every guest
  TERM,TERM,...  terms, which must all hold

Terms:

  name=GLOB            the name
  uuid=UUID            the UUID
  state=STATE          running, paused, shutoff, crashed, shuttingdown, blocked,
                       pmsuspended, active or inactive
  label=NAME[:GLOB]    a label, with any value or one that the glob fits
  tile=SET[/NUMBER]    the tile, or any tile of a set
  pool=GLOB            a pool that has one of the disks
  autostart=yes|no     started with the host
  persistent=yes|no    with a stored definition
  saved=yes|no         with a managed save image

"!" before a term negates it. With several selectors, a guest is chosen if one of them
chooses it.

  lodge ps 'state=paused,label=app:web'    # paused guests of one application
  lodge start 'web-*' 'tile=shop'          # guests by name, and all guests of shop tiles
  lodge save 'all,!label=keep'             # all guests but those with a label`

const statusPage = `A command on guests ends with status

  0  all guests are as asked
  1  some failed; their lines say why
  2  no guest was selected, the request was wrong, or no daemon listens
  3  it was cancelled

An interrupt (Ctrl-C) cancels the guests that have not begun, and waits for the
others. A second one leaves at once; the daemon finishes those that have begun.`

// selectorHelp ends the help of commands that take selectors.
const selectorHelp = "See `lodge help selectors` for choosing guests, `lodge help exit-status` for exit statuses."

// topics are pages of the help that belong to no command.
func topics() []*cobra.Command {
	return []*cobra.Command{
		{Use: "selectors", Short: "How guests are chosen: names, globs and terms", Long: selectorPage},
		{Use: "exit-status", Short: "Exit statuses, and interrupts", Long: statusPage},
	}
}

// arrange groups the commands of root by task.
func arrange(root *cobra.Command) {
	root.Example = rootExample
	root.SetUsageTemplate(cli.UsageTemplate)
	root.AddCommand(topics()...)
	cobra.EnableCommandSorting = false
	root.SetHelpCommandGroupID("self")
	root.SetCompletionCommandGroupID("self")
	byName := map[string]*cobra.Command{}
	for _, c := range root.Commands() {
		byName[c.Name()] = c
	}
	for _, g := range groups {
		root.AddGroup(&cobra.Group{ID: g.id, Title: g.title})
		for _, name := range g.commands {
			if c := byName[name]; c != nil { // cobra adds help and completion later
				c.GroupID = g.id
				root.RemoveCommand(c)
				root.AddCommand(c) // in the order of the group
			}
		}
	}
}

// examples puts the examples of commands into them, by their paths below root.
func examples(root *cobra.Command) {
	for path, text := range exampleTexts {
		find(root, path).Example = "  " + strings.ReplaceAll(text, "\n", "\n  ")
	}
}

var exampleTexts = map[string]string{
	"ps":          "lodge ps\nlodge ps -o wide 'web-*'\nlodge ps -o json state=running | jq -r .name",
	"top":         "lodge top --sort memory\nlodge top --once tile=shop",
	"memory":      "lodge memory\nlodge memory -o wide 'web-*'\nlodge memory --watch",
	"events":      "lodge events 'web-*'\nlodge events --json --after 97da8a53-8a83-4c40-b1fe-2edd89a79e8a/12",
	"check":       "lodge check && echo no warnings",
	"why":         "lodge why web-1",
	"start":       "lodge start web-1\nlodge start --parallel 16 'tile=shop'",
	"shutdown":    "lodge shutdown --grace 30s 'web-*'",
	"save":        "lodge save state=running",
	"set":         "lodge set web-1 memory=2GiB vcpus=2\nlodge set 'web-*' label.app=web priority=10\nlodge set golden template=no",
	"define":      "lodge define web-1.xml\nlodge define /etc/libvirt/qemu\nvirsh dumpxml old | lodge define -",
	"clone":       "lodge clone golden web-1 web-2 --seed\nlodge clone golden web-{3..20} --thin --pool fast",
	"undefine":    "lodge undefine --nvram --managed-save web-1",
	"tile create": "lodge tile create shop --template packaging/tile.xml --count 8",
	"tile remove": "lodge tile remove shop/3\nlodge tile remove shop",
	"tile start":  "lodge tile start shop/1 shop/2",
	"tile stop":   "lodge tile stop --grace 1m shop",
}
