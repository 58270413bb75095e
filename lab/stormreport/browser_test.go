package stormreport

import (
	"context"
	"image/color"
	"image/png"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestABrowserShowsThePage opens the page in Chromium, on light and on dark paper
// and in a narrow window. The page forbids itself to ask anything of anybody, so
// that a browser complains where it tries; the test's server is also the
// browser's proxy, and what the browser asks for by itself goes no further.
func TestABrowserShowsThePage(t *testing.T) {
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("chromium is not installed")
	}
	html := invented(t)
	var mu sync.Mutex
	var asked []string
	var address string
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		page := html
		switch {
		case r.Host != address:
			http.Error(w, "there is nobody outside", http.StatusForbidden)
			return
		case r.URL.Path == "/greedy.html":
			page = strings.Replace(html, "<main>", `<main><img src="http://outside.invalid/a.png">`, 1)
		case r.URL.Path != "/report.html":
			mu.Lock()
			asked = append(asked, r.URL.Path)
			mu.Unlock()
		}
		_, _ = w.Write([]byte(page)) // the picture shows it if this fails
	}))
	address = server.Listener.Addr().String()
	server.Start()
	defer server.Close()
	for _, c := range []struct {
		name, scheme, size string
		paper              color.RGBA
	}{
		{"light", "1", "1100,3000", color.RGBA{0xff, 0xff, 0xff, 0xff}},
		{"dark", "0", "1100,3000", color.RGBA{0x14, 0x18, 0x1d, 0xff}},
		{"narrow", "1", "400,3000", color.RGBA{0xff, 0xff, 0xff, 0xff}},
	} {
		t.Run(c.name, func(t *testing.T) {
			picture, complaints := photograph(t, chromium, address, "report.html", c.scheme, c.size)
			for _, one := range complaints {
				t.Errorf("the browser says %s", one)
			}
			if got := picture[c.paper]; got < 500_000 {
				t.Errorf("%d pixels of paper", got)
			}
			// Axes' words, lines and bars: a page of words alone has far fewer colours.
			if len(picture) < 100 {
				t.Errorf("%d colours", len(picture))
			}
		})
	}
	if _, complaints := photograph(t, chromium, address, "greedy.html", "1", "400,400"); len(complaints) == 0 {
		t.Error("nobody complains of a page that asks for something outside")
	}
	mu.Lock()
	defer mu.Unlock()
	if len(asked) > 0 {
		t.Errorf("the page asked for %s", asked)
	}
}

// photograph counts the pixels of each colour of a page, and gives what the
// browser had to say of it.
func photograph(t *testing.T, chromium, address, page, scheme, size string) (count map[color.RGBA]int, complaints []string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "page.png")
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	browser := exec.CommandContext(ctx, chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
		"--user-data-dir="+t.TempDir(), "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
		"--proxy-server="+address, "--enable-logging=stderr",
		"--blink-settings=preferredColorScheme="+scheme, "--window-size="+size, "--screenshot="+file, "http://"+address+"/"+page)
	said, err := browser.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	for l := range strings.Lines(string(said)) {
		if strings.Contains(l, "CONSOLE") {
			complaints = append(complaints, strings.TrimSpace(l))
		}
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	picture, err := png.Decode(f)
	if err != nil {
		t.Fatal(err)
	}
	count = map[color.RGBA]int{}
	b := picture.Bounds()
	for y := b.Min.Y; y < b.Max.Y; y++ {
		for x := b.Min.X; x < b.Max.X; x++ {
			count[color.RGBAModel.Convert(picture.At(x, y)).(color.RGBA)]++
		}
	}
	return count, complaints
}
