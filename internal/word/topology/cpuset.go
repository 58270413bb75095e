package topology

import (
	"iter"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// MaxCPU is the highest number that a CPUSet takes, so that a hostile list or
// map costs at most two kilobytes.
const MaxCPU = 16383

// CPUSet is a set of small numbers: processors or cells. The zero value is the
// empty set. A copy shares its words with the original, so only the owner of a
// set under construction calls Add; everything else leaves its receiver alone.
type CPUSet struct {
	// words hold 64 numbers each; the last word is never zero.
	words []uint64
}

// CPUs returns the set of these numbers, each within 0 and MaxCPU.
func CPUs(numbers ...int) CPUSet {
	var s CPUSet
	for _, n := range numbers {
		s.Add(n)
	}
	return s
}

// Range returns the set of first to last, both included.
func Range(first, last int) CPUSet {
	var s CPUSet
	for n := first; n <= last; n++ {
		s.Add(n)
	}
	return s
}

// Add puts n into the set. It panics when n is out of bounds, which callers
// check where the number comes from.
func (s *CPUSet) Add(n int) {
	if n < 0 || n > MaxCPU {
		panic("topology: processor number " + strconv.Itoa(n) + " out of bounds")
	}
	for len(s.words) <= n/64 {
		s.words = append(s.words, 0)
	}
	s.words[n/64] |= 1 << (n % 64)
}

// Contains reports whether n is in the set.
func (s CPUSet) Contains(n int) bool {
	return n >= 0 && n/64 < len(s.words) && s.words[n/64]&(1<<(n%64)) != 0
}

// Len is how many numbers are in the set.
func (s CPUSet) Len() int {
	count := 0
	for _, w := range s.words {
		count += bits.OnesCount64(w)
	}
	return count
}

// IsEmpty reports whether the set has no number.
func (s CPUSet) IsEmpty() bool { return len(s.words) == 0 }

// Min is the lowest number in the set, or -1.
func (s CPUSet) Min() int {
	for n := range s.All() {
		return n
	}
	return -1
}

// Max is the highest number in the set, or -1.
func (s CPUSet) Max() int {
	if s.IsEmpty() {
		return -1
	}
	last := len(s.words) - 1
	return last*64 + 63 - bits.LeadingZeros64(s.words[last])
}

// All returns the numbers in ascending order.
func (s CPUSet) All() iter.Seq[int] {
	return func(yield func(int) bool) {
		for i, w := range s.words {
			for ; w != 0; w &= w - 1 {
				if !yield(i*64 + bits.TrailingZeros64(w)) {
					return
				}
			}
		}
	}
}

// Equal reports whether both sets have the same numbers.
func (s CPUSet) Equal(t CPUSet) bool { return slices.Equal(s.words, t.words) }

// IsSubset reports whether t has every number of s.
func (s CPUSet) IsSubset(t CPUSet) bool { return s.Minus(t).IsEmpty() }

// Union returns the numbers that are in either set.
func (s CPUSet) Union(t CPUSet) CPUSet {
	return combine(s, t, func(a, b uint64) uint64 { return a | b })
}

// Intersect returns the numbers that are in both sets.
func (s CPUSet) Intersect(t CPUSet) CPUSet {
	return combine(s, t, func(a, b uint64) uint64 { return a & b })
}

// Minus returns the numbers of s that are not in t.
func (s CPUSet) Minus(t CPUSet) CPUSet {
	return combine(s, t, func(a, b uint64) uint64 { return a &^ b })
}

func combine(s, t CPUSet, op func(a, b uint64) uint64) CPUSet {
	words := make([]uint64, max(len(s.words), len(t.words)))
	for i := range words {
		words[i] = op(s.word(i), t.word(i))
	}
	return CPUSet{trim(words)}
}

func (s CPUSet) word(i int) uint64 {
	if i >= len(s.words) {
		return 0
	}
	return s.words[i]
}

func trim(words []uint64) []uint64 {
	for len(words) > 0 && words[len(words)-1] == 0 {
		words = words[:len(words)-1]
	}
	return words
}

// ParseCPUSet reads the list syntax of the kernel and of libvirt: numbers and
// ranges between commas, where ^N removes N from the list before it, as in
// "0-3,^2,8". Blanks around the parts do not matter. The empty text is the
// empty set, as the kernel prints it.
func ParseCPUSet(list string) (CPUSet, error) {
	words := make([]uint64, 0, 4)
	if strings.TrimSpace(list) == "" {
		return CPUSet{}, nil
	}
	for part := range strings.SplitSeq(list, ",") {
		first, last, out, err := parsePart(strings.TrimSpace(part))
		if err != nil {
			return CPUSet{}, fault.Wrap(err, fault.Invalid, fault.Call, "cannot read processor list %.64q", list)
		}
		for len(words) <= last/64 {
			words = append(words, 0)
		}
		touched, head, tail := window(words, first, last)
		for i := range touched {
			mask := ^uint64(0)
			if i == 0 {
				mask &= head
			}
			if i == len(touched)-1 {
				mask &= tail
			}
			if out {
				touched[i] &^= mask
			} else {
				touched[i] |= mask
			}
		}
	}
	return CPUSet{trim(words)}, nil
}

// window returns the words that hold first to last, and which bits of the first and of
// the last one do. Working by words and not by numbers keeps a hostile list cheap: it may
// name all numbers every eight bytes.
func window(words []uint64, first, last int) (touched []uint64, head, tail uint64) {
	return words[first/64 : last/64+1], ^uint64(0) << (first % 64), ^uint64(0) >> (63 - last%64)
}

// parsePart reads "3", "0-3" or "^3".
func parsePart(part string) (first, last int, out bool, err error) {
	number, out := strings.CutPrefix(part, "^")
	from, to, isRange := strings.Cut(number, "-")
	if first, err = parseNumber(from); err != nil {
		return 0, 0, false, err
	}
	if !isRange {
		return first, first, out, nil
	}
	if out {
		return 0, 0, false, fault.New(fault.Invalid, fault.Call, "%.32q: ^ takes a single number", part)
	}
	if last, err = parseNumber(to); err != nil {
		return 0, 0, false, err
	}
	if last < first {
		return 0, 0, false, fault.New(fault.Invalid, fault.Call, "range %.32q runs backwards", part)
	}
	return first, last, false, nil
}

func parseNumber(text string) (int, error) {
	text = strings.TrimSpace(text)
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil || text[0] == '+' {
		return 0, fault.New(fault.Invalid, fault.Call, "%.32q is not a number", text)
	}
	if n > MaxCPU {
		return 0, fault.New(fault.Invalid, fault.Call, "number %d is above the limit of %d", n, MaxCPU)
	}
	return int(n), nil
}

// String prints the list syntax, with ranges: "0-3,8".
func (s CPUSet) String() string {
	var b strings.Builder
	first, last := -1, -1
	flush := func() {
		if first < 0 {
			return
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(first))
		if last > first {
			b.WriteByte('-')
			b.WriteString(strconv.Itoa(last))
		}
	}
	for n := range s.All() {
		if n == last+1 && first >= 0 {
			last = n
			continue
		}
		flush()
		first, last = n, n
	}
	flush()
	return b.String()
}

// MarshalText is String, for records.
func (s CPUSet) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText is ParseCPUSet, for records.
func (s *CPUSet) UnmarshalText(text []byte) (err error) {
	*s, err = ParseCPUSet(string(text))
	return err
}

// Map returns the set as libvirt's map of bits: number n is bit n%8 of byte n/8.
// The map is long enough for count numbers; larger numbers are left out.
func (s CPUSet) Map(count int) []byte {
	m := make([]byte, (count+7)/8)
	for n := range s.All() {
		if n >= count {
			break
		}
		m[n/8] |= 1 << (n % 8)
	}
	return m
}

// FromMap reads libvirt's map of bits. Bits above MaxCPU are an error.
func FromMap(m []byte) (CPUSet, error) {
	words := make([]uint64, 0, len(m)/8+1)
	for i, b := range m {
		if b == 0 {
			continue
		}
		if i > MaxCPU/8 {
			return CPUSet{}, fault.New(fault.Invalid, fault.Call, "processor map names a number above %d", MaxCPU)
		}
		for len(words) <= i/8 {
			words = append(words, 0)
		}
		words[i/8] |= uint64(b) << (i % 8 * 8)
	}
	return CPUSet{trim(words)}, nil
}
