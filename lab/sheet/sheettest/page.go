package sheettest

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// View is how a page is looked at.
type View struct {
	Name  string
	Width int
	Dark  bool
	Paper bool // as it is printed
}

// Views are those that every page has to stand.
var Views = []View{
	{Name: "light", Width: 1100},
	{Name: "dark", Width: 1100, Dark: true},
	{Name: "narrow", Width: 400},
	{Name: "paper", Width: 720, Paper: true},
}

// Page is one that is open.
type Page struct {
	*Browser
	session string
	address string
}

// Open shows a file, as the first of Views has it.
func (b *Browser) Open(file string) *Page {
	b.t.Helper()
	var made struct{ TargetID, SessionID string }
	b.call("", "Target.createTarget", map[string]any{"url": "about:blank"}, &made)
	b.call("", "Target.attachToTarget", map[string]any{"targetId": made.TargetID, "flatten": true}, &made)
	p := &Page{b, made.SessionID, "file://" + file}
	for _, what := range []string{"Page.enable", "Runtime.enable", "Log.enable", "Network.enable"} {
		p.do(what, map[string]any{})
	}
	p.Show(Views[0])
	p.do("Page.navigate", map[string]any{"url": p.address})
	p.Ask(`new Promise(done => document.readyState === "complete" ? done() : addEventListener("load", () => done()))`, nil)
	return p
}

