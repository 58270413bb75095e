package resources

import "strconv"

// formatBytes prints a size in the largest unit that divides it: 2 MiB, 1 GiB, 16214736 KiB.
func formatBytes(n uint64) string {
	units := []string{"bytes", "KiB", "MiB", "GiB", "TiB"}
	i := 0
	for n != 0 && n%1024 == 0 && i < len(units)-1 {
		n /= 1024
		i++
	}
	return strconv.FormatUint(n, 10) + " " + units[i]
}
