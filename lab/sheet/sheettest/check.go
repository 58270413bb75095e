package sheettest

import (
	"bytes"
	"encoding/xml"
	"errors"
	"image/png"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// photographs names a directory for pictures of all pages that are checked, for
// people to look at.
const photographs = "LODGE_PHOTOGRAPHS"

// Check opens a page in every view, and fails the test where its pictures, at least
// so many, cannot be seen, where words are cut off, broken or on each other, where the page is wider than its
// window, and where it complains or asks anybody for anything.
func (b *Browser) Check(t *testing.T, file, name string, pictures int) {
	t.Helper()
	p := b.Open(file)
	defer p.Close()
	grounds := map[string]string{}
	for _, v := range Views {
		p.Show(v)
		l := p.Look()
		where := name + ", " + v.Name
		if l.Pictures < pictures || len(l.Empty) > 0 {
			t.Errorf("%s: %d pictures, at least %d are meant, with nothing to be seen %q", where, l.Pictures, pictures, l.Empty)
		}
		if len(l.Cut) > 0 {
			t.Errorf("%s: words reach out of their pictures: %q", where, l.Cut)
		}
		if len(l.Collide) > 0 {
			t.Errorf("%s: words of pictures lie on each other: %q", where, l.Collide)
		}
		if len(l.Broken) > 0 {
			t.Errorf("%s: words of tables are broken: %q", where, l.Broken)
		}
		if l.Wide > 0 {
			t.Errorf("%s: the page is %d wider than its window", where, l.Wide)
		}
		grounds[v.Name] = l.Ground
		if dir := os.Getenv(photographs); dir != "" {
			p.Photograph(filepath.Join(dir, name+"-"+v.Name+".png"))
		}
	}
	for _, one := range p.Complaints() {
		t.Errorf("%s: the browser says %s", name, one)
	}
	if asked := p.Asked(); len(asked) > 0 {
		t.Errorf("%s: the page asks for %q", name, asked)
	}
	if grounds["light"] != "rgb(255, 255, 255)" || grounds["paper"] != grounds["light"] || grounds["dark"] == grounds["light"] {
		t.Errorf("%s: what it stands on is %v", name, grounds)
	}
}

// CheckKeeping presses the buttons of a page's first picture, and fails the test
// where no whole picture comes of one.
func (b *Browser) CheckKeeping(t *testing.T, file string) {
	t.Helper()
	p := b.Open(file)
	defer p.Close()
	name, svg := p.Keep(0, "SVG")
	if !strings.HasSuffix(name, ".svg") {
		t.Errorf("a picture is kept as %s", name)
	}
	if strings.Contains(string(svg), "var(") || !bytes.Contains(svg, []byte("stroke-width:")) {
		t.Errorf("the picture that is kept has not its looks: %.200s", svg)
	}
	for decoder := xml.NewDecoder(bytes.NewReader(svg)); ; {
		if _, err := decoder.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("what is kept as SVG is none: %v", err)
		}
	}
	name, data := p.Keep(0, "PNG")
	drawn, err := png.Decode(bytes.NewReader(data))
	if err != nil || !strings.HasSuffix(name, ".png") {
		t.Fatalf("%s is kept as PNG: %v", name, err)
	}
	if size := drawn.Bounds(); size.Dx() != 1440 || size.Dy() < 100 {
		t.Errorf("it is drawn %v large", size)
	}
	colours := map[[3]uint32]bool{}
	for y := drawn.Bounds().Min.Y; y < drawn.Bounds().Max.Y; y++ {
		for x := drawn.Bounds().Min.X; x < drawn.Bounds().Max.X; x++ {
			r, g, bl, _ := drawn.At(x, y).RGBA()
			colours[[3]uint32{r, g, bl}] = true
		}
	}
	if len(colours) < 20 {
		t.Errorf("it is drawn with %d colours", len(colours))
	}
	for _, one := range p.Complaints() {
		t.Errorf("the browser says %s", one)
	}
	if asked := p.Asked(); len(asked) > 0 {
		t.Errorf("keeping a picture asks for %q", asked)
	}
}

// CheckGreed makes sure that a page's own policy, and this check, stop a page that
// asks for something outside and one that runs a script that is not its own.
func (b *Browser) CheckGreed(t *testing.T, file string) {
	t.Helper()
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for what, greedy := range map[string]string{
		"asks outside":         `<img src="http://outside.invalid/a.png">`,
		"runs another script":  `<script>document.title = "taken"</script>`,
		"runs what it is told": `<img src="data:," onerror="document.title = 'taken'">`,
	} {
		path := filepath.Join(t.TempDir(), "greedy.html")
		if err := os.WriteFile(path, bytes.Replace(page, []byte("<main>"), []byte("<main>"+greedy), 1), 0o600); err != nil {
			t.Fatal(err)
		}
		p := b.Open(path)
		if len(p.Complaints()) == 0 {
			t.Errorf("nobody complains of a page that %s", what)
		}
		var title string
		if p.Ask("document.title", &title); title == "taken" {
			t.Errorf("the browser obeys a page that %s", what)
		}
		p.Close()
	}
}
