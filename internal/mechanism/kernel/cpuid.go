package kernel

// CPUIDLeaf is what x86's CPUID instruction answers to one question: a leaf, and
// of some leaves a part.
type CPUIDLeaf struct {
	Leaf, Part         uint32
	EAX, EBX, ECX, EDX uint32
}

// firstExtendedLeaf begins the second range of leaves.
const firstExtendedLeaf = 0x8000_0000

// featureLeaves are the leaves that tell features.
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

// featuresByCPUID asks the processor for those of featureLeaves that it has. It
// answers to a leaf that it has not with another one's.
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
