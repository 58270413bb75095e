package memsim

import (
	"bufio"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// seedPattern keeps a seed from naming another folder.
var seedPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9.-]{0,63}$`)

// Generate writes one trace of each recipe to a folder, as SEEDnn-KIND.jsonl.gz, and gives the files' names. The same
// seed gives the same traces.
//
// The recipes and their ranges are the reference generator's; the random source is ChaCha8 instead of Python's, so the
// traces of one seed differ from the reference's. All of them are synthetic.
func Generate(folder, seed string) ([]string, error) {
	if !seedPattern.MatchString(seed) {
		return nil, invalid("seed %q is not a word of letters, digits, dots and dashes", seed)
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, fault.Wrap(err, fault.Failed, fault.Call, "cannot make the folder of the traces")
	}
	files := make([]string, len(recipes))
	for k, recipe := range recipes {
		g := newGenerator(fmt.Sprintf("%s%d", seed, k+1), recipe.kind)
		recipe.make(g)
		files[k] = filepath.Join(folder, fmt.Sprintf("%s%02d-%s.jsonl.gz", seed, k+1, recipe.kind))
		if err := g.write(files[k]); err != nil {
			return nil, fault.Wrap(err, fault.Failed, fault.Call, "cannot write trace %q", files[k])
		}
	}
	return files, nil
}

// generator makes one trace.
type generator struct {
	*rand.Rand
	host    Host
	guests  []*Guest
	demands []demand
}

// Ranges of the guests' and hosts' parameters.
const (
	usualDuration         = 3600 // s
	leastWork, mostWork   = 64, .90
	mostUse               = .95 // working set and cache together, as a share of a guest's size
	ramUnit               = 1024
	leastFill, mostFill   = .1, 4
	reportingShare        = .8
	autoDeflateShare      = .3
	stallsShare, ksmShare = .5, .25
	ksmTau                = 600 // s
)

var (
	guestSizes  = []float64{2048, 4096, 4096, 8192, 8192, 16384}
	guestShares = []float64{500, 1000, 1000, 1000, 2000}
	swapShares  = []float64{.1, .25, .5}
	statPeriods = []int{2, 2, 5}
	statDelays  = []int{0, 1, 2}
	labels      = []string{"a", "a", "b"}
)

func newGenerator(name, kind string) *generator {
	return &generator{
		Rand: rand.New(rand.NewChaCha8(sha256.Sum256([]byte("memsim-" + name)))),
		host: Host{
			Type: "host", Version: 1, Name: name, Kind: kind, Half: "dev", Duration: usualDuration,
			Steady: [][2]int{}, Steps: []int{},
		},
	}
}

// uniform draws from [low, high).
func (g *generator) uniform(low, high float64) float64 { return low + (high-low)*g.Float64() }

// exponential draws with a mean.
func (g *generator) exponential(mean float64) float64 { return g.ExpFloat64() * mean }

// normal draws with mean 0 and a deviation.
func (g *generator) normal(deviation float64) float64 { return g.NormFloat64() * deviation }

// chance is true with probability p.
func (g *generator) chance(p float64) bool { return g.Float64() < p }

func pick[T any](g *generator, from []T) T { return from[g.IntN(len(from))] }

// guest adds a guest of a size; 0 draws one. The recipe may change it until it gives the guest its demand.
func (g *generator) guest(size float64) *Guest {
	if size == 0 {
		size = pick(g, guestSizes)
	}
	guest := &Guest{
		Type: "guest", Name: fmt.Sprintf("g%02d", len(g.guests)), Max: size, Current: size,
		Floor: math.Floor(size * g.uniform(.12, .25)), Shares: pick(g, guestShares), EndsAt: g.host.Duration,
		Coop: cooperates, Inflate: math.Round(g.uniform(60, 400)), Deflate: math.Round(g.uniform(300, 1200)),
		StatPeriod: pick(g, statPeriods), StatDelay: pick(g, statDelays), Honest: true,
		Alpha: round(g.uniform(10, 30), 2), Beta: round(g.uniform(1.2, 2), 2),
		Gamma: round(g.uniform(.2, .6), 2), Delta: round(g.uniform(1.5, 2.5), 2),
		Swap: math.Floor(size * pick(g, swapShares)), SwapRate: math.Round(g.uniform(30, 150)),
		Fill:      round(math.Exp(g.uniform(math.Log(leastFill), math.Log(mostFill))), 2),
		Reporting: g.chance(reportingShare), AutoDeflate: g.chance(autoDeflateShare), Stalls: g.chance(stallsShare),
		Touch: round(g.uniform(.5, .95), 2), Jitter: round(g.uniform(.002, .012), 4), Label: pick(g, labels),
	}
	g.guests = append(g.guests, guest)
	return guest
}

// curve is a guest's demand in the making: points [second, working set, cache], in any order.
type curve [][3]float64

func (c *curve) add(second, work, cache float64) { *c = append(*c, [3]float64{second, work, cache}) }

// last is the working set and the cache of the last point.
func (c curve) last() (work, cache float64) {
	p := c[len(c)-1]
	return p[1], p[2]
}

// sortCurve puts points of one second behind each other as they were added.
func sortCurve(points curve) {
	slices.SortStableFunc(points, func(a, b [3]float64) int { return cmp.Compare(math.Floor(a[0]), math.Floor(b[0])) })
}

// demand gives a guest its demand, within what the guest can hold.
func (g *generator) demand(guest *Guest, points curve) {
	sortCurve(points)
	whole := make([][3]float64, len(points))
	for i, p := range points {
		work := max(leastWork, min(p[1], mostWork*guest.Max))
		cache := max(0, min(p[2], mostUse*guest.Max-work))
		whole[i] = [3]float64{math.Floor(p[0]), math.Floor(work), math.Floor(cache)}
	}
	g.demands = append(g.demands, demand{Type: "demand", Name: guest.Name, Points: whole})
}

// write sizes the host by its guests, and writes the trace.
func (g *generator) write(name string) error {
	all := 0.0
	for _, guest := range g.guests {
		all += guest.Max
	}
	ram := math.Floor(all * g.uniform(.5, .7))
	ram -= math.Mod(ram, ramUnit)
	g.host.RAM, g.host.Reserved = ram, math.Floor(ram*g.uniform(.02, .05))
	g.host.Swap, g.host.SwapRate = math.Floor(ram*g.uniform(.1, .3)), math.Round(g.uniform(300, 1000))
	if g.chance(ksmShare) {
		g.host.KSM = &KSM{Share: round(g.uniform(.03, .12), 3), Tau: ksmTau}
	}
	g.host.Seed = uint64(g.Int32())
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	defer file.Close()
	packed := gzip.NewWriter(file)
	buffered := bufio.NewWriter(packed)
	lines := json.NewEncoder(buffered)
	err = lines.Encode(g.host)
	for _, guest := range g.guests {
		if err == nil {
			err = lines.Encode(guest)
		}
	}
	for _, d := range g.demands {
		if err == nil {
			err = lines.Encode(d)
		}
	}
	if err == nil {
		err = buffered.Flush()
	}
	if err == nil {
		err = packed.Close()
	}
	if err == nil {
		err = file.Close()
	}
	return err
}
