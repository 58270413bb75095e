package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/lodge-kvm/lodge/api/lodgev1"
)

// ShowQueue shows which starts wait, which operations are open, and for what.
func (c *Client) ShowQueue(ctx context.Context, asJSON bool, out io.Writer) error {
	q, err := c.StartQueue(ctx, &lodgev1.StartQueueRequest{})
	if err != nil {
		return Failed(err)
	}
	if asJSON {
		return Failed(printJSON(out, q))
	}
	return Failed(writeQueue(out, q, time.Now()))
}

func writeQueue(out io.Writer, q *lodgev1.StartQueueResponse, now time.Time) error {
	if _, err := fmt.Fprintln(out, queueSummary(q)); err != nil {
		return err
	}
	if len(q.GetWaiting()) > 0 {
		if err := queueTable(q, now).write(out); err != nil {
			return err
		}
	}
	if len(q.GetOperations()) == 0 {
		return nil
	}
	return operationTable(q, now).write(out)
}

func queueSummary(q *lodgev1.StartQueueResponse) string {
	if q.GetLimit() == 0 {
		return fmt.Sprintf("%d starts run; nothing limits them", q.GetRunning())
	}
	parts := []string{fmt.Sprintf("%d of at most %d starts run", q.GetRunning(), q.GetLimit()), fmt.Sprintf("%d wait", len(q.GetWaiting()))}
	if n := q.GetStuck(); n > 0 {
		parts = append(parts, fmt.Sprintf("%d hang and do not count", n))
	}
	if n := q.GetSettling(); n > 0 {
		parts = append(parts, fmt.Sprintf("%d settle, with %s still promised", n, size(q.GetPromised())))
	}
	text := strings.Join(parts, ", ")
	if q.GetWhy() != "" {
		text += ": " + Clean(q.GetWhy())
	}
	return text
}

// operationTable shows the operations that take several steps. AGE is the time since the
// present step began.
func operationTable(q *lodgev1.StartQueueResponse, now time.Time) *table {
	t := &table{titles: []string{"NAME", "OPERATION", "STATE", "STEP", "AGE ", "REASON"}}
	for _, o := range q.GetOperations() {
		t.add(o.GetName(), strings.Join(append([]string{o.GetKind()}, o.GetObjects()...), " "), o.GetState(), o.GetStep(), ago(o.GetSince(), now), o.GetReason())
	}
	return t
}

func queueTable(q *lodgev1.StartQueueResponse, now time.Time) *table {
	t := &table{titles: []string{"# ", "NAME", "WAITS ", "REASON"}}
	for _, w := range q.GetWaiting() {
		t.add(fmt.Sprint(w.GetPosition()), w.GetName(), ago(w.GetSince(), now), w.GetReason())
	}
	return t
}

// ShowStatus shows what the daemon itself uses; with collect, after it has
// collected its garbage.
func (c *Client) ShowStatus(ctx context.Context, collect, asJSON bool, out io.Writer) error {
	s, err := c.Status(ctx, &lodgev1.StatusRequest{Collect: collect})
	if err != nil {
		return Failed(err)
	}
	if asJSON {
		return Failed(printJSON(out, s))
	}
	t := &table{titles: []string{"lodged", s.GetVersion()}}
	for _, line := range [][2]string{
		{"up", span(s.GetUptime().AsDuration())},
		{"pid", fmt.Sprint(s.GetPid())},
		{"guests", fmt.Sprintf("%d, %d of them active", s.GetGuests(), s.GetActive())},
		{"clients", fmt.Sprintf("%d of libvirt's protocol, %d of Lodge's API", s.GetLibvirtClients(), s.GetApiClients())},
		{"sets under way", fmt.Sprint(s.GetSets())},
		{"prepared", prepared(s.GetPrepared())},
		{"isolation", isolation(s.GetIsolation())},
		{"memory", fmt.Sprintf("%s resident, %s of heap in use", size(s.GetResident()), size(s.GetHeap()))},
		{"goroutines", fmt.Sprint(s.GetGoroutines())},
		{"threads", fmt.Sprint(s.GetThreads())},
		{"descriptors", fmt.Sprint(s.GetDescriptors())},
		{"processor time", span(s.GetCpu().AsDuration())},
		{"newest event", fmt.Sprintf("%s/%d", s.GetEvents().GetLife(), s.GetEvents().GetSeq())},
	} {
		t.add(line[0], line[1])
	}
	return Failed(t.write(out))
}

// isolation says what keeps guests apart, and what the host lacks for it.
func isolation(i *lodgev1.Isolation) string {
	text := "off"
	if i.GetOn() {
		text = strings.Join(i.GetInForce(), ", ")
	}
	if len(i.GetLacking()) > 0 {
		text += "; lacking " + Clean(strings.Join(i.GetLacking(), ", "))
	}
	return text
}

// prepared says how many guests a QEMU waits for, and what that costs.
func prepared(all []*lodgev1.PreparedGuest) string {
	var memory uint64
	for _, p := range all {
		memory += p.GetMemory()
	}
	return fmt.Sprintf("%d QEMUs, with %s of memory", len(all), size(memory))
}

// ShowTiles lists the tiles.
func (c *Client) ShowTiles(ctx context.Context, asJSON bool, out io.Writer) error {
	answer, err := c.ListTiles(ctx, &lodgev1.ListTilesRequest{})
	if err != nil {
		return Failed(err)
	}
	t := &table{titles: []string{"TILE", "GUESTS ", "RUNNING ", "VOLUMES"}}
	for _, tile := range answer.GetTiles() {
		if asJSON {
			if err := printJSON(out, tile); err != nil {
				return Failed(err)
			}
			continue
		}
		t.add(fmt.Sprintf("%s/%d", tile.GetSet(), tile.GetNumber()), fmt.Sprint(tile.GetGuests()), fmt.Sprint(tile.GetRunning()), orNone(strings.Join(tile.GetVolumes(), " ")))
	}
	if asJSON {
		return nil
	}
	return Failed(t.write(out))
}
