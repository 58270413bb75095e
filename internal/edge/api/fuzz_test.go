package api

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"connectrpc.com/connect"

	"github.com/lodge-kvm/lodge/api/lodgev1"
	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/control/fleet"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// FuzzRequests sends arbitrary requests to the unary calls, in JSON and in protobuf. The answer has the same
// encoding, or is a refusal other than an internal error.
func FuzzRequests(f *testing.F) {
	calls := []string{lodgev1.LodgeListGuestsProcedure, lodgev1.LodgeStatsProcedure, lodgev1.LodgeCancelProcedure, lodgev1.LodgeListTilesProcedure, lodgev1.LodgeStartQueueProcedure, lodgev1.LodgeMemoryProcedure}
	for call := range calls {
		for _, text := range []string{
			`{}`, `{"select":["web-1","!label=app:v0","tile=a/1"]}`, `{"select":["all"],"freshWithin":"1s"}`, `{"run":"x"}`, `{"set":"a"}`, `{"select":[null]}`, `[`,
			`{"freshWithin":"-315576000000.999s"}`,
		} {
			f.Add(uint8(call), true, []byte(text))
		}
		f.Add(uint8(call), false, []byte{0x0a, 0x03, 'a', 'l', 'l'})
	}
	h := serve(f, 2)
	_, handler := lodgev1.NewLodgeHandler(h.server, append(codecs(), connect.WithInterceptors(faults{}))...)
	f.Fuzz(func(t *testing.T, call uint8, inJSON bool, body []byte) {
		form := map[bool]string{true: "application/json", false: "application/proto"}[inJSON]
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, calls[int(call)%len(calls)], bytes.NewReader(body))
		r.Header.Set("Content-Type", form)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		switch {
		case w.Code == http.StatusInternalServerError:
			t.Fatalf("%s", w.Body)
		case w.Code != http.StatusOK:
			var refusal struct{ Code string }
			if err := json.Unmarshal(w.Body.Bytes(), &refusal); err != nil || refusal.Code == "" {
				t.Fatalf("a refusal with %d that is none: %s", w.Code, w.Body)
			}
		case w.Header().Get("Content-Type") != form || inJSON && !json.Valid(w.Body.Bytes()):
			t.Fatalf("an answer in other words: %s", w.Body)
		}
	})
}

// FuzzAct sends arbitrary requests to act, as a dry run: each chosen guest has one result, and nothing panics.
func FuzzAct(f *testing.F) {
	_, _, xml := document(7)
	for _, r := range []*lodgev1.ActRequest{
		{Verb: "start", Select: []string{"all"}},
		{Verb: "set", Select: []string{"web-*"}, Options: &lodgev1.Options{Settings: map[string]string{"memory": "512MiB", "vcpus": "2", "label.a": "b", "after": "db,x", "priority": "-3", "template": "yes"}}},
		{Verb: "define", Documents: []string{xml, "<domain", xml + " "}},
		{Verb: "destroy", Select: []string{"!web-1"}, Parallel: 3, StopAtFailure: true, Options: &lodgev1.Options{Mode: "agent"}},
		{Verb: "undefine", Select: []string{"web-0", "web-0"}, Options: &lodgev1.Options{Nvram: true, Tpm: true}},
	} {
		text, err := jsonCodec{"json"}.Marshal(r)
		ok(f, err)
		f.Add(text)
	}
	h := serve(f, 3)
	f.Fuzz(func(t *testing.T, body []byte) {
		var r lodgev1.ActRequest
		if (jsonCodec{"json"}).Unmarshal(body, &r) != nil {
			return
		}
		q, err := toRequest(&r)
		if err != nil {
			if k := fault.Of(err); k != fault.Invalid && k != fault.Unsupported {
				t.Fatalf("%v: %v", k, err)
			}
			return
		}
		q.DryRun = true
		planned, results := -1, 0
		sum, err := h.server.Fleet.Run(context.Background(), scope.Daemon("a test"), q, func(p fleet.Plan) { planned = p.Total }, func(r fleet.Result) {
			results++
			if fault.Is(r.Error, fault.Internal) {
				t.Errorf("%s: %v", r.Name, r.Error)
			}
		})
		if fault.Is(err, fault.Internal) || err == nil && planned >= 0 && results != planned {
			t.Fatalf("%d of %d results, %+v, %v", results, planned, sum, err)
		}
	})
}
