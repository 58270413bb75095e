package pages

import "strings"

// term is a word of a report, what it means, and by what in a report's text it is used.
type term struct{ word, means, used string }

// terms are in the order in which a reader meets them.
var terms = []term{
	{"tile", "A group of guests that the run has once, twice or more often. All tiles are alike.", "ile"},
	{"arm", "One of the things that are compared: a setting, or a daemon.", "arm"},
	{"step", "A place on the axes of the scenario, such as tiles=2.", "step"},
	{"turn", "One arm's one step in one repetition.", "turn"},
	{"window", "A stretch of time that is measured. The warm-up before it counts in no figure. An operation belongs to the window in which it was meant to begin.", "window"},
	{"open load", "Its operations come by a schedule, whatever the server does. Those that wait are late, and count with their whole time.", "; open:"},
	{"closed load", "Each user waits for an answer before the next operation. While a server stalls, each user waits in one operation: percentiles hold the stall once for each, and not once for all that might have been asked.", "; closed:"},
	{"1/s", "Operations that were done in a second, of all tiles together: the median over repetitions. Those that failed are not among them.", "1/s"},
	{"95 %", "The interval that holds the true value in 95 of 100 cases: a bootstrap over repetitions. With few repetitions it is narrower than it should be.", "95 %"},
	{"mean, p50, p95, p99", "Times from when an operation was meant to begin. p99 is the time within which 99 % were done, of all tiles, windows and repetitions together. Operations that failed count as the longest: \"failed\" says that the percentile is one of them. The mean is of what was done.", "p99"},
	{"offered", "What the schedule of an open load meant to begin in the windows. Chance draws it, and another one in each repetition. A closed load has no schedule: what it did stands in its place.", "offered"},
	{"served of offered", "The part of what was offered that was done without an error, whenever that was.", "served of offered"},
	{"share", "What a tile got, by what all tiles got. Of an open load this is what was served of what the tile was offered; of a closed one it is what the tile did. Equal shares are one by the number of tiles.", "share"},
	{"of linear", "How well many tiles do beside one. 100 % is as if each were alone. Of an open load it is what was served of what was offered, by the same of one tile; of a closed load what all did, by so many times what one did.", "of linear"},
	{"by chance", "How far a closed load's figure may be off by chance alone, in 19 of 20 cases, because so few operations were counted.", "by chance"},
	{"Jain's index", "1 where all tiles get the same; one by their number where one tile gets all.", "Jain's index"},
	{"stall", "Two seconds or more in which nothing of a load ended in a tile, although more operations were due than chance leaves out.", "Stall:"},
	{"outage", "The longest time in the windows in which nothing of a load ended.", "outage"},
	{"bound", "What the scenario asks of a metric. It is broken in a window in which a tile's load does not keep it.", "ound"},
	{"books", "What a load has counted, beside what the server's own log or tables have.", "Books"},
	{"quotient, B/A", "The right side by the left: 0.80 is a fifth less.", "quotient\x00B/A"},
	{"finding", "A difference that chance hardly makes (p below 1 % after correction for all that were compared) and that is larger than 10 % and than the noise. \"Not settled\" is no proof that two things are the same.", "ettled\x00is more\x00is less\x00finding"},
	{"p", "How often chance alone would make a difference as large as the one that was seen. It is corrected for how many are compared at once (Holm).", "p, corrected\x00, p "},
	{"effect", "From -1 to 1: how many values of one side lie above those of the other.", "effect"},
	{"noise", "By how much a thing differs from itself: measured twice, or between halves of its repetitions.", "noise"},
	{"which choice wins", "It is weighed in pairs: two turns of one repetition that differ in that choice alone. All places where every choice of the axis was measured count. What wins in the mean need not win in each place.", "which choice\x00wins\x00Which"},
	{"steal", "Processor time that a host above this one took away.", "steal"},
	{"pressure", "The part of the time in which something waited for a processor, memory or a disk.", "pressure"},
	{"KSM", "Memory of guests that the kernel keeps once because it is equal.", "KSM"},
	{"drift", "By which part a guest's clock went wrong.", "drift"},
}

// legend explains the words that a text has.
func legend(text string) (all []fact) {
	for _, t := range terms {
		for used := range strings.SplitSeq(t.used, "\x00") {
			if strings.Contains(text, used) {
				all = append(all, fact{t.word, t.means})
				break
			}
		}
	}
	return all
}

// mostLine is how long a line of a legend is on a terminal.
const mostLine = 110

// wrapped puts words into lines, which all but the first are indented.
func wrapped(words string, indent int) string {
	var out strings.Builder
	at := indent
	for i, word := range strings.Fields(words) {
		switch {
		case i == 0:
		case at+1+len(word) > mostLine:
			out.WriteString("\n" + strings.Repeat(" ", indent))
			at = indent
		default:
			out.WriteString(" ")
			at++
		}
		out.WriteString(word)
		at += len(word)
	}
	return out.String()
}
