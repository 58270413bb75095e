package machine

import (
	"context"

	"github.com/lodge-kvm/lodge/internal/mechanism/qmp"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// ResumeOnce resumes the vCPUs of a guest that was loaded and has not run yet. A guest that ran before may
// have stopped since for its own reasons, and is left stopped.
func ResumeOnce(ctx context.Context, s *qmp.Session) error {
	var found struct{ Status string }
	if err := s.Execute(ctx, "query-status", nil, &found); err != nil {
		return err
	}
	if phase, reason := ActivePhase(found.Status); phase != domain.Paused || reason != domain.ReasonUnknown {
		return nil
	}
	return s.Execute(ctx, "cont", nil, nil)
}
