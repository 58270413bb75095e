package stormreport

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab"
	"github.com/lodge-kvm/lodge/lab/sheet"
	"github.com/lodge-kvm/lodge/lab/storm"
)

// Holds tells whether a file is of a storm: its first line says so. What cannot
// be read is not.
func Holds(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	in := bufio.NewReader(f)
	if magic, _ := in.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		packed, err := gzip.NewReader(in)
		if err != nil {
			return false
		}
		in = bufio.NewReader(packed)
	}
	const start = `{"storm":`
	head := make([]byte, len(start))
	_, err = io.ReadFull(in, head)
	return err == nil && string(head) == start
}

// Output names where a report goes besides the terminal. What is empty is left out.
type Output struct {
	HTML     string // file of a page with pictures
	SVG      string // directory for the pictures, each as a file
	Markdown string // page that gets the tables between its marks
}

// Show reports on storms that were kept in files, as one: they must be of one
// host. The text goes to a terminal, the rest where o says.
func Show(paths []string, text io.Writer, o Output) error {
	f, err := load(paths)
	if err != nil {
		return err
	}
	outcomes := f.outcomes()
	if _, err := io.WriteString(text, f.text(outcomes)); err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot show the report")
	}
	if o.HTML != "" {
		if err := f.save(o.HTML, paths, outcomes); err != nil {
			return err
		}
	}
	if o.SVG != "" {
		var all []sheet.Figure
		for _, s := range f.figures() {
			all = append(all, s.Figures...)
		}
		if err := sheet.Keep(o.SVG, all); err != nil {
			return err
		}
	}
	if o.Markdown == "" {
		return nil
	}
	return lab.IntoPage(o.Markdown, "storm", f.markdown(outcomes))
}

func load(paths []string) (*facts, error) {
	if len(paths) == 0 {
		return nil, fault.New(fault.Invalid, fault.Call, "name the file of a storm")
	}
	var runs []*storm.Run
	for _, path := range paths {
		r, err := storm.Load(path)
		if err != nil {
			return nil, err
		}
		runs = append(runs, r)
	}
	slices.SortStableFunc(runs, func(a, b *storm.Run) int { return a.Started.Compare(b.Started) })
	return gather(runs)
}

// save writes the page with pictures.
func (f *facts) save(path string, paths []string, outcomes []outcome) error {
	out, err := os.Create(path)
	if err != nil {
		return fault.Wrap(err, fault.Failed, fault.Host, "cannot keep the report")
	}
	raw, err := attach(paths)
	if err == nil {
		w := bufio.NewWriter(out)
		if err = f.html(w, outcomes, raw); err == nil {
			err = w.Flush()
		}
	}
	if closed := out.Close(); err == nil {
		err = closed
	}
	return fault.Wrap(err, fault.Failed, fault.Host, "cannot write the report")
}

// text shows the report on a terminal.
func (f *facts) text(outcomes []outcome) string {
	var out strings.Builder
	for _, s := range f.verdict(outcomes) {
		out.WriteString(fold(s, 100) + "\n\n")
	}
	out.WriteString(f.promised(outcomes).Text() + "\n")
	for _, o := range outcomes {
		if o.Why != "" {
			fmt.Fprintf(&out, "%s: %s\n", o.What, o.Why)
		}
	}
	for _, t := range []lab.Table{f.comparison(), f.latencies(), f.stuck(), f.stopped(), f.missing()} {
		if len(t.Rows) > 0 {
			out.WriteString("\n" + t.Text())
		}
	}
	for _, n := range f.notes() {
		out.WriteString("\n" + fold(n, 100) + "\n")
	}
	return out.String()
}

// fold breaks words into lines.
func fold(words string, width int) string {
	var out strings.Builder
	used := 0
	for w := range strings.FieldsSeq(words) {
		switch {
		case used == 0:
		case used+1+len(w) > width:
			out.WriteString("\n")
			used = 0
		default:
			out.WriteString(" ")
			used++
		}
		out.WriteString(w)
		used += len(w)
	}
	return out.String()
}

// markdown shows the report on a page. The latencies are on the page with
// pictures only.
func (f *facts) markdown(outcomes []outcome) string {
	var out strings.Builder
	for _, s := range f.verdict(outcomes) {
		out.WriteString("- " + lab.Inline(s) + "\n")
	}
	out.WriteString("\n" + f.promised(outcomes).Markdown() + "\n")
	for _, o := range outcomes {
		if o.Why != "" {
			fmt.Fprintf(&out, "- %s: %s.\n", o.What, lab.Inline(o.Why))
		}
	}
	for _, t := range []lab.Table{f.comparison(), f.stuck(), f.stopped(), f.missing()} {
		if len(t.Rows) > 0 {
			out.WriteString("\n" + t.Markdown())
		}
	}
	out.WriteString("\n")
	for _, n := range f.notes() {
		out.WriteString("- " + lab.Inline(n) + "\n")
	}
	return out.String()
}

// notes say what the figures depend on.
func (f *facts) notes() []string {
	var all []string
	for _, r := range f.runs {
		all = append(all, fmt.Sprintf("Measured %s in %s by `%s`: %s of each step, %d clients, targets in turns in an order drawn anew each time (seed %d); "+
			"what had not ended after %s counts as blocked.",
			r.Started.Format("2006-01-02 15:04 MST"), duration(r.End.Took), r.Command, plural(r.Repeats, "repetition", "repetitions"),
			r.Clients, r.Seed, tick(r.Patience)))
		all = append(all, fmt.Sprintf("Host: %s. Load average %.2f before and %.2f after; %.1f %% of the processors' time was taken by the host above.",
			where(r.Host), r.Host.Load, r.End.Load, 100*r.End.Steal))
	}
	for _, t := range f.daemons() {
		all = append(all, fmt.Sprintf("%s: process %s, which says it is libvirt %s and has QEMU %s; %s.",
			t.Name, known(t.Process), known(t.Library), known(t.Hypervisor), plural(t.Domains, "other domain", "other domains")))
	}
	return all
}
