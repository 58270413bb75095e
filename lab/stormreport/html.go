package stormreport

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"html/template"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab"
	"github.com/lodge-kvm/lodge/lab/machine"
	"github.com/lodge-kvm/lodge/lab/sheet"
	"github.com/lodge-kvm/lodge/lab/storm"
)

var (
	//go:embed page.html
	pageText string

	pageTemplate = sheet.Page(pageText)
)

// pageValues are what the page is filled with.
type pageValues struct {
	Title    string
	Subject  string
	Others   []string
	Verdict  []string
	Outcomes []outcome
	Sections []pageSection
	Tables   []pageTable // besides, latencies
	Missing  lab.Table
	Notes    []string
	Hosts    []fact
	Targets  []storm.Target
	Commands []command
	// Definitions of guests, each shape once.
	Documents []storm.Document
	Runs      []*storm.Run
	Raw       []attachment
}

type pageSection struct {
	ID, Title string
	Figures   []sheet.Figure
}

type pageTable struct {
	ID    string
	About string
	lab.Table
}

type fact struct{ Name, Value string }

// command is what a target runs for a guest, as a shell would take it.
type command struct {
	Target string
	What   string
	Line   string
}

// attachment is a file of raw values.
type attachment struct {
	Name, Sum string
	Size      int
	Link      template.URL // empty: too large to be carried along
	Packed    string       // name of the packed file
}

// carried is the size in bytes, packed, up to which raw values are put into the
// page.
const carried = 2 << 20

func attach(paths []string) ([]attachment, error) {
	var all []attachment
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, fault.Wrap(err, fault.Failed, fault.Host, "cannot read values")
		}
		sum := sha256.Sum256(data)
		a := attachment{Name: filepath.Base(path), Sum: hex.EncodeToString(sum[:]), Size: len(data)}
		a.Packed = a.Name
		if !strings.HasSuffix(path, ".gz") {
			var packed bytes.Buffer
			w := gzip.NewWriter(&packed)
			if _, err := w.Write(data); err != nil {
				return nil, err
			}
			if err := w.Close(); err != nil {
				return nil, err
			}
			data, a.Packed = packed.Bytes(), a.Name+".gz"
		}
		if len(data) <= carried {
			a.Link = template.URL("data:application/gzip;base64," + base64.StdEncoding.EncodeToString(data))
		}
		all = append(all, a)
	}
	return all, nil
}

// html writes the page with pictures.
func (f *facts) html(w io.Writer, outcomes []outcome, raw []attachment) error {
	v := pageValues{
		Title:    "Storms: " + f.subject.Name,
		Subject:  f.subject.Name,
		Verdict:  f.verdict(outcomes),
		Outcomes: outcomes,
		Sections: f.figures(),
		Missing:  f.missing(),
		Notes:    f.notes(),
		Hosts:    f.host(),
		Commands: f.commands(),
		Runs:     f.runs,
		Raw:      raw,
	}
	for _, t := range f.others {
		v.Others = append(v.Others, t.Name)
	}
	if len(v.Others) > 0 {
		v.Title += " beside " + strings.Join(v.Others, ", ")
	}
	for _, r := range f.runs {
		for _, t := range r.Targets {
			if !slices.ContainsFunc(v.Targets, func(u storm.Target) bool { return t.Name == u.Name }) {
				v.Targets = append(v.Targets, t)
			}
		}
		for _, d := range r.Documents {
			if !slices.ContainsFunc(v.Documents, func(e storm.Document) bool { return d.Disks == e.Disks && d.Memory == e.Memory }) {
				v.Documents = append(v.Documents, d)
			}
		}
	}
	v.Tables = f.tables()
	return pageTemplate.Execute(w, v)
}

func (f *facts) tables() []pageTable {
	var all []pageTable
	if t := f.comparison(); len(t.Rows) > 0 {
		all = append(all, pageTable{"beside", "Largest size of each storm. A finding wants both: a chance of a false alarm below 1 %, by a permutation test of the repetitions " +
			"and after Holm's correction for reading this many lines together, and a difference above 10 % and above the host's own noise.", t})
	}
	if t := f.stopped(); len(t.Rows) > 0 {
		all = append(all, pageTable{"stopped", "What became of the calls that hung (25 callers, who are let go when the other calls have been timed), and of a destroy of a stopped guest at the end.", t})
	}
	if t := f.latencies(); len(t.Rows) > 0 {
		all = append(all, pageTable{"latencies", "From HdrHistograms of all repetitions, three digits. Largest size of each storm.", t})
	}
	return all
}

func (f *facts) figures() []pageSection {
	var all []pageSection
	n := 0
	for i, s := range f.sections() {
		section := pageSection{ID: fmt.Sprintf("section-%d", i+1), Title: s.title}
		for _, p := range s.pictures {
			n++
			id := fmt.Sprintf("figure-%d", n)
			section.Figures = append(section.Figures, sheet.Figure{ID: id, Title: p.title, About: p.about, SVG: p.draw(id, p.title, p.about), Table: p.table})
		}
		all = append(all, section)
	}
	return all
}

func (f *facts) host() []fact {
	h := f.runs[0].Host
	kind := "no"
	if h.Virtual {
		kind = "yes, a guest itself"
	}
	return []fact{
		{"Processor", fmt.Sprintf("%s, %d of them", h.Processor, h.Processors)},
		{"Memory", fmt.Sprintf("%.1f GiB", float64(h.Memory)/(1<<30))},
		{"Kernel", "Linux " + known(h.Kernel)},
		{"Frequency governor", cmp.Or(h.Governor, "not told")},
		{"Virtual", kind},
		{"Accelerator", cmp.Or(h.Accelerator, "not told")},
	}
}

func where(h machine.Host) string {
	what := "hardware"
	if h.Virtual {
		what = "a virtual machine"
	}
	return fmt.Sprintf("%s with %s (%s), %.0f GiB, Linux %s, accelerator %s",
		what, plural(h.Processors, "processor", "processors"), h.Processor, float64(h.Memory)/(1<<30), known(h.Kernel), known(h.Accelerator))
}

func known(text string) string { return cmp.Or(text, "unknown") }

func (f *facts) commands() []command {
	var all []command
	for _, r := range f.runs {
		for _, c := range r.Commands {
			what := fmt.Sprintf("guest with %s and %d MiB", plural(c.Disks, "disk", "disks"), c.Memory)
			if slices.ContainsFunc(all, func(d command) bool { return d.Target == c.Target && d.What == what }) {
				continue
			}
			words := []string{quoted(c.Binary)}
			for _, a := range c.Args {
				if strings.HasPrefix(a, "-") {
					a = "\\\n  " + quoted(a)
				} else {
					a = quoted(a)
				}
				words = append(words, a)
			}
			all = append(all, command{c.Target, what, strings.Join(words, " ")})
		}
	}
	return all
}

// quoted writes a word as a shell takes it.
func quoted(word string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_=,./:+@%", r)
	}
	if word != "" && strings.IndexFunc(word, func(r rune) bool { return !plain(r) }) < 0 {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
