package operation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// The model: a world of effects that steps make and undo, a daemon that is cut
// off anywhere, and a world where the process and the boot end. In every case
// an operation is done as a whole or not at all in the end.

// plan is the payload of an operation of the model.
type plan struct {
	Name     string
	Lives    []Lifetime
	Decisive int // len(Lives): no step is
	Probed   bool
	Waits    int // the step that waits; -1: no step does

	w *world
}

func (p *plan) effect(i int) string { return fmt.Sprintf("%s.%d", p.Name, i) }

func (p *plan) Steps() (all []Step) {
	for i, life := range p.Lives {
		s := Step{
			Name: fmt.Sprint(i), Effect: life, Decisive: i == p.Decisive, Waits: i == p.Waits,
			Do:   func(context.Context) error { return p.w.do(p, i) },
			Undo: func(context.Context) error { return p.w.undo(p, i) },
		}
		if s.Decisive && p.Probed {
			s.Probe = func(_ context.Context, gone Gone) (Verdict, error) { return p.w.probe(p, gone) }
		}
		all = append(all, s)
	}
	return all
}

// cut is the panic that kills the daemon of the model.
type cut struct{}

// answer is how a step ends.
type answer int

const (
	obeys answer = iota
	refuses
	silentAndDone    // no answer comes, and it was carried out
	silentAndIgnored // no answer comes, and it was not
)

var (
	errRefused = errors.New("refused")
	errSilent  = errors.New("no answer")
	errJammed  = errors.New("the record stays")
)

// world is the state that outlives the daemon.
type world struct {
	effects map[string]Lifetime
	records map[string]Record
	boot    string
	process bool
	// event lets waiting steps end.
	event bool
	// next is how the next steps end; empty: they succeed.
	next []answer
	// die is after how many points the daemon is cut off; 0: never.
	die int
	// undone lists the effects that were undone, in that order.
	undone []string
	// jam is how many records cannot be removed.
	jam int
}

func newWorld() *world {
	return &world{effects: map[string]Lifetime{}, records: map[string]Record{}, boot: "1", process: true}
}

func (w *world) point() {
	if w.die > 0 {
		if w.die--; w.die == 0 {
			panic(cut{})
		}
	}
}

func (w *world) answer() answer {
	if len(w.next) == 0 {
		return obeys
	}
	a := w.next[0]
	w.next = w.next[1:]
	return a
}

func (w *world) do(p *plan, i int) error {
	w.point()
	if p.Lives[i] == Process && !w.process {
		return errSilent
	}
	if i == p.Waits && !w.event {
		return ErrWaiting
	}
	switch a := w.answer(); {
	case a == refuses:
		return errRefused
	case a == silentAndIgnored && p.Lives[i] == Process:
		return errSilent
	case a == silentAndDone && p.Lives[i] == Process:
		w.effects[p.effect(i)] = p.Lives[i]
		return errSilent
	}
	w.effects[p.effect(i)] = p.Lives[i]
	w.point()
	return nil
}

func (w *world) undo(p *plan, i int) error {
	w.point()
	if p.Lives[i] == Process && !w.process {
		return errSilent
	}
	if a := w.answer(); a != obeys {
		return errSilent
	}
	delete(w.effects, p.effect(i))
	w.undone = append(w.undone, p.effect(i))
	w.point()
	return nil
}

func (w *world) probe(p *plan, gone Gone) (Verdict, error) {
	w.point()
	if gone == Nothing && !w.process || w.answer() == silentAndIgnored {
		return Never, errSilent
	}
	if _, made := w.effects[p.effect(p.Decisive)]; made {
		return Happened, nil
	}
	for i := range max(p.Waits, 0) {
		if _, made := w.effects[p.effect(i)]; !made {
			return Never, nil
		}
	}
	if p.Waits >= 0 && w.process {
		return NotYet, nil
	}
	return Never, nil
}

// Write and Remove make the world its own journal.
func (w *world) Write(r Record) error {
	w.point()
	w.records[r.ID] = r
	w.point()
	return nil
}

