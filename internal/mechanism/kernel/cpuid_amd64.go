package kernel

// cpuid runs the CPUID instruction.
//
//go:noescape
func cpuid(leaf, part uint32) (eax, ebx, ecx, edx uint32)

func cpuidLeaves() []CPUIDLeaf { return featuresByCPUID(cpuid) }
