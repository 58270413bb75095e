package testguest

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
)

// object makes the smallest possible kernel module: an ELF object with a .modinfo section of one field.
func object(field string) []byte {
	const names = "\x00.modinfo\x00.shstrtab\x00"
	info := field + "\x00"
	header := elf.Header64{
		Ident: [16]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_REL), Machine: uint16(elf.EM_X86_64), Version: uint32(elf.EV_CURRENT),
		Ehsize: 64, Shentsize: 64, Shnum: 3, Shstrndx: 2, Shoff: 64,
	}
	const data = 64 + 3*64 // behind the header and the table of sections
	sections := []elf.Section64{
		{},
		{Name: 1, Type: uint32(elf.SHT_PROGBITS), Off: data, Size: uint64(len(info)), Addralign: 1},
		{Name: 10, Type: uint32(elf.SHT_STRTAB), Off: uint64(data + len(info)), Size: uint64(len(names)), Addralign: 1},
	}
	var out bytes.Buffer
	_ = binary.Write(&out, binary.LittleEndian, header)
	_ = binary.Write(&out, binary.LittleEndian, sections)
	out.WriteString(info + names)
	return out.Bytes()
}