func (w *world) Remove(r Record) error {
	w.point()
	if w.jam > 0 {
		w.jam--
		return errJammed
	}
	delete(w.records, r.ID)
	w.point()
	return nil
}

// lose ends the process, or the boot.
func (w *world) lose(gone Gone) {
	w.process = gone == Nothing
	maps.DeleteFunc(w.effects, func(_ string, l Lifetime) bool { return !l.outlives(gone) })
	if gone == TheBoot {
		w.boot += "+"
	}
}

// daemon is one life of the daemon.
type daemon struct {
	*Set[*world]
	w *world
}

func (w *world) daemon(t failer) *daemon {
	life, end := context.WithCancelCause(context.Background())
	end(nil) // so that only the model retries owed steps
	var records []Record
	for _, id := range slices.Sorted(maps.Keys(w.records)) {
		records = append(records, w.records[id])
	}
	s, err := Open(Config[*world]{
		Owner: w, Kinds: Kinds[*world]{{Name: "plan", Version: 1, Bind: func(w *world) Work { return &plan{w: w} }}},
		Stored: w, Boot: w.boot, Log: slog.New(slog.DiscardHandler), Life: life,
		Unanswered: func(err error) bool { return errors.Is(err, errSilent) },
	}, records)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return &daemon{s, w}
}

type failer interface{ Fatalf(string, ...any) }

// lives reports whether the daemon survived do; false means that it was cut off.
func lives(do func()) (alive bool) {
	defer func() {
		if r := recover(); r != nil {
			if _, is := r.(cut); !is {
				panic(r)
			}
			alive = false
		}
	}()
	do()
	return true
}

// settle does for a daemon what its owner's loop would do.
func (d *daemon) settle() {
	ctx := context.Background()
	if d.w.process {
		_ = d.Recover(ctx)
	} else {
		_ = d.End(ctx, TheProcess)
	}
	for _, op := range d.Operations() {
		op.retryOnce(ctx)
	}
}

// told is the answer that a client received.
type told struct {
	p        *plan
	answered bool
	err      error
}

func (d *daemon) begin(c *told) {
	op, err := d.Begin(scope.Daemon("a test"), "plan", c.p, Record{})
	if err == nil {
		err = op.Run(context.Background())
		if op.Status().State == Waiting {
			return
		}
	}
	c.answered, c.err = true, err
}

// judge returns the faults of the world after all operations have ended.
func (w *world) judge(c *told, begunIn string) string {
	_, decided := w.effects[c.p.effect(c.p.Decisive)]
	var there, missing []int
	for i, life := range c.p.Lives {
		_, made := w.effects[c.p.effect(i)]
		switch {
		case made:
			there = append(there, i)
		case w.outlived(life, begunIn):
			missing = append(missing, i)
		}
	}
	switch {
	case len(there) > 0 && len(missing) > 0:
		return fmt.Sprintf("steps %v are made and %v are not (decided: %v)", there, missing, decided)
	case c.answered && c.err == nil && len(missing) > 0:
		return fmt.Sprintf("its client was told that it is done, and steps %v are not", missing)
	case c.answered && errors.Is(c.err, errRefused) && !errors.Is(c.err, errSilent) && len(there) > 0 && !c.mayBeDone():
		return fmt.Sprintf("its client was told that it is refused, and steps %v are made", there)
	}
	return ""
}

// mayBeDone reports whether a refusal may come after the decisive step: it is tried again then.
func (c *told) mayBeDone() bool { return c.p.Decisive < len(c.p.Lives)-1 || c.p.Decisive == 0 }

func (w *world) outlived(l Lifetime, begunIn string) bool {
	switch {
	case w.boot != begunIn:
		return l.outlives(TheBoot)
	case !w.process:
		return l.outlives(TheProcess)
	}
	return true
}

// consistent reports whether the decisive step lasts as long as those after it.
func consistent(p *plan) bool {
	if p.Waits > p.Decisive || p.Waits >= 0 && (p.Decisive >= len(p.Lives) || !p.Probed) {
		return false
	}
	if p.Probed && p.Decisive >= len(p.Lives) {
		return false
	}
	if p.Decisive < len(p.Lives) {
		return !slices.ContainsFunc(p.Lives[p.Decisive:], func(l Lifetime) bool { return l > p.Lives[p.Decisive] })
	}
	return true
}

