package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/lodge-kvm/lodge/api/lodgev1"
)

// Top is a live table of what guests use. Rates are those between the two newest
// samples of a guest, whatever the time between two looks at them.
type Top struct {
	Client    *Client
	Selectors []string
	// Every is the time between two looks.
	Every time.Duration
	// By is the column that sorts: cpu, memory, disk, net, age or name.
	By  string
	Out io.Writer

	guests map[string]*usage // by UUID
}

// usage is a guest between two samples.
type usage struct {
	*lodgev1.GuestStats
	before *lodgev1.Sample // an older one than the newest; nil: there was none
}

// columns has the sort orders of the table, by column name. The table keys has the
// key for each.
var columns = map[string]func(a, b *usage) int{
	"cpu":    func(a, b *usage) int { return cmp.Compare(b.cpu(), a.cpu()) },
	"memory": func(a, b *usage) int { return cmp.Compare(b.GetSample().GetResident(), a.GetSample().GetResident()) },
	"disk":   func(a, b *usage) int { return cmp.Compare(b.reads()+b.writes(), a.reads()+a.writes()) },
	"net":    func(a, b *usage) int { return cmp.Compare(b.receives()+b.transmits(), a.receives()+a.transmits()) },
	"age": func(a, b *usage) int {
		return cmp.Compare(b.GetSample().GetAge().AsDuration(), a.GetSample().GetAge().AsDuration())
	},
	"name": func(_, _ *usage) int { return 0 },
}

// keys are those of the live table.
var keys = map[byte]string{'c': "cpu", 'm': "memory", 'd': "disk", 'n': "net", 'a': "age", 'N': "name"}

// rate gives how much a counter grew in a second; it is below 0 where that is
// not known.
func (u *usage) rate(counter func(*lodgev1.Sample) float64) float64 {
	if u.before == nil || u.GetSample() == nil {
		return -1
	}
	seconds := u.GetSample().GetAt().AsTime().Sub(u.before.GetAt().AsTime()).Seconds()
	grown := counter(u.GetSample()) - counter(u.before)
	if seconds <= 0 || grown < 0 {
		return -1
	}
	return grown / seconds
}

func (u *usage) cpu() float64 {
	return 100 * u.rate(func(s *lodgev1.Sample) float64 { return s.GetCpu().AsDuration().Seconds() })
}

func (u *usage) reads() float64 {
	return u.rate(func(s *lodgev1.Sample) float64 { return float64(s.GetDiskReadBytes()) })
}

func (u *usage) writes() float64 {
	return u.rate(func(s *lodgev1.Sample) float64 { return float64(s.GetDiskWriteBytes()) })
}

func (u *usage) receives() float64 {
	return u.rate(func(s *lodgev1.Sample) float64 { return float64(s.GetNetReceiveBytes()) })
}

func (u *usage) transmits() float64 {
	return u.rate(func(s *lodgev1.Sample) float64 { return float64(s.GetNetTransmitBytes()) })
}

// lookFresh asks the daemon for samples of now.
func (t *Top) lookFresh(ctx context.Context) error {
	answer, err := t.Client.Stats(ctx, &lodgev1.StatsRequest{Select: t.Selectors, FreshWithin: durationpb.New(freshLimit)})
	if err != nil {
		return Failed(err)
	}
	t.note(answer.GetGuests())
	return nil
}

// note takes in what the daemon says now. Guests that it does not name have gone.
func (t *Top) note(guests []*lodgev1.GuestStats) {
	now := make(map[string]*usage, len(guests))
	for _, g := range guests {
		u := &usage{GuestStats: g}
		if was := t.guests[g.GetUuid()]; was != nil {
			u.before = was.before
			if newer := g.GetSample().GetAt().AsTime(); was.GetSample() != nil && newer.After(was.GetSample().GetAt().AsTime()) {
				u.before = was.GetSample()
			}
		}
		now[g.GetUuid()] = u
	}
	t.guests = now
}

