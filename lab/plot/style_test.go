package plot

import (
	"math"
	"strconv"
	"testing"
)

type rgb [3]float64 // linear light

func colour(t *testing.T, hex string) rgb {
	var c rgb
	for i := range c {
		v, err := strconv.ParseUint(hex[1+2*i:3+2*i], 16, 8)
		if err != nil {
			t.Fatal(err)
		}
		s := float64(v) / 255
		if s <= 0.04045 {
			c[i] = s / 12.92
		} else {
			c[i] = math.Pow((s+0.055)/1.055, 2.4)
		}
	}
	return c
}

func (c rgb) luminance() float64 { return 0.2126*c[0] + 0.7152*c[1] + 0.0722*c[2] }

// contrast is as the guidelines for accessible pages reckon it.
func contrast(a, b rgb) float64 {
	x, y := a.luminance(), b.luminance()
	return (max(x, y) + 0.05) / (min(x, y) + 0.05)
}

func TestColoursCanBeReadOnTheirPaper(t *testing.T) {
	for _, p := range palette {
		for _, c := range [][2]string{{p.light, paper.light}, {p.dark, paper.dark}, {paper.soft, paper.light}, {paper.softDark, paper.dark}} {
			if got := contrast(colour(t, c[0]), colour(t, c[1])); got < 4.5 {
				t.Errorf("%s on %s has a contrast of %.1f", c[0], c[1], got)
			}
		}
	}
}

// seen is a colour as those see it who lack one kind of cones (Machado and
// others, 2009, at full severity).
var seen = map[string][3]rgb{
	"all cones":      {{1, 0, 0}, {0, 1, 0}, {0, 0, 1}},
	"without red":    {{0.152286, 1.052583, -0.204868}, {0.114503, 0.786281, 0.099216}, {-0.003882, -0.048116, 1.051998}},
	"without green":  {{0.367322, 0.860646, -0.227968}, {0.280085, 0.672501, 0.047413}, {-0.011820, 0.042940, 0.968881}},
	"without bluish": {{1.255528, -0.076749, -0.178779}, {-0.078411, 0.930809, 0.147602}, {0.004733, 0.691367, 0.303900}},
}

// The three that share most pictures are told apart by everybody; dash and
// marker tell the others apart.
func TestTheFirstLooksAreToldApart(t *testing.T) {
	for who, matrix := range seen {
		for _, dark := range []bool{false, true} {
			var all []rgb
			for _, look := range []Look{Gray, Blue, Orange} {
				c := palette[look].light
				if dark {
					c = palette[look].dark
				}
				all = append(all, lab(through(matrix, colour(t, c))))
			}
			for i := range all {
				for j := range i {
					if d := math.Sqrt(sq(all[i][0]-all[j][0]) + sq(all[i][1]-all[j][1]) + sq(all[i][2]-all[j][2])); d < 12 {
						t.Errorf("%s, dark %v: looks %d and %d are %.1f apart", who, dark, i, j, d)
					}
				}
			}
		}
	}
}

func TestEveryLookHasADashOfItsOwn(t *testing.T) {
	all := map[string]Look{}
	for i, p := range palette {
		if other, there := all[p.dash]; there {
			t.Errorf("looks %d and %d have one dash", i, other)
		}
		all[p.dash] = Look(i)
	}
}

func sq(x float64) float64 { return x * x }

func through(m [3]rgb, c rgb) (out rgb) {
	for i := range out {
		out[i] = min(max(m[i][0]*c[0]+m[i][1]*c[1]+m[i][2]*c[2], 0), 1)
	}
	return out
}

// lab gives a colour in CIE L*a*b*, where distances are about as they are seen.
func lab(c rgb) rgb {
	f := func(x float64) float64 {
		if x > 0.008856 {
			return math.Cbrt(x)
		}
		return 7.787*x + 16.0/116
	}
	x := f((0.4124*c[0] + 0.3576*c[1] + 0.1805*c[2]) / 0.9505)
	y := f(0.2126*c[0] + 0.7152*c[1] + 0.0722*c[2])
	z := f((0.0193*c[0] + 0.1192*c[1] + 0.9505*c[2]) / 1.089)
	return rgb{116*y - 16, 500 * (x - y), 200 * (y - z)}
}
