package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/lodge-kvm/lodge/api/lodgev1"
)

// MemoryView shows how the host's memory is shared among guests: what each has, what it should have, and why.
type MemoryView struct {
	Client    *Client
	Selectors []string
	Form      string // Narrow, Wide or JSON
	Out       io.Writer
}

// memorySpare lists the columns that a narrow terminal can do without; fit leaves out the first one first.
var memorySpare = []string{"UUID", "MODE", "MOVED", "FLOOR", "SPARE", "CACHE", "MARGIN", "NEED", "FAILURE", "AGE", "ASKED", "MAX", "HELD"}

// Once shows the picture once. It fits a terminal of width characters; 0 means no terminal, and shows everything.
func (v *MemoryView) Once(ctx context.Context, width int) error {
	if err := v.check(); err != nil {
		return err
	}
	answer, err := v.look(ctx)
	if err != nil {
		return Failed(err)
	}
	if v.Form == JSON {
		err = printJSON(v.Out, answer)
	} else {
		_, err = fmt.Fprintln(v.Out, strings.TrimRight(strings.Join(memoryLines(answer, v.Form == Wide, width), "\n"), "\n"))
	}
	return Failed(err)
}

func (v *MemoryView) check() error {
	switch v.Form {
	case Narrow, Wide, JSON:
		return nil
	}
	return unusable("memory is shown as %s, %s or %s, not as %q", Narrow, Wide, JSON, v.Form)
}

// look asks for the picture. Selectors that choose no guest are refused; guests that do not run have no line.
func (v *MemoryView) look(ctx context.Context) (*lodgev1.MemoryResponse, error) {
	answer, err := v.Client.Memory(ctx, &lodgev1.MemoryRequest{Select: v.Selectors})
	if err != nil || len(answer.GetGuests()) > 0 || len(v.Selectors) == 0 {
		return answer, err
	}
	_, err = v.Client.chosen(ctx, v.Selectors)
	return answer, err
}

