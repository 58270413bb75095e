package stormreport

import (
	"github.com/lodge-kvm/lodge/lab/plot"
	"github.com/lodge-kvm/lodge/lab/storm"
)

// section is some pictures under one heading.
type section struct {
	title    string
	pictures []picture
}

// sections are the pictures in the order of the page; what was not measured is
// left out.
func (f *facts) sections() []section {
	var all []section
	add := func(title string) { all = append(all, section{title: title}) }
	put := func(p picture, ok bool) {
		if ok {
			last := &all[len(all)-1]
			last.pictures = append(last.pictures, p)
		}
	}
	add("Storms of starts")
	put(f.ratios(storm.MetricStart, 0, []plot.Mark{{At: 1.15, Name: "promise at 256: 1.15×"}}))
	put(f.ratios(storm.MetricStart, 16, []plot.Mark{{At: 1.2, Name: "promise at 64: 1.2×"}}))
	put(f.whole(storm.MetricStart, 0))
	put(f.whole(storm.MetricStart, 16))
	put(f.ratios(storm.MetricDestroy, 0, []plot.Mark{{At: 2, Name: "promise at 256: 2×"}}))
	put(f.ratios(storm.MetricDestroy, 16, []plot.Mark{{At: 3, Name: "promise at 64: 3×"}}))
	put(f.whole(storm.MetricDefine, 16))
	add("How long one caller waits")
	put(f.percentiles(storm.Start, storm.MetricStart, "", "Start of one guest, %d at once"))
	put(f.percentiles(storm.Start, storm.MetricDestroy, "", "Destroy of one guest, %d at once"))
	put(f.percentiles(storm.Connect, storm.MetricConnect, "", "A connection with one call on it, again and again"))
	add("Stuck guests")
	put(f.stirPicture())
	put(f.statsPicture())
	put(f.percentiles(storm.Wedge, storm.MetricResume, storm.Wedged, "Resume of a healthy guest while callers hang, %d guests"))
	add("A killed daemon")
	put(f.adoptPicture())
	add("Cost of many guests")
	put(f.each(storm.MetricStart))
	put(f.each(storm.MetricDestroy))
	put(f.own(storm.MetricResident, "Memory of the daemon", "MiB", 1<<20, count, true))
	put(f.own(storm.MetricThreads, "Threads of the daemon", "threads", 1, count, false))
	var filled []section
	for _, s := range all {
		if len(s.pictures) > 0 {
			filled = append(filled, s)
		}
	}
	return filled
}
