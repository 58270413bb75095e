package memsim

// static is a host without a manager: each guest keeps its memory, and the host swaps.
type static struct {
	reporting bool // guests report free pages, which costs nothing but a flag of QEMU's balloon (7.2 has it)
}

func (s *static) Begin(w *World) {
	if !s.reporting {
		w.DisableReporting()
	}
}

func (s *static) Step(int) {}
