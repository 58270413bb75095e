//go:build !amd64

package guest_test

// Elsewhere there is one door to the kernel.
const oldDoor = "by-the-old-door"

func throughOldDoor() int { return 1 }