// Show has the page looked at in another way.
func (p *Page) Show(v View) {
	p.t.Helper()
	scheme, medium := "light", "screen"
	if v.Dark {
		scheme = "dark"
	}
	if v.Paper {
		medium = "print"
	}
	p.do("Emulation.setDeviceMetricsOverride", map[string]any{"width": v.Width, "height": 900, "deviceScaleFactor": 1, "mobile": false})
	p.do("Emulation.setEmulatedMedia", map[string]any{"media": medium, "features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}})
}

func (p *Page) do(method string, params map[string]any) {
	p.t.Helper()
	p.call(p.session, method, params, nil)
}

// Close shuts the page.
func (p *Page) Close() {
	p.t.Helper()
	p.do("Page.close", map[string]any{})
}

// Ask gives the value of an expression in the page.
func (p *Page) Ask(expression string, into any) {
	p.t.Helper()
	var answer struct {
		Result struct{ Value json.RawMessage }
		Wrong  *struct{ Text string } `json:"exceptionDetails"`
	}
	p.call(p.session, "Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true, "userGesture": true}, &answer)
	if answer.Wrong != nil {
		p.t.Fatalf("%s: %s", expression, answer.Wrong.Text)
	}
	if into != nil {
		if err := json.Unmarshal(answer.Result.Value, into); err != nil {
			p.t.Fatalf("%s gives %s: %v", expression, answer.Result.Value, err)
		}
	}
}

// Complaints are what the browser does not like in the page: errors, warnings, and
// what the page's own policy forbids it.
func (p *Page) Complaints() (all []string) {
	for _, method := range []string{"Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"} {
		for _, params := range p.told(p.session, method) {
			all = append(all, method+" "+string(params))
		}
	}
	return all
}

// Asked lists what the page has asked for, but for itself and what it holds.
func (p *Page) Asked() (all []string) {
	for _, params := range p.told(p.session, "Network.requestWillBeSent") {
		var sent struct{ Request struct{ URL string } }
		if err := json.Unmarshal(params, &sent); err != nil {
			p.t.Fatal(err)
		}
		if url := sent.Request.URL; url != p.address && !strings.HasPrefix(url, "data:") && !strings.HasPrefix(url, "blob:") {
			all = append(all, url)
		}
	}
	return all
}

// Look is what there is to be seen of a page.
type Look struct {
	Wide     int      // its width beyond the window's
	Pictures int      //
	Empty    []string // pictures without marks or without room
	Cut      []string // words that reach out of their picture
	Collide  []string // words of a picture that lie on each other
	Broken   []string // words of tables that go on in another line
	Ground   string   // colour
	Ink      string
}

const look = `(() => {
	const all = [...document.querySelectorAll("svg.plot")], empty = [], cut = [], collide = [];
	for (const svg of all) {
		const box = svg.getBoundingClientRect(), name = svg.querySelector("title").textContent;
		const marks = [...svg.querySelectorAll(".line,.fill,.pale,.dot,.cell,.band")].filter(m => { const b = m.getBBox(); return b.width + b.height > 0; });
		if (box.width < 200 || box.height < 40 || !marks.length) empty.push(name);
		for (const words of svg.querySelectorAll("text")) {
			const b = words.getBoundingClientRect();
			if (b.left < box.left - 2 || b.right > box.right + 2 || b.top < box.top - 2 || b.bottom > box.bottom + 2) cut.push(name + ": " + words.textContent);
		}
		// Slanted words have room around them that is not theirs.
		const upright = [...svg.querySelectorAll("text:not([transform])")].filter(t => t.textContent.trim()).map(t => ({words: t.textContent, box: t.getBoundingClientRect()}));
		const slack = 3 * box.width / 720; // letters do not fill their boxes
		for (let i = 0; i < upright.length; i++) for (let j = i + 1; j < upright.length; j++) {
			const a = upright[i].box, b = upright[j].box;
			if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > slack && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1.4 * slack) collide.push(name + ": " + upright[i].words + " on " + upright[j].words);
		}
	}
	const broken = [], range = document.createRange();
	for (const texts = document.createNodeIterator(document.querySelector("main"), NodeFilter.SHOW_TEXT); texts.nextNode();) {
		const text = texts.referenceNode;
		if (!text.parentElement.closest("th,td")) continue;
		for (const word of text.data.matchAll(/\p{L}+/gu)) {
			range.setStart(text, word.index);
			range.setEnd(text, word.index + word[0].length);
			const boxes = range.getClientRects();
			if (boxes.length > 1 && boxes[0].top != boxes[1].top) broken.push(word[0] + " of " + text.data);
		}
	}
	const body = getComputedStyle(document.body);
	return {Wide: document.documentElement.scrollWidth - document.documentElement.clientWidth, Pictures: all.length, Empty: empty, Cut: cut, Collide: collide, Broken: broken, Ground: body.backgroundColor, Ink: body.color};
})()`

// Look looks at the page.
func (p *Page) Look() (l Look) {
	p.t.Helper()
	p.Ask(look, &l)
	return l
}

// mostHigh is how much of a page is photographed: more the browser does not take.
const mostHigh = 16000

// Photograph keeps the page as a picture.
func (p *Page) Photograph(file string) {
	p.t.Helper()
	var size struct{ Wide, High float64 }
	p.Ask(`({Wide: document.documentElement.scrollWidth, High: document.documentElement.scrollHeight})`, &size)
	var made struct{ Data string }
	p.call(p.session, "Page.captureScreenshot", map[string]any{
		"format": "png", "captureBeyondViewport": true,
		"clip": map[string]any{"x": 0, "y": 0, "width": size.Wide, "height": min(size.High, mostHigh), "scale": 1},
	}, &made)
	data, err := base64.StdEncoding.DecodeString(made.Data)
	if err == nil {
		err = os.WriteFile(file, data, 0o644)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

// Keep presses a picture's button, and gives the file that comes of it.
func (p *Page) Keep(picture int, form string) (name string, content []byte) {
	p.t.Helper()
	dir := p.t.TempDir()
	p.call("", "Browser.setDownloadBehavior", map[string]any{"behavior": "allow", "downloadPath": dir, "eventsEnabled": true}, nil)
	p.Ask(fmt.Sprintf(`[...document.querySelectorAll(".keep")][%d].querySelectorAll("button")[%d].click()`, picture, map[string]int{"SVG": 0, "PNG": 1}[form]), nil)
	p.await("", "Browser.downloadProgress", func(params json.RawMessage) bool {
		var progress struct {
			State         string
			ReceivedBytes float64
		}
		return json.Unmarshal(params, &progress) == nil && progress.State == "completed" && isKept(dir, progress.ReceivedBytes)
	})
	files := kept(dir)
	if len(files) != 1 {
		p.t.Fatalf("%d files are kept", len(files))
	}
	content, err := os.ReadFile(files[0])
	if err != nil {
		p.t.Fatal(err)
	}
	return filepath.Base(files[0]), content
}

// isKept says whether a directory has one file, of so many bytes: what ends may be the download
// before this one, whose file is elsewhere.
func isKept(dir string, size float64) bool {
	files := kept(dir)
	if len(files) != 1 {
		return false
	}
	info, err := os.Stat(files[0])
	return err == nil && float64(info.Size()) == size
}

// kept are the files in a directory that are whole: the browser may take a moment to
// remove the one that it wrote before.
func kept(dir string) (whole []string) {
	files, _ := filepath.Glob(filepath.Join(dir, "*"))
	for _, file := range files {
		if filepath.Ext(file) != ".crdownload" {
			whole = append(whole, file)
		}
	}
	return whole
}