func TestModel_AllOrNothing(t *testing.T) {
	plans := shortPlans(4)
	for range 40 { // rapid's own number of tries is for slower properties
		rapid.Check(t, func(t *rapid.T) { doneOrNot(t, plans) })
	}
}

func doneOrNot(t *rapid.T, plans []plan) {
	w := newWorld()
	var clients []*told
	for i := range rapid.IntRange(1, 3).Draw(t, "operations") {
		p := rapid.SampledFrom(plans).Draw(t, "plan")
		p.w, p.Name = w, fmt.Sprint("op", i)
		clients = append(clients, &told{p: &p})
	}
	d := w.daemon(t)
	begun := 0
	for range rapid.IntRange(1, 12).Draw(t, "moves") {
		w.next = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) answer { return answer(rapid.IntRange(0, 3).Draw(t, "a")) }), 0, 6).Draw(t, "answers")
		w.die = rapid.IntRange(0, 20).Draw(t, "die")
		w.jam = max(0, rapid.IntRange(-4, 2).Draw(t, "jam"))
		alive := true
		switch move := rapid.IntRange(0, 6).Draw(t, "move"); {
		case move <= 1 && begun < len(clients) && w.process && w.boot == "1":
			begun++
			alive = lives(func() { d.begin(clients[begun-1]) })
		case move == 2:
			w.event = true
			alive = lives(func() {
				for _, op := range d.Operations() {
					_ = op.Run(context.Background())
				}
			})
		case move == 3:
			alive = lives(d.settle)
		case move == 4:
			alive = lives(func() {
				for _, op := range d.Operations() {
					_, _ = op.Abort(context.Background(), errRefused)
				}
			})
		case move == 5:
			w.lose(TheProcess)
		case move == 6 && begun > 0:
			w.lose(TheBoot)
			alive = false
		}
		if !alive {
			d = w.daemon(t)
		}
	}
	// The world heals: all open operations end.
	w.die, w.jam, w.next, w.event = 0, 0, nil, true
	d = w.daemon(t)
	for range 4 {
		d.settle()
		for _, op := range d.Operations() {
			_ = op.Run(context.Background())
		}
	}
	if len(w.records) > 0 || len(d.Operations()) > 0 {
		t.Fatalf("%d operations are open still, %d records are left", len(d.Operations()), len(w.records))
	}
	for _, c := range clients {
		if wrong := w.judge(c, "1"); wrong != "" {
			t.Fatalf("%s %+v: %s", c.p.Name, *c.p, wrong)
		}
	}
}

// TestModel_EveryCut cuts each short operation off at every
// point, and once more at every point of its recovery.
func TestModel_EveryCut(t *testing.T) {
	cuts := 0
	for _, p := range shortPlans(3) {
		for first := 1; first < 40; first++ {
			for second := 0; second < 20; second += max(1, 2*len(p.Lives)-3) {
				for _, gone := range []Gone{Nothing, TheProcess, TheBoot} {
					wrong, died := cutTwice(t, p, first, second, gone)
					if wrong != "" {
						t.Fatalf("%+v, cut at %d, in its recovery at %d, gone %d: %s", p, first, second, gone, wrong)
					}
					cuts++
					if !died {
						first, second = 40, 20
						break
					}
				}
			}
		}
	}
	t.Logf("%d cuts of %d operations", cuts, len(shortPlans(3)))
}

