package kernel

// CPUIDLeaf is the answer of x86's CPUID instruction to one query: a leaf, and the
// subleaf that some leaves have.
type CPUIDLeaf struct {
	Leaf, Part         uint32
	EAX, EBX, ECX, EDX uint32
}

// firstExtendedLeaf begins the second range of leaves.
const firstExtendedLeaf = 0x8000_0000

// featureLeaves are the leaves that list features.
var featureLeaves = []CPUIDLeaf{
	{Leaf: 1},
	{Leaf: 6},
	{Leaf: 7},
	{Leaf: 7, Part: 1},
	{Leaf: 7, Part: 2},
	{Leaf: 0xd, Part: 1},
	{Leaf: 0xf, Part: 1},
	{Leaf: 0x12},
	{Leaf: 0x12, Part: 1},
	{Leaf: 0x14},
	{Leaf: 0x8000_0001},
	{Leaf: 0x8000_0007},
	{Leaf: 0x8000_0008},
	{Leaf: 0x8000_000a},
	{Leaf: 0x8000_0021},
}

// featuresByCPUID reads those of featureLeaves that the processor has. A query for a
// leaf that a processor lacks returns the content of another leaf.
func featuresByCPUID(ask func(leaf, part uint32) (eax, ebx, ecx, edx uint32)) []CPUIDLeaf {
	basic, _, _, _ := ask(0, 0)
	extended, _, _, _ := ask(firstExtendedLeaf, 0)
	var leaves []CPUIDLeaf
	for _, l := range featureLeaves {
		last := basic
		if l.Leaf >= firstExtendedLeaf {
			last = extended
		}
		if l.Leaf > last {
			continue
		}
		l.EAX, l.EBX, l.ECX, l.EDX = ask(l.Leaf, l.Part)
		leaves = append(leaves, l)
	}
	return leaves
}
