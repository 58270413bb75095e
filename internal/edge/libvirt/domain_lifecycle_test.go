package libvirt

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/edge/libvirt/domaincalls"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/word/domain"
)

// TestStateReasons_Numbers compares the numbers of states and reasons with libvirt's.
func TestStateReasons_Numbers(t *testing.T) {
	for state, reasons := range map[domain.State][]domain.Reason{ // from reason 0 on
		domain.NoState: {domain.ReasonUnknown},
		domain.Running: {
			domain.ReasonUnknown, domain.ReasonBooted, domain.ReasonMigrated, domain.ReasonRestored, domain.ReasonFromSnapshot,
			domain.ReasonUnpaused, domain.ReasonMigrationCanceled, domain.ReasonSaveCanceled, domain.ReasonWakeup,
			domain.ReasonCrashed, domain.ReasonPostcopy,
		},
		domain.Blocked: {domain.ReasonUnknown},
		domain.Paused: {
			domain.ReasonUnknown, domain.ReasonUser, domain.ReasonMigration, domain.ReasonSave, domain.ReasonDump,
			domain.ReasonIOError, domain.ReasonWatchdog, domain.ReasonFromSnapshot, domain.ReasonShuttingDown,
			domain.ReasonSnapshot, domain.ReasonPanicked, domain.ReasonStartingUp, domain.ReasonPostcopy,
		},
		domain.ShuttingDown: {domain.ReasonUnknown, domain.ReasonUser},
		domain.ShutOff: {
			domain.ReasonUnknown, domain.ReasonShutdown, domain.ReasonDestroyed, domain.ReasonCrashed, domain.ReasonMigrated,
			domain.ReasonSaved, domain.ReasonFailed, domain.ReasonFromSnapshot, domain.ReasonDaemon,
		},
		domain.Crashed:     {domain.ReasonUnknown, domain.ReasonPanicked},
		domain.PMSuspended: {domain.ReasonUnknown},
	} {
		for want, reason := range reasons {
			if got := domaincalls.StateReasons[state][reason]; got != int32(want) {
				t.Errorf("%s (%s): %d, want %d", state, reason, got, want)
			}
		}
	}
	states := []domain.State{
		domain.NoState, domain.Running, domain.Blocked, domain.Paused, domain.ShuttingDown, domain.ShutOff, domain.Crashed, domain.PMSuspended,
	}
	for want, state := range states {
		if int(state) != want {
			t.Errorf("%s: %d, want %d", state, int(state), want)
		}
	}
}

