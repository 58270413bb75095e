package operation

import (
	"fmt"
	"strings"
	"testing"
)

// The whole table of docs/decisions/0059: a row for each open class, a column for
// each new class, each on the same object and on others.
const admissionTable = `
open       change        disk job      move          backup        unplug        cleanup
change     wait/wait     wait/wait     wait/wait     wait/wait     wait/wait     go/go
disk job   refuse/go     refuse/go     refuse/refuse refuse/go     refuse/go     go/go
move       wait/wait     wait/wait     wait/wait     wait/wait     wait/wait     go/go
backup     refuse/go     refuse/go     refuse/refuse refuse/refuse refuse/go     go/go
unplug     go/go         refuse/go     go/go         go/go         go/go         go/go
cleanup    wait/go       wait/go       wait/go       wait/go       wait/go       go/go
`

func TestAdmit_EveryPair(t *testing.T) {
	words := map[Admission]string{Allow: "go", Wait: "wait", Refuse: "refuse"}
	var table strings.Builder
	fmt.Fprintf(&table, "\n%-11s", "open")
	for next := Change; next <= Cleanup; next++ {
		fmt.Fprintf(&table, "%-14s", next)
	}
	for open := Change; open <= Cleanup; open++ {
		fmt.Fprintf(&table, "\n%-11s", open)
		for next := Change; next <= Cleanup; next++ {
			same := Admit(open, []string{"disk/vda", "disk/vdb"}, next, []string{"disk/vdb"})
			other := Admit(open, []string{"disk/vda"}, next, []string{"disk/vdb"})
			fmt.Fprintf(&table, "%-14s", words[same]+"/"+words[other])
		}
	}
	clean := func(s string) (lines []string) {
		for line := range strings.Lines(s) {
			lines = append(lines, strings.TrimRight(line, " \n"))
		}
		return lines
	}
	if got, want := clean(table.String()), clean(strings.TrimRight(admissionTable, "\n")); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("the table is\n%s", strings.Join(got, "\n"))
	}
}
