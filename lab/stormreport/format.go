package stormreport

import (
	"fmt"
	"math"

	"github.com/lodge-kvm/lodge/lab/stats"
)

// duration writes seconds with a unit that suits them, to two or three digits.
func duration(s float64) string {
	switch {
	case math.IsNaN(s):
		return "–"
	case s == 0:
		return "0 s"
	case s < 0.9995e-3:
		return digits(1e6*s) + " µs"
	case s < 0.9995:
		return digits(1e3*s) + " ms"
	}
	return digits(s) + " s"
}

// digits writes a number as short as it stays clear: about three digits.
func digits(v float64) string {
	switch size := math.Abs(v); {
	case math.IsNaN(v):
		return "–"
	case size >= 99.95:
		return fmt.Sprintf("%.0f", v)
	case size >= 9.995:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

func tick(s float64) string {
	switch {
	case s == 0:
		return "0"
	case s < 0.9995e-3:
		return fmt.Sprintf("%.4g µs", 1e6*s)
	case s < 0.9995:
		return fmt.Sprintf("%.4g ms", 1e3*s)
	}
	return fmt.Sprintf("%.4g s", s)
}

func times(v float64) string {
	if math.IsNaN(v) {
		return "–"
	}
	return digits(v) + "×"
}

// waited writes how long something was waited for in vain.
func waited(s float64) string { return fmt.Sprintf("%.3g s", s) }

func timesTick(v float64) string { return fmt.Sprintf("%.4g×", v) }

// within writes a value with its interval, if it has one.
func within(r stats.Ratio, write func(float64) string) string {
	if math.IsNaN(r.Low) || r.Low == r.High {
		return write(r.Value)
	}
	return fmt.Sprintf("%s (%s–%s)", write(r.Value), write(r.Low), write(r.High))
}

func mebibytes(v float64) string { return digits(v/(1<<20)) + " MiB" }

func count(v float64) string { return fmt.Sprintf("%.0f", v) }

func percentile(q float64) string {
	if q == 0 {
		return "0"
	}
	return fmt.Sprintf("p%.6g", 100*q)
}

// plural is a number and its word.
func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
