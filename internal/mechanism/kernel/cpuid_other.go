//go:build !amd64

package kernel

// cpuidLeaves: other processors have no such instruction.
func cpuidLeaves() []CPUIDLeaf { return nil }