// TestModel_RecordStays: a record that could not be removed must not make the next daemon undo
// an operation that its client was told is done.
func TestModel_RecordStays(t *testing.T) {
	for _, p := range shortPlans(3) {
		for jam := range 6 {
			w := newWorld()
			w.event, w.jam, p.w = true, 1+jam/2, w
			if jam%2 == 1 {
				w.next = []answer{refuses}
			}
			c := &told{p: &p}
			d := w.daemon(t)
			d.begin(c)
			if len(w.records) > 0 && d.Operations()[0].Status().State != Owed {
				t.Fatalf("%+v: the record is there, and nobody tries again", p)
			}
			w.daemon(t).settle()
			if w.jam = 0; len(w.records) > 0 {
				w.daemon(t).settle()
			}
			if wrong := w.judge(c, "1"); wrong != "" || len(w.records) > 0 {
				t.Fatalf("%+v: %d records are left; %s", p, len(w.records), wrong)
			}
		}
	}
}

func shortPlans(longest int) (all []plan) {
	for n := 1; n <= longest; n++ {
		for code := range pow(3, n) {
			lives := make([]Lifetime, n)
			for i := range lives {
				lives[i] = Lifetime(code / pow(3, i) % 3)
			}
			for decisive := range n + 1 {
				for waits := -1; waits <= decisive && waits < n; waits++ {
					for _, probed := range []bool{false, true} {
						p := plan{Name: "op", Lives: lives, Decisive: decisive, Probed: probed, Waits: waits}
						if consistent(&p) {
							all = append(all, p)
						}
					}
				}
			}
		}
	}
	return all
}

func pow(base, n int) int {
	r := 1
	for range n {
		r *= base
	}
	return r
}

func cutTwice(t *testing.T, p plan, first, second int, gone Gone) (wrong string, died bool) {
	w := newWorld()
	w.event, w.die, p.w = true, first, w
	c := &told{p: &p}
	died = !lives(func() { w.daemon(t).begin(c) })
	w.lose(gone)
	w.die, w.event = second, false
	d := w.daemon(t)
	if !lives(d.settle) {
		w.die = 0
		d = w.daemon(t)
		d.settle()
	}
	for i := range p.Lives { // a waiting step has had no effect on later steps
		if _, made := w.effects[p.effect(i)]; made && len(w.records) > 0 && i > p.Waits {
			return fmt.Sprintf("it waits at step %d, and step %d is made", p.Waits, i), died
		}
	}
	w.event, w.die = true, 0
	d.settle()
	if len(w.records) > 0 {
		return "a record is left", died
	}
	return w.judge(c, "1"), died
}

func TestRecord_KeepsPayload(t *testing.T) {
	w := newWorld()
	d := w.daemon(t)
	p := &plan{w: w, Name: "op", Lives: []Lifetime{Process, Process}, Decisive: 1, Probed: true, Waits: 0}
	if _, err := d.Begin(scope.Daemon("a test"), "plan", p, Record{Objects: []string{"disk/vda"}}); err != nil {
		t.Fatal(err)
	}
	again := w.daemon(t).Operations()
	if len(again) != 1 || again[0].Status().State != Unanswered || !slices.Equal(again[0].Objects(), []string{"disk/vda"}) {
		t.Fatalf("the next daemon has %+v", again)
	}
	got, _ := json.Marshal(again[0].Work())
	want, _ := json.Marshal(p)
	if string(got) != string(want) {
		t.Errorf("its payload is %s, want %s", got, want)
	}
}

// apart returns a daemon with PerObject set: its owner has many objects.
func (w *world) apart(t failer) *daemon {
	d := w.daemon(t)
	d.PerObject = true
	return d
}

// owedOf returns an operation on two objects that cannot be undone now.
func (d *daemon) owedOf(t *testing.T, objects ...string) *Operation {
	t.Helper()
	op, err := d.Begin(scope.Daemon("a test"), "plan", &plan{w: d.w, Name: "old", Lives: []Lifetime{Lasting, Lasting}, Decisive: 2, Waits: -1}, Record{Objects: objects})
	if err != nil {
		t.Fatal(err)
	}
	d.w.next = []answer{obeys, refuses, obeys, refuses}
	if err := op.Run(t.Context()); !errors.Is(err, errRefused) || op.Status().State != Owed {
		t.Fatalf("it is %v: %v", op.Status().State, err)
	}
	return op
}

