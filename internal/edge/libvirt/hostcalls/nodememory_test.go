package hostcalls

import (
	"testing"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
)

func TestPageSharingSettings_OfParameters(t *testing.T) {
	param := func(name string, v xdr.TypedValue) xdr.TypedParam { return xdr.TypedParam{Field: name, Value: v} }
	s, err := pageSharingSettings(kernel.KSM{}, []xdr.TypedParam{
		param("shm_pages_to_scan", xdr.Uint(300)), param("shm_sleep_millisecs", xdr.Uint(20)), param("shm_merge_across_nodes", xdr.Uint(0)),
	})
	if err != nil || *s.PagesToScan != 300 || *s.Sleep != 20*time.Millisecond || *s.MergeAcrossNodes || s.Run != nil {
		t.Errorf("settings are %+v, %v", s, err)
	}
	for name, c := range map[string]struct {
		k      kernel.KSM
		params []xdr.TypedParam
		kind   fault.Kind
	}{
		"unknown":      {params: []xdr.TypedParam{param("shm_run", xdr.Uint(1))}, kind: fault.Invalid},
		"read only":    {params: []xdr.TypedParam{param("shm_pages_shared", xdr.Uint64(1))}, kind: fault.Invalid},
		"wrong type":   {params: []xdr.TypedParam{param("shm_pages_to_scan", xdr.Uint64(1))}, kind: fault.Invalid},
		"twice":        {params: []xdr.TypedParam{param("shm_sleep_millisecs", xdr.Uint(1)), param("shm_sleep_millisecs", xdr.Uint(2))}, kind: fault.Invalid},
		"older kernel": {kernel.KSM{Absent: []string{"merge_across_nodes"}}, []xdr.TypedParam{param("shm_merge_across_nodes", xdr.Uint(1))}, fault.WrongState},
	} {
		if _, err := pageSharingSettings(c.k, c.params); !fault.Is(err, c.kind) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
