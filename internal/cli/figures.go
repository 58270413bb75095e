package cli

import (
	"fmt"
	"strings"
	"time"
	"unicode"

	"google.golang.org/protobuf/types/known/timestamppb"
)

// none stands where nothing is known.
const none = "-"

// size shows bytes with three digits or so.
func size(n uint64) string {
	if n < 1<<10 {
		return fmt.Sprint(n)
	}
	value, unit := float64(n), -1
	for value >= 1023.95 && unit < 5 {
		value /= 1 << 10
		unit++
	}
	if value >= 99.95 {
		return fmt.Sprintf("%.0f%c", value, "KMGTPE"[unit])
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", value), ".0") + string("KMGTPE"[unit])
}

// span shows a time that passed, shortly.
func span(d time.Duration) string {
	switch {
	case d == 0:
		return "0s"
	case d < time.Millisecond:
		return fmt.Sprintf("%dµs", max(d, 0).Microseconds())
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Milliseconds())
	case d < 10*time.Second:
		return fmt.Sprintf("%.2fs", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd%02dh", int(d.Hours())/24, int(d.Hours())%24)
}

// ago shows how long something has been so.
func ago(since *timestamppb.Timestamp, now time.Time) string {
	if since == nil {
		return none
	}
	d := max(now.Sub(since.AsTime()), 0)
	if d < time.Minute {
		return fmt.Sprintf("%ds", int(d.Seconds()))
	}
	return span(d)
}

// orNone returns the text, or the sign for none if it is empty.
func orNone(text string) string {
	if text == "" {
		return none
	}
	return text
}

// Clean keeps what guests and files are called from steering the terminal.
func Clean(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || !unicode.IsPrint(r) && r != ' ' {
			return '?'
		}
		return r
	}, text)
}

// sentence cleans a text of the daemon for the terminal, and joins its lines with "; ".
func sentence(text string) string { return Clean(strings.ReplaceAll(text, "\n", "; ")) }