func TestPerObject_OwedLeavesItsObjects(t *testing.T) {
	w := newWorld()
	d := w.apart(t)
	old := d.owedOf(t, "volume/a", "volume/b")
	next := func(objects ...string) error {
		_, err := d.Begin(scope.Daemon("a test"), "plan", &plan{w: w, Name: "new", Lives: []Lifetime{Lasting}, Decisive: 1, Waits: -1}, Record{Objects: objects})
		return err
	}
	if err := next("volume/b", "volume/c"); err != nil {
		t.Fatal(err)
	}
	if got := old.Objects(); !slices.Equal(got, []string{"volume/a"}) || !slices.Equal(w.records[old.ID()].Objects, got) || old.Has("volume/b") {
		t.Errorf("it has %v, and its record says %v", got, w.records[old.ID()].Objects)
	}
	if err := next("volume/d"); err != nil {
		t.Errorf("another object: %v", err)
	}
	var conflict *Conflict
	if err := next("volume/c"); !errors.As(err, &conflict) || conflict.With.State != Running {
		t.Errorf("an object that is worked on: %v", err)
	}
}

// TestPerObject_RecoversNewestFirst: a later effect may depend on an earlier one.
func TestPerObject_RecoversNewestFirst(t *testing.T) {
	w := newWorld()
	d := w.apart(t)
	for i := range 3 {
		p := &plan{w: w, Name: fmt.Sprint(i), Lives: []Lifetime{Lasting}, Decisive: 1, Waits: -1}
		if _, err := d.Begin(scope.Daemon("a test"), "plan", p, Record{Objects: []string{p.Name}}); err != nil {
			t.Fatal(err)
		}
	}
	for _, op := range d.Operations() {
		op.setState(Unanswered, "", nil)
	}
	if err := d.Recover(t.Context()); err != nil || !slices.Equal(w.undone, []string{"2.0", "1.0", "0.0"}) {
		t.Errorf("they were undone in the order %v, %v", w.undone, err)
	}
}

// TestBegin_Concurrently: of several clients that begin at once, one gets the object.
func TestBegin_Concurrently(t *testing.T) {
	d := newWorld().apart(t)
	d.Stored = &lockedJournal{Journal: d.w}
	begun := make(chan error)
	for i := range 8 {
		go func() {
			_, err := d.Begin(scope.Daemon("a test"), "plan", &plan{w: d.w, Name: fmt.Sprint(i), Lives: []Lifetime{Lasting}, Decisive: 1, Waits: -1}, Record{Objects: []string{"volume/a"}})
			begun <- err
		}()
	}
	n := 0
	for range 8 {
		if <-begun == nil {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d have it", n)
	}
}

// lockedJournal is a journal for concurrent use.
type lockedJournal struct {
	Journal
	mu sync.Mutex
}

func (l *lockedJournal) Write(r Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Journal.Write(r)
}

// TestCheckConflict: an action without an operation is judged like one of its class, and leaves no record.
func TestCheckConflict(t *testing.T) {
	d := newWorld().daemon(t)
	d.Kinds = Kinds[*world]{{Name: "plan", Version: 1, Class: DiskJob, Bind: d.Kinds[0].Bind}}
	if err := d.CheckConflict(Move); err != nil {
		t.Errorf("nothing is open: %v", err)
	}
	if _, err := d.Begin(scope.Daemon("a test"), "plan", &plan{w: d.w, Name: "job", Lives: []Lifetime{Lasting}, Decisive: 1, Waits: -1}, Record{Objects: []string{"disk/a"}}); err != nil {
		t.Fatal(err)
	}
	var conflict *Conflict
	if err := d.CheckConflict(Move); !errors.As(err, &conflict) || conflict.Admission != Refuse {
		t.Errorf("a move beside a disk job: %v", err)
	}
	if err := d.CheckConflict(Change, "disk/b"); err != nil {
		t.Errorf("another disk: %v", err)
	}
	if err := d.CheckConflict(Change, "disk/a"); !errors.As(err, &conflict) || conflict.Admission != Refuse {
		t.Errorf("that disk: %v", err)
	}
	if n := len(d.Operations()); n != 1 {
		t.Errorf("%d are open", n)
	}
}
