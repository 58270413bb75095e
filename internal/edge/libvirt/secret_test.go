package libvirt

import (
	"encoding/base64"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lodge-kvm/lodge/internal/control/authz"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/hostcalls"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/host/secret"
	"github.com/lodge-kvm/lodge/internal/mechanism/listener"
	"github.com/lodge-kvm/lodge/internal/mechanism/store"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

const (
	openUUID    = "11111111-2222-3333-4444-000000000001"
	privateUUID = "11111111-2222-3333-4444-000000000002"
)

func withSecrets(t *testing.T) *testServer {
	t.Helper()
	dir := t.TempDir()
	kept, err := store.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = kept.Close() })
	return serve(t, func(s *rpc.Server) {
		book, err := secret.Open(secret.Config{
			Store: kept, Key: filepath.Join(dir, "key"), Events: s.Handlers.Events, Log: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(book.Close)
		s.Handlers.Secrets = book
	})
}

// TestVirsh_Secrets runs the secret commands of the distribution's virsh.
// Promise: K2
func TestVirsh_Secrets(t *testing.T) {
	h := withSecrets(t)
	shown := document(t, `<secret><uuid>`+openUUID+`</uuid><description>a disk</description><usage type='volume'><volume>/a</volume></usage></secret>`)
	hidden := document(t, `<secret private='yes' ephemeral='yes'><uuid>`+privateUUID+`</uuid><usage type='tls'><name>ca</name></usage></secret>`)
	value := base64.StdEncoding.EncodeToString([]byte("open sesame"))
	for _, c := range []struct {
		command string
		want    string
	}{
		{"secret-list", "UUID Usage"},
		{"secret-define --validate " + shown, "Secret " + openUUID + " created"},
		{"secret-define " + hidden, "Secret " + privateUUID + " created"},
		{"secret-list", openUUID + " volume /a"},
		{"secret-list --private", privateUUID + " tls ca"},
		{"secret-list --no-ephemeral", openUUID + " volume /a"},
		{"secret-dumpxml " + openUUID, "<secret ephemeral='no' private='no'> <uuid>" + openUUID + "</uuid> <description>a disk</description> <usage type='volume'> <volume>/a</volume>"},
		{"secret-get-value " + openUUID, "error: Secret not found: secret '" + openUUID + "' does not have a value"},
		{"secret-set-value " + openUUID + " --base64 " + value, "Secret value set"},
		{"secret-set-value " + privateUUID + " --base64 " + value, "Secret value set"},
		{"secret-get-value " + openUUID, value},
		{"secret-get-value --plain " + openUUID, "open sesame"},
		{"secret-get-value " + privateUUID, "error: Invalid secret: secret is private"},
		{"-r secret-get-value " + openUUID, "error: operation forbidden"},
		{"-r secret-set-value " + openUUID + " --base64 " + value, "error: operation forbidden"},
		{"-r secret-list", openUUID},
		{"secret-undefine " + openUUID, "Secret " + openUUID + " deleted"},
		{"secret-dumpxml " + openUUID, "error: Secret not found: no secret with matching uuid '" + openUUID + "'"},
	} {
		out, _ := h.virsh(strings.Split(c.command, " ")...)
		if got := strings.Join(strings.Fields(out), " "); !strings.Contains(got, c.want) {
			t.Errorf("%s: got %q, want %q", c.command, got, c.want)
		}
	}
}

func TestSecrets_LookupAndEvents(t *testing.T) {
	h := withSecrets(t)
	w := h.open("")
	watch := func(event int32) (callback int32) {
		ret := new(xdr.WithCallbackID)
		w.must(xdr.ProcConnectSecretEventRegisterAny, &xdr.ConnectSecretEventRegisterAnyArgs{EventID: event}, ret)
		return ret.CallbackID
	}
	life, values := watch(0), watch(1)
	made := new(xdr.WithSecret)
	var message xdr.SecretEventLifecycleMsg
	w.both(w.send(xdr.ProcSecretDefineXML, &xdr.WithXMLFlags{XML: `<secret><usage type='ceph'><name>pool</name></usage></secret>`}), made, xdr.ProcSecretEventLifecycle, &message)
	if message.CallbackID != life || message.Event != 0 || message.Secret != made.Secret {
		t.Errorf("defined: %+v, want %+v", message, made.Secret)
	}
	found := new(xdr.WithSecret)
	w.must(xdr.ProcSecretLookupByUsage, &xdr.SecretLookupByUsageArgs{UsageType: 2, UsageID: "pool"}, found)
	if found.Secret != made.Secret {
		t.Errorf("found %+v, want %+v", found.Secret, made.Secret)
	}
	w.refused(xdr.ProcSecretLookupByUsage, &xdr.SecretLookupByUsageArgs{UsageType: 1, UsageID: "pool"}, rpc.CodeNoSecret)
	w.refused(xdr.ProcSecretLookupByUsage, &xdr.SecretLookupByUsageArgs{UsageType: 9}, rpc.CodeInvalidArg)
	w.refused(xdr.ProcSecretSetValue, &xdr.SecretSetValueArgs{Secret: made.Secret, Value: []byte("a"), Flags: 1}, rpc.CodeInvalidArg)
	var changed xdr.SecretEventValueChangedMsg
	w.both(w.send(xdr.ProcSecretSetValue, &xdr.SecretSetValueArgs{Secret: made.Secret, Value: []byte("a")}), new(rpc.Void), xdr.ProcSecretEventValueChanged, &changed)
	if changed.CallbackID != values || changed.Secret != made.Secret {
		t.Errorf("changed: %+v", changed)
	}
}

// both receives the reply to a call and the event that it causes, in either order.
func (w *rawClient) both(h xdr.Header, ret xdr.Message, event int32, message xdr.Message) {
	w.t.Helper()
	for range 2 {
		p, into := w.next(), ret
		if p.Type == xdr.TypeMessage && p.Proc == event {
			into = message
		} else if p.Type != xdr.TypeReply || p.Status != xdr.StatusOK || p.Serial != h.Serial {
			w.t.Fatalf("got %+v", p.Header)
		}
		if err := into.Decode(xdr.NewReader(p.payload)); err != nil {
			w.t.Fatal(err)
		}
	}
}

// TestSecrets_CountIsHidden: a client that the rules restrict to some guests sees no secret, and not
// the number of secrets.
func TestSecrets_CountIsHidden(t *testing.T) {
	h := withSecrets(t)
	if _, err := h.server.Handlers.Secrets.Define(scope.Daemon("a test"), `<secret><uuid>`+openUUID+`</uuid></secret>`, true); err != nil {
		t.Fatal(err)
	}
	count := func(rules string) uint32 {
		t.Helper()
		file := filepath.Join(t.TempDir(), "access.yaml")
		if err := os.WriteFile(file, []byte("version: 1\nrules: [{name: some, who: \"user:1002\", may: [read]"+rules+"}]\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		gate, err := authz.New(authz.Config{File: file, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		s := &rpc.Session{Client: &rpc.Client{Server: &rpc.Server{Authorizer: gate}}, Identity: authz.LocalPrincipal(listener.Peer{UID: 1002})}
		ret, err := hostcalls.ConnectListAllSecrets(t.Context(), &h.server.Handlers, &rpc.Request{Session: s}, &xdr.WithNeedResultsFlags{})
		if err != nil {
			t.Fatal(err)
		}
		return ret.Count
	}
	if all, some := count(""), count(", guests: mine"); all != 1 || some != 0 {
		t.Errorf("an unrestricted client sees %d secrets, a restricted one %d", all, some)
	}
}
