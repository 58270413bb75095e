// Package sheettest looks at pages as people do: in a real browser, without a
// window. It speaks the browser's own protocol over two pipes, so that nothing
// listens anywhere.
package sheettest

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience is how long any one answer may take: a browser that begins on a busy
// host reads hundreds of megabytes first.
const patience = 90 * time.Second

// Browser is one that runs until the test ends.
type Browser struct {
	t   testing.TB
	out *os.File // to the browser
	end chan struct{}

	mu      sync.Mutex
	number  int
	answers map[int]chan message
	events  []message
	news    chan struct{} // closed and made anew with each event
}

// message is a call, an answer or an event.
type message struct {
	ID      int             `json:"id,omitempty"`
	Session string          `json:"sessionId,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  any             `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   *struct {
		Message string `json:"message"`
	} `json:"error,omitempty"`
	raw json.RawMessage // of an event, its parameters
}

// Start begins a browser, or skips the test where Chromium is not installed.
func Start(t testing.TB) *Browser {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("chromium is not installed")
	}
	home, err := os.MkdirTemp("", "browser") //nolint:usetesting // its children may write a little longer than the test lasts
	if err != nil {
		t.Fatal(err)
	}
	theirs, ours := pipe(t), pipe(t)
	// The sandbox wants user name spaces or a user that is not root.
	browser := exec.Command(path, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", //nolint:noctx // ended below, when its children may have their end too
		"--remote-debugging-pipe", "--user-data-dir="+filepath.Join(home, "profile"), "--no-first-run", "--no-default-browser-check",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-default-apps", "--disable-breakpad", "--disable-crash-reporter",
		"--disable-extensions", "--mute-audio", "--host-resolver-rules=MAP * ~NOTFOUND", "about:blank")
	browser.Env = append(os.Environ(), "HOME="+home, "XDG_CONFIG_HOME="+home, "XDG_CACHE_HOME="+home, "XDG_RUNTIME_DIR="+home)
	browser.ExtraFiles = []*os.File{theirs.read, ours.write}
	browser.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := browser.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.read.Close()
	ours.write.Close()
	b := &Browser{t: t, out: theirs.write, end: make(chan struct{}), answers: map[int]chan message{}, news: make(chan struct{})}
	go b.listen(ours.read)
	t.Cleanup(func() {
		_ = syscall.Kill(-browser.Process.Pid, syscall.SIGKILL)
		_ = browser.Wait()
		b.out.Close()
		<-b.end
		ours.read.Close()
		// Children that are on their way out may still write.
		for deadline := time.Now().Add(10 * time.Second); os.RemoveAll(home) != nil && time.Now().Before(deadline); {
			<-time.After(50 * time.Millisecond)
		}
	})
	return b
}

type pipes struct{ read, write *os.File }

func pipe(t testing.TB) pipes {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	return pipes{r, w}
}

// listen takes what the browser says until it ends.
func (b *Browser) listen(from io.Reader) {
	defer close(b.end)
	in := bufio.NewReader(from)
	for {
		text, err := in.ReadBytes(0)
		if err != nil {
			return
		}
		var m message
		var params struct{ Params json.RawMessage }
		if json.Unmarshal(text[:len(text)-1], &m) != nil || json.Unmarshal(text[:len(text)-1], &params) != nil {
			continue
		}
		m.raw = params.Params
		b.mu.Lock()
		if m.ID != 0 {
			if waits := b.answers[m.ID]; waits != nil {
				waits <- m
			}
		} else {
			b.events = append(b.events, m)
			close(b.news)
			b.news = make(chan struct{})
		}
		b.mu.Unlock()
	}
}

// call has the browser do something, and gives its answer in into, if that is not
// nil.
func (b *Browser) call(session, method string, params, into any) {
	b.t.Helper()
	b.mu.Lock()
	b.number++
	number, answer := b.number, make(chan message, 1)
	b.answers[number] = answer
	b.mu.Unlock()
	text, err := json.Marshal(message{ID: number, Session: session, Method: method, Params: params})
	if err == nil {
		_, err = b.out.Write(append(text, 0))
	}
	if err != nil {
		b.t.Fatalf("cannot ask the browser for %s: %v", method, err)
	}
	select {
	case m := <-answer:
		if m.Error != nil {
			b.t.Fatalf("%s: the browser says %s", method, m.Error.Message)
		}
		if into != nil {
			if err := json.Unmarshal(m.Result, into); err != nil {
				b.t.Fatalf("%s: %v", method, err)
			}
		}
	case <-b.end:
		b.t.Fatalf("the browser ended before it answered %s", method)
	case <-time.After(patience):
		b.t.Fatalf("the browser has not answered %s for %s", method, patience)
	}
}

// await waits until a session was told of something that is wanted.
func (b *Browser) await(session, method string, wanted func(json.RawMessage) bool) {
	b.t.Helper()
	late := time.After(patience)
	for {
		b.mu.Lock()
		news := b.news
		b.mu.Unlock()
		if slices.ContainsFunc(b.told(session, method), wanted) {
			return
		}
		select {
		case <-news:
		case <-time.After(200 * time.Millisecond): // what is wanted may be a file, too
		case <-b.end:
			b.t.Fatalf("the browser ended before %s", method)
		case <-late:
			b.t.Fatalf("the browser has not come to %s for %s", method, patience)
		}
	}
}

// told gives the events of a session so far, of one kind.
func (b *Browser) told(session, method string) (all []json.RawMessage) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range b.events {
		if m.Session == session && m.Method == method {
			all = append(all, m.raw)
		}
	}
	return all
}
