package device

// TuneField is one number of an IOTune, by libvirt's name for it.
type TuneField struct {
	Name  string
	Value *uint64
}

// Fields returns the numbers of t in libvirt's order: rates, bursts, the size of
// an operation, and how long bursts may last.
func (t *IOTune) Fields() []TuneField {
	return []TuneField{
		{"total_bytes_sec", &t.TotalBytes},
		{"read_bytes_sec", &t.ReadBytes},
		{"write_bytes_sec", &t.WriteBytes},
		{"total_iops_sec", &t.TotalIOPS},
		{"read_iops_sec", &t.ReadIOPS},
		{"write_iops_sec", &t.WriteIOPS},
		{"total_bytes_sec_max", &t.TotalBytesMax},
		{"read_bytes_sec_max", &t.ReadBytesMax},
		{"write_bytes_sec_max", &t.WriteBytesMax},
		{"total_iops_sec_max", &t.TotalIOPSMax},
		{"read_iops_sec_max", &t.ReadIOPSMax},
		{"write_iops_sec_max", &t.WriteIOPSMax},
		{"size_iops_sec", &t.SizeIOPS},
		{"total_bytes_sec_max_length", &t.TotalBytesMaxLen},
		{"read_bytes_sec_max_length", &t.ReadBytesMaxLen},
		{"write_bytes_sec_max_length", &t.WriteBytesMaxLen},
		{"total_iops_sec_max_length", &t.TotalIOPSMaxLen},
		{"read_iops_sec_max_length", &t.ReadIOPSMaxLen},
		{"write_iops_sec_max_length", &t.WriteIOPSMaxLen},
	}
}
