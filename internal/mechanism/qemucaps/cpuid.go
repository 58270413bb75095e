package qemucaps

import (
	"slices"
	"strings"
)

// CPUIDWord is one result register of x86's CPUID instruction. Leaf is the query, and
// Part, which some leaves have, its subleaf.
type CPUIDWord struct {
	Leaf, Part uint32
	Register   string // eax, ebx, ecx or edx
}

// cpuidNames are the names of the bits of each word, bit 0 first, and - for bits
// that are no features or have no name. They are QEMU's names, and libvirt's where
// QEMU has none.
var cpuidNames = map[CPUIDWord]string{
	{1, 0, "edx"}: `fpu vme de pse tsc msr pae mce cx8 apic - sep mtrr pge mca cmov
		pat pse36 pn clflush - ds acpi mmx fxsr sse sse2 ss ht tm ia64 pbe`,
	{1, 0, "ecx"}: `pni pclmulqdq dtes64 monitor ds-cpl vmx smx est tm2 ssse3 cid - fma cx16 xtpr pdcm
		- pcid dca sse4.1 sse4.2 x2apic movbe popcnt tsc-deadline aes xsave osxsave avx f16c rdrand hypervisor`,
	{6, 0, "eax"}: `- - arat`,
	{7, 0, "ebx"}: `fsgsbase tsc-adjust sgx bmi1 hle avx2 - smep bmi2 erms invpcid rtm cmt - mpx -
		avx512f avx512dq rdseed adx smap avx512ifma pcommit clflushopt clwb intel-pt avx512pf avx512er avx512cd sha-ni avx512bw avx512vl`,
	{7, 0, "ecx"}: `- avx512vbmi umip pku ospke waitpkg avx512vbmi2 - gfni vaes vpclmulqdq avx512vnni avx512bitalg - avx512-vpopcntdq -
		la57 - - - - - rdpid - bus-lock-detect cldemote - movdiri movdir64b - sgxlc pks`,
	{7, 0, "edx"}: `- - avx512-4vnniw avx512-4fmaps fsrm - - - avx512-vp2intersect - md-clear - - - serialize -
		tsx-ldtrk - pconfig arch-lbr - - amx-bf16 avx512-fp16 amx-tile amx-int8 spec-ctrl stibp - arch-capabilities core-capability ssbd`,
	{7, 1, "eax"}:           `- - - - avx-vnni avx512-bf16 - cmpccxadd - - fzrm fsrs fsrc - - - - - - - - amx-fp16 - avx-ifma`,
	{7, 2, "edx"}:           `- - - - - mcdt-no`,
	{0xd, 1, "eax"}:         `xsaveopt xsavec xgetbv1 xsaves xfd`,
	{0xf, 1, "edx"}:         `- mbm_total mbm_local`,
	{0x12, 0, "eax"}:        `sgx1 sgx2`,
	{0x12, 0, "ebx"}:        `sgx-exinfo`,
	{0x12, 1, "eax"}:        `- sgx-debug sgx-mode64 - sgx-provisionkey sgx-tokenkey - sgx-kss`,
	{0x14, 0, "ecx"}:        `- - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - intel-pt-lip`,
	{0x8000_0001, 0, "edx"}: `- - - - - - - - - - - syscall - - - - - - - - nx - mmxext - - fxsr-opt pdpe1gb rdtscp - lm 3dnowext 3dnow`,
	{0x8000_0001, 0, "ecx"}: `lahf-lm cmp-legacy svm extapic cr8legacy abm sse4a misalignsse 3dnowprefetch osvw ibs xop skinit wdt - lwp
		fma4 tce cvt16 nodeid-msr - tbm topoext perfctr-core perfctr-nb`,
	{0x8000_0007, 0, "edx"}: `- - - - - - - - invtsc`,
	{0x8000_0008, 0, "ebx"}: `clzero - xsaveerptr - - - - - - wbnoinvd - - ibpb - ibrs amd-stibp
		- - - - - - - - amd-ssbd virt-ssbd amd-no-ssb`,
	{0x8000_000a, 0, "edx"}: `npt lbrv svm-lock nrip-save tsc-scale vmcb-clean flushbyasid decodeassists - - pause-filter - pfthreshold avic - v-vmsave-vmload
		vgif - - - - - - - - - - - svme-addr-chk`,
	{0x8000_0021, 0, "eax"}: `no-nested-data-bp - lfence-always-rdtsc - - - null-sel-clr-base - auto-ibrs`,
}

// msrNames are the features that processors report in model-specific registers and not
// through CPUID. The host's KVM reports those that the host has.
var msrNames = []string{
	"rdctl-no", "ibrs-all", "rsba", "skip-l1dfl-vmentry", "ssb-no", "mds-no", "pschange-mc-no", "tsx-ctrl", "taa-no",
	"sbdr-ssdp-no", "fbsdp-no", "psdp-no", "fb-clear", "split-lock-detect",
}

// CPUIDFeatures returns the names of the features in words of CPUID, sorted.
func CPUIDFeatures(words map[CPUIDWord]uint32) []string {
	var features []string
	for word, value := range words {
		for bit, name := range strings.Fields(cpuidNames[word]) {
			if name != "-" && value>>bit&1 == 1 {
				features = append(features, name)
			}
		}
	}
	slices.Sort(features)
	return features
}

// FeaturesInMSRs returns those of the given features that CPUID does not report.
func FeaturesInMSRs(features []string) []string {
	return slices.DeleteFunc(slices.Clone(features), func(name string) bool { return !slices.Contains(msrNames, name) })
}

// HostFeatures are features that QEMU has no names for: processors have them, and no
// definition can give them to a guest.
var HostFeatures = []string{"cmt", "cvt16", "mbm_local", "mbm_total", "osxsave", "ospke", "pconfig"}