// frame gives the lines of the table, the heaviest user first.
func (t *Top) frame() []string {
	all := make([]*usage, 0, len(t.guests))
	stale, cpu, resident := 0, 0.0, uint64(0)
	for _, u := range t.guests {
		all = append(all, u)
		if u.GetSample().GetStale() != "" {
			stale++
		}
		cpu += max(u.cpu(), 0)
		resident += u.GetSample().GetResident()
	}
	slices.SortFunc(all, func(a, b *usage) int {
		return cmp.Or(columns[t.By](a, b), cmp.Compare(a.GetName(), b.GetName()))
	})
	head := fmt.Sprintf("%d active guests, %.0f%% of a processor, %s resident", len(all), cpu, size(resident))
	if stale > 0 {
		head += fmt.Sprintf(", %d stale", stale)
	}
	rows := &table{titles: []string{"NAME", "STATE", "VCPUS ", "CPU% ", "RESIDENT ", "MEMORY ", "READ/s ", "WRITE/s ", "RECV/s ", "SEND/s ", "AGE "}}
	for _, u := range all {
		rows.add(u.row()...)
	}
	return append([]string{head, ""}, rows.lines()...)
}

func (u *usage) row() []string {
	row := []string{u.GetName(), u.GetState(), fmt.Sprint(u.GetVcpus())}
	if u.GetSample() == nil {
		return append(row, none, none, size(u.GetMemory()), none, none, none, none, orNone(u.GetMissing()))
	}
	cpu := none
	if n := u.cpu(); n >= 0 {
		cpu = fmt.Sprintf("%.1f", n)
	}
	return append(row, cpu, size(u.GetSample().GetResident()), size(u.GetMemory()),
		perSecond(u.reads()), perSecond(u.writes()), perSecond(u.receives()), perSecond(u.transmits()), age(u.GetSample()))
}

func perSecond(bytes float64) string {
	if bytes < 0 {
		return none
	}
	return size(uint64(bytes))
}

// freshLimit is how long a single look waits for guests to answer.
const freshLimit = time.Second

// Once shows the table once. Its figures are the usage between two samples that are
// t.Every apart.
func (t *Top) Once(ctx context.Context) error {
	if err := t.check(); err != nil {
		return err
	}
	if err := t.lookFresh(ctx); err != nil {
		return err
	}
	select {
	case <-time.After(t.Every):
	case <-ctx.Done():
		return &Ending{Status: WasCancelled}
	}
	if err := t.lookFresh(ctx); err != nil {
		return err
	}
	_, err := fmt.Fprintln(t.Out, strings.Join(t.frame(), "\n"))
	return Failed(err)
}

func (t *Top) check() error {
	if columns[t.By] == nil {
		return unusable("the table is sorted by cpu, memory, disk, net, age or name, not by %q", t.By)
	}
	if t.Every < 100*time.Millisecond {
		return unusable("%v between two looks is too short; at least 100ms", t.Every)
	}
	return nil
}

// Live shows the table until ctx ends or q is pressed. Pressed are the keys; the
// terminal gives them as they are pressed, also while the daemon does not answer.
// Area tells its width and height.
func (t *Top) Live(ctx context.Context, pressed <-chan byte, area func() (width, height int)) error {
	if err := t.check(); err != nil {
		return err
	}
	ctx, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	defer takeScreen(t.Out)()
	request := &lodgev1.StatsRequest{Select: t.Selectors}
	looks := looks(ctx, t.Every, func(ctx context.Context) (*lodgev1.StatsResponse, error) { return t.Client.Stats(ctx, request) })
	for {
		select {
		case l := <-looks:
			if l.err != nil && ctx.Err() == nil {
				return Failed(l.err)
			}
			t.note(l.answer.GetGuests())
		case key := <-pressed:
			if leaves(key) {
				return nil
			}
			if by := keys[key]; by != "" {
				t.By = by
			}
		case <-ctx.Done():
			return nil
		}
		if t.guests != nil { // there was an answer
			lines := t.frame()
			lines[1] = fmt.Sprintf("sorted by %s; c cpu, m memory, d disk, n net, a age, N name, q quits", t.By)
			width, height := area()
			paint(t.Out, lines, width, height)
		}
	}
}