// Live shows the picture every second until ctx ends or q is pressed. Pressed and area are as for Top.
func (v *MemoryView) Live(ctx context.Context, pressed <-chan byte, area func() (width, height int)) error {
	if err := v.check(); err != nil {
		return err
	}
	if v.Form == JSON {
		return unusable("a live picture is a %s or %s, not %s", Narrow, Wide, JSON)
	}
	ctx, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	defer takeScreen(v.Out)()
	looks := looks(ctx, time.Second, v.look)
	for {
		select {
		case l := <-looks:
			if l.err != nil && ctx.Err() == nil {
				return Failed(l.err)
			}
			width, height := area()
			lines := memoryLines(l.answer, v.Form == Wide, width)
			lines[1] = "q quits"
			paint(v.Out, lines, width, height)
		case key := <-pressed:
			if leaves(key) {
				return nil
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// memoryLines gives the lines of a picture: the host, an empty one, and the guests.
func memoryLines(m *lodgev1.MemoryResponse, wide bool, width int) []string {
	lines := []string{memorySummary(m), ""}
	switch {
	case m.GetAt() == nil:
	case len(m.GetGuests()) == 0:
		lines = append(lines, "no running guest to show")
	default:
		t := memoryTable(m.GetGuests(), wide)
		t.fit(width, memorySpare...)
		lines = append(lines, t.lines()...)
	}
	return lines
}

// memorySummary says what the memory manager may do, and how the host's memory is spent.
func memorySummary(m *lodgev1.MemoryResponse) string {
	mode := "mode " + Clean(m.GetMode())
	switch {
	case m.GetMode() == "off":
		return mode + ": guests keep the memory that they have; lodged --memory advise shows what would be lent, and --memory act lends it"
	case m.GetAt() == nil:
		return mode + ": the memory manager has not looked yet"
	case m.GetMode() == "advise":
		mode += ", nothing is moved"
	}
	h := m.GetHost()
	text := fmt.Sprintf("%s: %s of memory, others hold %s, guests hold %s; they are promised %s, with a budget of %s",
		mode, size(h.GetTotal()), size(h.GetOthers()), size(h.GetResident()), size(h.GetTargets()), size(h.GetBudget()))
	if h.GetShared() > 0 {
		text += ", and sharing saves " + size(h.GetShared())
	}
	return text
}

// memoryTable shows the guests. AGE is that of a guest's last report, MOVED the time since its target changed.
func memoryTable(guests []*lodgev1.MemoryDecision, wide bool) *table {
	t := &table{titles: []string{"GUEST", "MAX ", "ASKED ", "HAS ", "HELD ", "TARGET ", "REASON", "AGE "}}
	if wide {
		t.titles = append(t.titles, "FLOOR ", "NEED ", "MARGIN ", "CACHE ", "SPARE ", "MOVED ", "MODE", "UUID", "FAILURE")
	}
	for _, g := range guests {
		row := []string{
			g.GetName(), size(g.GetMax()), size(g.GetAsked()), size(g.GetHas()), size(g.GetResident()), size(g.GetTarget()),
			memoryReason(g), lapse(g.GetSampled(), g.GetSampleAge()),
		}
		if wide {
			row = append(row, size(g.GetFloor()), size(g.GetNeed()), size(g.GetMargin()), size(g.GetCache()), size(g.GetSpare()),
				lapse(g.GetMoved(), g.GetMovedAge()), g.GetMode(), g.GetUuid(), orNone(g.GetFailure()))
		}
		t.add(row...)
	}
	return t
}

func memoryReason(g *lodgev1.MemoryDecision) string {
	if g.GetApart() == "" {
		return g.GetReason()
	}
	return g.GetReason() + ": " + g.GetApart()
}

// lapse shows how long ago something was, by the daemon's clock.
func lapse(at *timestamppb.Timestamp, age *durationpb.Duration) string {
	if at == nil {
		return none
	}
	end := at.AsTime().Add(age.AsDuration())
	return ago(at, end)
}

// explainMemory says in sentences why a guest has the memory that it has, and how to change that.
func explainMemory(g *lodgev1.MemoryDecision) []string {
	lines := []string{
		fmt.Sprintf("it has %s of at most %s, and the host holds %s for it; its user asked for %s, and it never gets less than %s",
			size(g.GetHas()), size(g.GetMax()), size(g.GetResident()), size(g.GetAsked()), size(g.GetFloor())),
		explainTarget(g),
	}
	if g.GetApart() != "" { // what the user could change is in the reason
		return lines
	}
	lines = append(lines, explainAge(g))
	if g.GetFailure() != "" {
		lines = append(lines, "the last move of its balloon failed: "+g.GetFailure())
	}
	return append(lines, fmt.Sprintf("to change it: virsh setmem %s SIZE, or lodge set %[1]s memory.floor=SIZE for another floor, memory.shares=N, "+
		"or memory.mode=off; lodged --guest-memory SIZE bounds all guests, and lodged --memory off leaves each what it has", g.GetName()))
}

// explainTarget shows the sum behind a target. The sum is not the target where memory is scarce, and where the difference
// is not worth a move.
func explainTarget(g *lodgev1.MemoryDecision) string {
	useful := g.GetNeed() + g.GetMargin() + g.GetCache()
	if useful == 0 {
		return fmt.Sprintf("its balloon stays at %s: %s", size(g.GetTarget()), memoryReason(g))
	}
	text := fmt.Sprintf("need %s + margin %s + cache %s", size(g.GetNeed()), size(g.GetMargin()), size(g.GetCache()))
	if whole := useful + g.GetSpare(); max(whole, g.GetTarget())-min(whole, g.GetTarget()) < 1<<20 {
		if g.GetSpare() > 0 {
			text += " + spare " + size(g.GetSpare())
		}
		text += " = target " + size(g.GetTarget())
	} else {
		text += fmt.Sprintf(" = %s that it could use; its target is %s", size(useful), size(g.GetTarget()))
	}
	text += ": " + memoryReason(g)
	if g.GetMode() == "advise" && g.GetTarget() != g.GetHas() {
		text += " (mode advise: it is not moved there)"
	}
	return text
}

func explainAge(g *lodgev1.MemoryDecision) string {
	text := "it has reported no statistics: its kernel may lack the driver virtio_balloon, or still boots"
	if g.GetSampled() != nil {
		text = "its last report is " + lapse(g.GetSampled(), g.GetSampleAge()) + " old"
	}
	if g.GetMoved() == nil {
		return text + "; its balloon has not been moved"
	}
	return text + "; its balloon was last moved " + lapse(g.GetMoved(), g.GetMovedAge()) + " ago"
}