// TestVirsh_SavedImages reads the definitions in save images and changes them.
func TestVirsh_SavedImages(t *testing.T) {
	s := &shell{withGuests(t), map[string]string{
		"DIR": t.TempDir(),
		"DOC": document(t, strings.Replace(aGuest("web"), "</devices>", "<graphics type='vnc' passwd='secret'/></devices>", 1)),
	}}
	rewrite := func(from, to string, changes ...string) {
		t.Helper()
		doc, err := os.ReadFile(s.fill(from)[0])
		if err != nil {
			t.Fatal(err)
		}
		text := strings.NewReplacer(changes...).Replace(string(doc))
		if err := os.WriteFile(s.fill(to)[0], []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	keep := func(line, to string) {
		t.Helper()
		if err := os.WriteFile(s.fill(to)[0], []byte(s.does(line)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s.does("define DOC")
	s.does("start web --paused")
	s.does("save web DIR/image --bypass-cache --running")
	keep("save-image-dumpxml DIR/image --security-info", "DIR/doc")
	rewrite("DIR/doc", "DIR/changed", "<on_poweroff>destroy", "<on_poweroff>restart")
	rewrite("DIR/doc", "DIR/larger", "65536", "131072")
	s.fails("save-image-define DIR/image DIR/larger", "its memory must stay 67108864")
	s.fails("save-image-define DIR/image DOC", "the saved machine cannot be changed")
	s.does("save-image-define DIR/image DIR/changed --paused", "State file DIR/image updated")
	s.does("save-image-dumpxml DIR/image", "<on_poweroff>restart</on_poweroff>", "<graphics type='vnc' port='-1' autoport='yes' ")
	s.fails("restore DIR/image --xml DIR/larger", "its memory must stay 67108864")
	s.does("restore DIR/image")
	s.does("domstate web --reason", "paused")
	s.fails("restore DIR/image", "already running")
	s.does("dumpxml web", "<on_poweroff>restart</on_poweroff>")

	s.fails("managedsave-dumpxml web", "does not have a managed save image")
	s.does("managedsave web --paused")
	s.does("managedsave-dumpxml web --security-info", "passwd='secret'")
	s.does("managedsave-define web DIR/changed --running", "Managed save state file of domain 'web' updated")
	s.does("start web --bypass-cache")
	s.does("domstate web --reason", "running \\(restored\\)")
	s.does("save web DIR/again --xml DIR/changed")
	s.fails("save-image-define DIR/doc DIR/changed", "it is not a saved domain")
	if err := unix.Mkfifo(s.fill("DIR/pipe")[0], 0o600); err != nil {
		t.Fatal(err)
	}
	s.fails("restore DIR/pipe", "neither a file nor a block device")
	s.fails("save-image-define DIR/pipe DIR/changed", "neither a file nor a block device")
}

// TestVirsh_RareCommands runs commands that are rarely used.
func TestVirsh_RareCommands(t *testing.T) {
	s := &shell{withGuests(t), map[string]string{"DOC": document(t, aGuest("web"))}}
	s.does("define DOC")
	s.does("snapshot-list web", "^Name Creation Time State -+$")
	s.fails("snapshot-current web", "has no current snapshot")
	s.fails("snapshot-info web first", "no domain snapshot with matching name 'first'")
	s.does("checkpoint-list web", "^Name Creation Time -+$")
	s.does("list --all --with-snapshot --name", "^$")
	s.does("list --all --without-checkpoint --name", "^web$")
	s.does("list --all --state-shutoff --name", "^web$")
	s.does("list --all --state-running --state-other --name", "^$")
	s.does("set-lifecycle-action web poweroff restart --config")
	s.does("dumpxml web --xpath //on_poweroff", "restart")
	s.fails("send-key web KEY_A", "domain is not running")
	s.fails("start web --bypass-cache --pass-fds 0", "descriptors cannot be passed to a QEMU guest")
	s.does("start web --force-boot")
	s.does("send-key web KEY_LEFTCTRL KEY_LEFTALT KEY_F1") // with KEY_DELETE its firmware would begin again, sometime
	s.does("send-key web --codeset qnum --holdtime 5 0x1c 0x9d")
	s.does("set-lifecycle-action web reboot destroy --live")
	s.does("dumpxml web", "<on_poweroff>restart</on_poweroff> <on_reboot>destroy</on_reboot>")
	s.does("dumpxml web --inactive", "<on_reboot>restart</on_reboot>")
	s.does("set-lifecycle-action web crash coredump-destroy")
	s.fails("set-lifecycle-action web crash rename-restart", "rename-restart")
	s.fails("send-key web --codeset usb 4", "argument unsupported: codeset 7")
	s.fails("send-key web 240", "invalid argument: QEMU's keyboards have no key for Linux key code 240")
	s.fails("dompmwakeup web", "is not suspended by its guest")
	s.fails("shutdown web --mode initctl", "unsupported flags")
	s.fails("undefine web --tpm", "cannot remove the TPM's state while the domain is running")
	s.does("dumpxml web --migratable --update-cpu", "^<domain type='qemu'> <name>web</name>")
	s.does("dominfo web", "Managed save: no$") // no messages yet
	s.does(`qemu-monitor-command web {"execute":"no-such-thing"}`, `"error":.*"class":"CommandNotFound"`)
	s.does("qemu-monitor-command web --hmp info version")
	s.does("dominfo web", "Messages: tainted: custom monitor control commands issued$")
	s.does("destroy web")
	s.does("undefine web --managed-save --snapshots-metadata --nvram --keep-tpm", "has been undefined")
	s.does("list --all --name", "^$")
}

// lifeScript follows a guest through its life, and prints every event and some
// answers.
const lifeScript = `
import libvirt, os, socket, sys, threading
libvirt.virEventRegisterDefaultImpl()
libvirt.registerErrorHandler(lambda *a: None, None)
def loop():
    while True: libvirt.virEventRunDefaultImpl()
threading.Thread(target=loop, daemon=True).start()
conn = libvirt.open("qemu:///system?socket=" + sys.argv[1])
more = threading.Condition()
got = []
def changed(conn, dom, event, detail, opaque):
    with more:
        got.append((event, detail))
        more.notify()
conn.domainEventRegisterAny(None, libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE, changed, None)
def expect(name, want):
    with more:
        ok = more.wait_for(lambda: len(got) >= len(want), 15)
        print(name, "ok" if got == want else got, flush=True)
        got.clear()
def greeting(fd):
    with socket.socket(fileno=fd) as s:
        s.settimeout(15)
        return s.recv(3).decode()
doc, image = open(sys.argv[2]).read(), sys.argv[3]
dom = conn.defineXML(doc); expect("define", [(0, 0)])
conn.defineXML(doc); expect("redefine", [(0, 1)])
dom.createWithFlags(libvirt.VIR_DOMAIN_START_PAUSED); expect("start paused", [(2, 0), (3, 0)])
dom.resume(); expect("resume", [(4, 0)])
dom.suspend(); expect("suspend", [(3, 0)])
dom.resume(); expect("resume again", [(4, 0)])
print("graphics", greeting(dom.openGraphicsFD(0)))
near, far = socket.socketpair()
dom.openGraphics(0, far.fileno(), libvirt.VIR_DOMAIN_OPEN_GRAPHICS_SKIPAUTH); far.close()
print("graphics", greeting(near.detach()))
for bad in lambda: dom.openGraphicsFD(1), lambda: dom.openConsole("none", conn.newStream()):
    try: bad()
    except libvirt.libvirtError as e: print(e)
dom.save(image); expect("save", [(3, 0), (5, 4)])
conn.restore(image); expect("restore", [(2, 2), (4, 0)])
dom.managedSave(); expect("managed save", [(3, 0), (5, 4)])
dom.create(); expect("start saved", [(2, 2), (4, 0)])
dom.destroy(); expect("destroy", [(5, 1)])
dom.rename("other"); expect("rename", [(1, 1), (0, 2)])
dom.setAutostart(1)
print("autostart", [d.name() for d in conn.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_AUTOSTART)], dom.autostart())
print("old lists", conn.listDefinedDomains(), conn.numOfDefinedDomains(), conn.listDomainsID(), conn.numOfDomains())
dom.create(); expect("start", [(2, 0), (4, 0)])
print("info", dom.info()[0:4], dom.state(), dom.isActive(), dom.isPersistent(), dom.isUpdated(), dom.OSType(), dom.controlInfo()[0:2])
print("labels", dom.securityLabel(), dom.securityLabelList(), dom.messages())
dom.undefine(); expect("undefine running", [(1, 0)])
dom.reset()
dom.destroyFlags(libvirt.VIR_DOMAIN_DESTROY_GRACEFUL); expect("end", [(5, 1), (1, 0)])
conn.close()
`

func TestDomain_LifecyclePython(t *testing.T) {
	const python = "/usr/bin/python3"
	if err := exec.CommandContext(t.Context(), python, "-c", "import libvirt").Run(); err != nil {
		t.Skip("python3-libvirt is not installed")
	}
	h := withGuests(t)
	dir := t.TempDir()
	doc := strings.Replace(aGuest("web"), "</devices>", "<graphics type='vnc'/></devices>", 1)
	script := filepath.Join(dir, "life.py")
	if err := os.WriteFile(script, []byte(lifeScript), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, python, script, h.socket, document(t, doc), filepath.Join(dir, "image")).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	want := []string{
		"define ok", "redefine ok", "start paused ok", "resume ok", "suspend ok", "resume again ok",
		"graphics RFB", "graphics RFB",
		"invalid argument: the domain has 1 graphics, and none with index 1",
		"device not found: cannot find console device 'none'",
		"save ok", "restore ok", "managed save ok", "start saved ok", "destroy ok", "rename ok",
		"autostart ['other'] 1",
		"old lists ['other'] 1 [] 0",
		"start ok",
		"info [1, 65536, 65536, 1] [1, 1] 1 1 0 hvm [0, 0]",
		"labels ['', False] [] []",
		"undefine running ok", "end ok",
	}
	if got := strings.Split(strings.TrimSpace(string(out)), "\n"); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestReadOnly_SecureXML: a flag decides whether a read-only client gets XML.
func TestReadOnly_SecureXML(t *testing.T) {
	h := withGuests(t)
	w, reader := h.open(""), h.open("-ro")
	ret := new(xdr.DomainDefineXMLRet)
	w.must(xdr.ProcDomainDefineXML, &xdr.DomainDefineXMLArgs{XML: aGuest("web")}, ret)
	for flags, want := range map[uint32]rpc.Code{
		0: 0, rpc.XMLInactive: 0, rpc.XMLUpdateCPU: 0,
		rpc.XMLSecure: rpc.CodeOperationDenied, rpc.XMLMigratable: rpc.CodeOperationDenied, 1 << 10: rpc.CodeInvalidArg,
	} {
		args := &xdr.DomainGetXMLDescArgs{Domain: ret.Domain, Flags: flags}
		if want == 0 {
			reader.must(xdr.ProcDomainGetXMLDesc, args, new(xdr.DomainGetXMLDescRet))
		} else {
			reader.refused(xdr.ProcDomainGetXMLDesc, args, want)
		}
	}
	reader.refused(xdr.ProcDomainManagedSaveGetXMLDesc, &xdr.DomainManagedSaveGetXMLDescArgs{Domain: ret.Domain, Flags: rpc.XMLSecure}, rpc.CodeOperationDenied)
	reader.refused(xdr.ProcDomainManagedSaveGetXMLDesc, &xdr.DomainManagedSaveGetXMLDescArgs{Domain: ret.Domain}, rpc.CodeOperationInvalid)
}

// A save to a file that accepts no data shows its progress, can be aborted, and leaves the guest unchanged.
func TestSave_Aborted(t *testing.T) {
	h := withGuests(t)
	image := filepath.Join(t.TempDir(), "image")
	slow := image + ".partial" // where an image is written until it is complete
	if err := unix.Mkfifo(slow, 0o600); err != nil {
		t.Fatal(err)
	}
	drain, err := os.OpenFile(slow, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer drain.Close()
	w, saver := h.open(""), h.open("")
	ret := new(xdr.DomainCreateXMLRet)
	w.must(xdr.ProcDomainCreateXML, &xdr.DomainCreateXMLArgs{XML: aGuest("web")}, ret)
	asked := saver.send(xdr.ProcDomainSave, &xdr.DomainSaveArgs{Domain: ret.Domain, To: image})
	stats, state := new(xdr.DomainGetJobStatsRet), new(xdr.DomainGetStateRet)
	for stats.Type != domaincalls.JobUnbounded || state.State != 3 {
		w.must(xdr.ProcDomainGetJobStats, &xdr.DomainGetJobStatsArgs{Domain: ret.Domain}, stats)
		w.must(xdr.ProcDomainGetState, &xdr.DomainGetStateArgs{Domain: ret.Domain}, state)
	}
	if state.Reason != domaincalls.StateReasons[domain.Paused][domain.ReasonSave] {
		t.Errorf("while it is saved the guest is paused for %d", state.Reason)
	}
	w.must(xdr.ProcDomainAbortJob, &xdr.DomainAbortJobArgs{Domain: ret.Domain}, nil)
	go func() { _, _ = io.Copy(io.Discard, drain) }() // until the test closes it
	if e := saver.fails(asked); rpc.Code(e.Code) != rpc.CodeAborted {
		t.Errorf("the save ends with %d %s", e.Code, *e.Message)
	}
	w.must(xdr.ProcDomainGetState, &xdr.DomainGetStateArgs{Domain: ret.Domain}, state)
	if state.State != 1 || state.Reason != domaincalls.StateReasons[domain.Running][domain.ReasonSaveCanceled] {
		t.Errorf("afterwards the guest is in state %d for %d", state.State, state.Reason)
	}
	w.must(xdr.ProcDomainGetJobStats, &xdr.DomainGetJobStatsArgs{Domain: ret.Domain, Flags: domaincalls.JobStatsCompleted}, stats)
	if stats.Type != domaincalls.JobCancelled {
		t.Errorf("the job is kept as of type %d", stats.Type)
	}
	if left, err := filepath.Glob(image + "*"); err != nil || len(left) > 0 {
		t.Errorf("the save leaves %v (%v)", left, err)
	}
}

// TestCalls_Libvirt11 are made as libvirt 11's clients make them.
func TestCalls_Libvirt11(t *testing.T) {
	h := withGuests(t)
	w := h.open("")
	image := filepath.Join(t.TempDir(), "image")
	file := xdr.TypedParam{Field: "file", Value: xdr.String(image)}
	made := new(xdr.DomainDefineXMLRet)
	w.must(xdr.ProcDomainDefineXML, &xdr.DomainDefineXMLArgs{XML: aGuest("web")}, made)
	d := made.Domain

	once := new(xdr.DomainGetAutostartOnceRet)
	w.must(xdr.ProcDomainSetAutostartOnce, &xdr.DomainSetAutostartOnceArgs{Domain: d, Autostart: true}, nil)
	w.must(xdr.ProcDomainGetAutostartOnce, &xdr.DomainGetAutostartOnceArgs{Domain: d}, once)
	always := new(xdr.DomainGetAutostartRet)
	w.must(xdr.ProcDomainGetAutostart, &xdr.DomainGetAutostartArgs{Domain: d}, always)
	if !once.Autostart || always.Autostart {
		t.Errorf("once %v, always %v", once.Autostart, always.Autostart)
	}

	w.must(xdr.ProcDomainCreate, &xdr.DomainCreateArgs{Domain: d}, nil)
	w.refused(xdr.ProcDomainSaveParams, &xdr.DomainSaveParamsArgs{Domain: d, Params: []xdr.TypedParam{
		file, {Field: "image_format", Value: xdr.String("sparse")},
	}}, rpc.CodeArgUnsupported)
	w.refused(xdr.ProcDomainSaveParams, &xdr.DomainSaveParamsArgs{Domain: d, Flags: domaincalls.SaveStateFlags}, rpc.CodeInvalidArg)
	w.must(xdr.ProcDomainSaveParams, &xdr.DomainSaveParamsArgs{Domain: d, Params: []xdr.TypedParam{file}, Flags: domaincalls.SavePaused}, nil)
	w.refused(xdr.ProcDomainRestoreParams, &xdr.DomainRestoreParamsArgs{}, rpc.CodeInvalidArg)
	w.must(xdr.ProcDomainRestoreParams, &xdr.DomainRestoreParamsArgs{Params: []xdr.TypedParam{file}, Flags: domaincalls.SaveRunning | domaincalls.SaveResetNVRAM}, nil)
	w.refused(xdr.ProcDomainAbortJobFlags, &xdr.DomainAbortJobFlagsArgs{Domain: d, Flags: 1}, rpc.CodeInvalidArg)
	w.refused(xdr.ProcDomainAbortJobFlags, &xdr.DomainAbortJobFlagsArgs{Domain: d}, rpc.CodeOperationInvalid)

	w.must(xdr.ProcDomainSaveParams, &xdr.DomainSaveParamsArgs{Domain: d}, nil) // without a file it is a managed one
	kept := new(xdr.DomainHasManagedSaveImageRet)
	w.must(xdr.ProcDomainHasManagedSaveImage, &xdr.DomainHasManagedSaveImageArgs{Domain: d}, kept)
	if !kept.Result {
		t.Error("a save without a file leaves no managed image")
	}
	w.must(xdr.ProcDomainManagedSaveRemove, &xdr.DomainManagedSaveRemoveArgs{Domain: d}, nil)
	w.must(xdr.ProcDomainUndefine, &xdr.DomainUndefineArgs{Domain: d}, nil)
	w.refused(xdr.ProcDomainGetState, &xdr.DomainGetStateArgs{Domain: d}, rpc.CodeNoDomain)
}
