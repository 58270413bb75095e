package kernel

import (
	"runtime"
	"slices"
	"testing"
)

// A query for a leaf that a processor lacks returns the content of another leaf, which must
// not be read as features.
func TestCPUID_MissingLeaves(t *testing.T) {
	for _, c := range []struct {
		basic, extended uint32
		leaves          []uint32
	}{
		{1, 0x8000_0001, []uint32{1, 0x8000_0001}},
		{7, 0x8000_0008, []uint32{1, 6, 7, 7, 7, 0x8000_0001, 0x8000_0007, 0x8000_0008}},
		{1, 0, []uint32{1}}, // no second range: the answer is below its start
	} {
		var asked []uint32
		for _, l := range featuresByCPUID(func(leaf, part uint32) (eax, ebx, ecx, edx uint32) {
			switch leaf {
			case 0:
				return c.basic, 0, 0, 0
			case firstExtendedLeaf:
				return c.extended, 0, 0, 0
			}
			return leaf, part, 3, 4
		}) {
			asked = append(asked, l.Leaf)
			if l.EAX != l.Leaf || l.EBX != l.Part || l.ECX != 3 || l.EDX != 4 {
				t.Errorf("leaf %#x is %+v", l.Leaf, l)
			}
		}
		if !slices.Equal(asked, c.leaves) {
			t.Errorf("of a processor up to %#x and %#x leaves %#x are told, want %#x", c.basic, c.extended, asked, c.leaves)
		}
	}
}

func TestCPUID_OfThisProcessor(t *testing.T) {
	var live Root
	p, err := live.Processor()
	if err != nil {
		t.Fatal(err)
	}
	if runtime.GOARCH != "amd64" {
		t.Skip("CPUID is x86's")
	}
	const sse2 = 1 << 26 // of EDX of leaf 1; every 64-bit processor has it
	if len(p.CPUID) == 0 || p.CPUID[0].Leaf != 1 || p.CPUID[0].EDX&sse2 == 0 {
		t.Errorf("the processor tells %+v", p.CPUID)
	}
	if family := int(p.CPUID[0].EAX >> 8 & 0xf); family != min(p.Family, 0xf) {
		t.Errorf("CPUID tells family %d, the kernel %d", family, p.Family)
	}
}
