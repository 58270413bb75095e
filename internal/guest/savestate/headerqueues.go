package savestate

import (
	"context"
	"errors"

	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// queryQueues asks QEMU for the numbers of queues, and adds to the header those that differ from the number
// of vCPUs.
func (h *SaveHeader) queryQueues(ctx context.Context, s *qmp.Session, active *domain.Definition) error {
	if active.VCPUs.Max == 1 {
		return nil
	}
	counted := active.Clone()
	for _, d := range provision.DevicesWithoutQueues(counted) {
		var n uint
		err := s.Execute(ctx, "qom-get", map[string]any{"path": "/machine/peripheral/" + d.Alias, "property": d.Property}, &n)
		if answer := (*qmp.Error)(nil); errors.As(err, &answer) || n > provision.MaxQueues || n == active.VCPUs.Current {
			continue // it has none, or the restored machine gets the same number
		}
		if err != nil {
			return err
		}
		*d.Queues = n
	}
	provision.KeepQueues(h.def, counted)
	return h.format()
}
