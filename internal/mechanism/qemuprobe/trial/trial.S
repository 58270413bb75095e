# The firmware of the trial guest: it is all that runs in it. It goes from the
# reset vector through real, protected and long mode, does a little of what
# every kernel does, then counts, and says how far it got, one letter at a
# time, on port 0xe9 (-device isa-debugcon). It ends through port 0xf4
# (-device isa-debug-exit) with 0 when all of it came out right, else 1.
#
#	R  real mode runs        P  protected mode runs      L  long mode runs
#	E  breakpoint and page fault were taken, and returned from
#	I  integer, string, atomic, SSE2 and x87 results are right
#	.  one of TICKS rounds of counting, each of ROUND times 7 instructions
#	C  the count is right    X  a result is wrong
#
# Build: as --64 trial.S -o trial.o
#        ld -m elf_x86_64 -Ttext 0xfffff800 --oformat binary trial.o -o trial.bin
# trial.bin is the last 2 KiB of a 64 KiB image that ends at 4 GiB.

	.intel_syntax noprefix
	.set ROUND, 1 << 18
	.set TICKS, 64
	.set SUM, 0x104cfe6fdb103265	# what rdx is in the end

	# What is used of memory.
	.set PML4, 0x1000
	.set PDPT, 0x2000
	.set PD0, 0x3000	# the first 2 MiB, one to one; the second faults
	.set PD3, 0x4000	# the last 2 MiB below 4 GiB, one to one: this code
	.set IDT, 0x5000
	.set STACK, 0x7000
	.set DATA, 0x7000

	.macro say letter
	mov al, \letter
	out 0xe9, al
	.endm

	.text
	.globl _start
_start:
	.code16
real:
	cli
	say 'R'
	data32 lgdt cs:[gdt_at - _start + 0xf800]
	mov eax, cr0
	or al, 1
	mov cr0, eax
	data32 ljmp 0x08, offset protected

	.code32
protected:
	mov eax, 0x10
	mov ds, eax
	mov es, eax
	mov ss, eax
	mov esp, STACK
	say 'P'
	# Page tables, of a processor that need not know pages of 1 GiB.
	mov edi, PML4
	mov ecx, 0x4000 / 4
	xor eax, eax
	cld
	rep stosd
	mov dword ptr [PML4], PDPT + 3
	mov dword ptr [PDPT], PD0 + 3
	mov dword ptr [PDPT + 3 * 8], PD3 + 3
	mov dword ptr [PD0], 0x83
	mov dword ptr [PD3 + 511 * 8], 0xffe00083
	mov eax, PML4
	mov cr3, eax
	mov eax, cr4
	or eax, 0x620		# PAE, OSFXSR, OSXMMEXCPT
	mov cr4, eax
	mov ecx, 0xc0000080	# EFER
	rdmsr
	or eax, 0x100		# LME
	wrmsr
	mov eax, cr0
	and eax, 0x9ffffffb	# not CD, NW, EM
	or eax, 0x80010022	# PG, WP, NE, MP
	mov cr0, eax
	ljmp 0x18, offset long

	.code64
long:
	say 'L'

	# Exceptions: a breakpoint, and a fault on a page that the handler maps.
	mov edi, IDT
	mov ecx, 15 * 16 / 8
	xor eax, eax
	rep stosq
	mov edi, IDT + 3 * 16
	mov eax, offset breakpoint
	call gate
	mov edi, IDT + 14 * 16
	mov eax, offset fault
	call gate
	lidt [rip + idt_at]
	xor ebx, ebx
	int3
	mov dword ptr [0x200010], 0x1234
	cmp ebx, 3
	jne wrong
	cmp dword ptr [0x200010], 0x1234
	jne wrong
	say 'E'

	# Integers.
	xor eax, eax
	cpuid
	test eax, eax
	jz wrong
	rdtsc
	mov eax, 1000003
	mov ecx, 999
	mul ecx
	div ecx
	cmp eax, 1000003
	jne wrong
	# Strings.
	mov edi, DATA
	mov rax, 0x0123456789abcdef
	mov ecx, 32
	rep stosq
	mov esi, DATA
	mov edi, DATA + 256
	mov ecx, 256
	rep movsb
	mov esi, DATA
	mov edi, DATA + 256
	mov ecx, 256
	repe cmpsb
	jne wrong
	# Atomics.
	mov ecx, 5
	lock xadd qword ptr [DATA], rcx
	cmp rcx, rax
	jne wrong
	add rax, 5
	lock cmpxchg qword ptr [DATA], rcx
	jne wrong
	# SSE2.
	movdqu xmm0, [DATA]
	paddq xmm0, xmm0
	movq rdx, xmm0
	add rcx, rcx
	cmp rcx, rdx
	jne wrong
	mov eax, 144
	cvtsi2sd xmm1, eax
	sqrtsd xmm1, xmm1
	cvttsd2si eax, xmm1
	cmp eax, 12
	jne wrong
	# x87.
	fninit
	fld1
	fadd st(0), st(0)
	fistp qword ptr [DATA]
	cmp qword ptr [DATA], 2
	jne wrong
	say 'I'

	# Counting.
	xor esi, esi
	xor edx, edx
	mov edi, TICKS
tick:
	mov ecx, ROUND
count:
	add rsi, rcx
	xor rdx, rsi
	rol rdx, 5
	mov [DATA], rdx
	add rsi, [DATA]
	dec ecx
	jnz count
	say '.'
	dec edi
	jnz tick
	mov rax, SUM
	cmp rdx, rax
	jne wrong
	say 'C'
	xor eax, eax
	out 0xf4, al
	hlt

wrong:
	say 'X'
	mov al, 1
	out 0xf4, al
	hlt

# gate fills the interrupt gate at edi for the handler at eax.
gate:
	mov [rdi], ax
	mov word ptr [rdi + 2], 0x18
	mov word ptr [rdi + 4], 0x8e00
	shr eax, 16
	mov [rdi + 6], ax
	ret

breakpoint:
	or ebx, 1
	iretq

fault:
	or ebx, 2
	mov dword ptr [PD0 + 8], 0x200083
	add rsp, 8		# the error code
	iretq

	.balign 8
gdt:
	.quad 0
	.quad 0x00cf9b000000ffff	# 0x08: 32-bit code
	.quad 0x00cf93000000ffff	# 0x10: data
	.quad 0x00af9b000000ffff	# 0x18: 64-bit code
gdt_at:
	.word . - gdt - 1
	.long gdt
idt_at:
	.word 15 * 16 - 1
	.quad IDT

	# Where the processor begins.
	.org 0x7f0, 0xff
	.code16
	jmp real
	.org 0x800, 0xff
