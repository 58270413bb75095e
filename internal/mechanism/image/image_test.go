package image

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/mechanism/sandbox"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

const mib = 1 << 20

// quarters are the sandbox that the tool runs in during these tests, as in a daemon,
// on hosts that allow one.
var quarters = sync.OnceValue(func() *sandbox.Isolation {
	house, err := sandbox.NewBuilder("")
	if err != nil {
		return nil
	}
	users, err := sandbox.ParseUsers(sandbox.DefaultUsers(1 + uint32(os.Getpid())%(1<<14)))
	if err != nil {
		return nil
	}
	return &sandbox.Isolation{Builder: house, Users: users}
})

func tool(t *testing.T) *Tool {
	t.Helper()
	tool, err := FindTool(quarters(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Skip("needs qemu-img:", err)
	}
	return tool
}

// qemuImg runs the tool without a sandbox; its result is the reference.
func qemuImg(t *testing.T, args ...string) []byte {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "qemu-img", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("qemu-img %v: %v\n%s", args, err, out)
	}
	return out
}

func empty(t *testing.T, name string) *os.File {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(t.TempDir(), name), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func TestMake_MatchesQemuImgInfo(t *testing.T) {
	tool := tool(t)
	for name, p := range map[string]Plan{
		"raw thin":       {Format: Raw, Virtual: 5 * mib},
		"raw reserved":   {Format: Raw, Virtual: 5 * mib, Reserved: 2 * mib},
		"raw falloc":     {Format: Raw, Virtual: 5 * mib, Preallocation: Falloc, NoCOW: true},
		"raw full":       {Format: Raw, Virtual: 5 * mib, Preallocation: Full},
		"qcow2":          {Format: Qcow2, Virtual: 5 * mib},
		"qcow2 old":      {Format: Qcow2, Virtual: 5 * mib, Compat: "0.10"},
		"qcow2 features": {Format: Qcow2, Virtual: 5 * mib, LazyRefcounts: true, ExtendedL2: true, ClusterSize: 131072},
		"qcow2 metadata": {Format: Qcow2, Virtual: 5 * mib, Preallocation: Metadata},
		"qcow2 falloc":   {Format: Qcow2, Virtual: 5 * mib, Preallocation: Falloc},
		"qcow2 full":     {Format: Qcow2, Virtual: 5 * mib, Preallocation: Full},
		"qcow":           {Format: Qcow, Virtual: 5 * mib},
		"qed":            {Format: QED, Virtual: 5 * mib},
		"vdi":            {Format: VDI, Virtual: 5 * mib},
		"vmdk":           {Format: VMDK, Virtual: 5 * mib},
		"vpc":            {Format: VPC, Virtual: 5 * mib},
		"vhdx":           {Format: VHDX, Virtual: 8 * mib},
	} {
		t.Run(name, func(t *testing.T) {
			f := empty(t, "image")
			if err := tool.Make(t.Context(), f, p); err != nil {
				t.Fatal(err)
			}
			checkAgainstTool(t, f, p)
		})
	}
}

// checkAgainstTool compares our result for a header with that of qemu-img.
func checkAgainstTool(t *testing.T, f *os.File, p Plan) {
	t.Helper()
	var want struct {
		Virtual uint64 `json:"virtual-size"`
		Actual  uint64 `json:"actual-size"`
		Cluster uint64 `json:"cluster-size"`
		Special struct {
			Data struct {
				Compat   string
				Lazy     bool `json:"lazy-refcounts"`
				Extended bool `json:"extended-l2"`
			}
		} `json:"format-specific"`
	}
	if err := json.Unmarshal(qemuImg(t, "info", "-f", string(p.Format), "--output=json", f.Name()), &want); err != nil {
		t.Fatal(err)
	}
	got, err := Inspect(f, "")
	if err != nil {
		t.Fatal(err)
	}
	if got.Format != p.Format || got.Virtual != want.Virtual || got.Allocated != want.Actual {
		t.Errorf("read %+v, the tool %+v", got, want)
	}
	if p.Format == Qcow2 {
		d := want.Special.Data
		if got.Compat != d.Compat || got.LazyRefcounts != d.Lazy || got.ExtendedL2 != d.Extended || got.ClusterSize != want.Cluster {
			t.Errorf("read %+v, the tool %+v", got, want)
		}
		if p.LazyRefcounts && !got.LazyRefcounts || p.ExtendedL2 && !got.ExtendedL2 || p.ClusterSize > 0 && got.ClusterSize != p.ClusterSize {
			t.Errorf("planned %+v, made %+v", p, got)
		}
	}
	switch {
	case p.Preallocation == Falloc || p.Preallocation == Full:
		if got.Allocated < p.Virtual {
			t.Errorf("only %d bytes are allocated", got.Allocated)
		}
	case got.Allocated > p.Reserved+2*mib:
		t.Errorf("%d bytes are allocated of a thin image", got.Allocated)
	}
}

func TestSplitVMDKSize(t *testing.T) {
	tool(t)
	path := filepath.Join(t.TempDir(), "flat.vmdk")
	qemuImg(t, "create", "-q", "-f", "vmdk", "-o", "subformat=monolithicFlat", path, "3M")
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := Inspect(f, "")
	if err != nil || info.Format != VMDK || info.Virtual != 3*mib || !info.ExternalData {
		t.Fatalf("%+v, %v", info, err)
	}
	if _, err := OpenChain(t.Context(), scope.Daemon("a test"), path, VMDK); !fault.Is(err, fault.Unsupported) {
		t.Fatalf("an image that names other files for its data gives %v", err)
	}
}

func TestPlan_Refused(t *testing.T) {
	base := &Backing{Name: "/b", Format: Raw}
	for name, p := range map[string]Plan{
		"backing of raw":      {Format: Raw, Backing: base},
		"metadata of raw":     {Format: Raw, Preallocation: Metadata},
		"unknown compat":      {Format: Qcow2, Compat: "2"},
		"lazy and old":        {Format: Qcow2, Compat: "0.10", LazyRefcounts: true},
		"odd cluster":         {Format: Qcow2, ClusterSize: 65537},
		"huge cluster":        {Format: Qcow2, ClusterSize: 1 << 22},
		"relative backing":    {Format: Qcow2, Backing: &Backing{Name: "b", Format: Raw}},
		"undeclared backing":  {Format: Qcow2, Backing: &Backing{Name: "/b"}},
		"backing and falloc":  {Format: Qcow2, Backing: base, Preallocation: Falloc},
		"more than 63 bits":   {Format: Raw, Virtual: 1 << 63},
		"backing by protocol": {Format: Qcow2, Backing: &Backing{Name: "nbd://h/x", Format: Raw}},
	} {
		if err := p.Check(); !fault.Is(err, fault.Invalid) && !fault.Is(err, fault.Unsupported) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Promise: X2
func TestInspect_DeclaredRaw(t *testing.T) {
	tool := tool(t)
	dir := t.TempDir()
	secret, disk := filepath.Join(dir, "secret"), filepath.Join(dir, "disk")
	if err := os.WriteFile(secret, bytes.Repeat([]byte("S"), mib), 0o600); err != nil {
		t.Fatal(err)
	}
	// Headers that a hostile guest writes on its raw disk.
	qemuImg(t, "create", "-q", "-f", "qcow2", "-b", secret, "-F", "raw", disk)
	chain, err := OpenChain(t.Context(), scope.Daemon("a test"), disk, Raw)
	if err != nil {
		t.Fatal(err)
	}
	defer chain.Close()
	if len(chain) != 1 || chain[0].Format != Raw || chain[0].Backing != nil {
		t.Fatalf("a raw image was followed: %+v", chain)
	}
	into := empty(t, "copy")
	if err := into.Truncate(int64(chain[0].Virtual)); err != nil {
		t.Fatal(err)
	}
	if err := tool.Convert(t.Context(), Copy{From: chain, Into: into, Format: Raw}); err != nil {
		t.Fatal(err)
	}
	want, _ := os.ReadFile(disk)
	got, err := os.ReadFile(into.Name())
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("the copy is not the raw bytes (%d, %d), %v", len(got), len(want), err)
	}
}

func TestInspect_UndeclaredLUKS(t *testing.T) {
	f := empty(t, "luks")
	head := make([]byte, mib)
	copy(head, "LUKS\xba\xbe\x00\x01")
	head[106] = 4 // its data start at sector 1024
	if _, err := f.Write(head); err != nil {
		t.Fatal(err)
	}
	if info, err := Inspect(f, ""); err != nil || info.Format != Raw || !info.Encrypted || info.Virtual != mib/2 {
		t.Errorf("%+v, %v", info, err)
	}
	// A guest cannot change the size of its raw disk by writing a header into it.
	if info, err := Inspect(f, Raw); err != nil || info.Encrypted || info.Virtual != mib {
		t.Errorf("%+v, %v", info, err)
	}
}

func TestConvert_Chain(t *testing.T) {
	tool := tool(t)
	dir := t.TempDir()
	base, middle, top := filepath.Join(dir, "base.raw"), filepath.Join(dir, "middle"), filepath.Join(dir, "top")
	content := bytes.Repeat([]byte("lodge\n"), 400_000)
	content = content[:2*mib]
	if err := os.WriteFile(base, content, 0o600); err != nil {
		t.Fatal(err)
	}
	qemuImg(t, "create", "-q", "-f", "qcow2", "-b", "base.raw", "-F", "raw", middle)
	qemuImg(t, "create", "-q", "-f", "qcow2", "-b", middle, "-F", "qcow2", top)
	chain, err := OpenChain(t.Context(), scope.Daemon("a test"), top, Qcow2)
	if err != nil {
		t.Fatal(err)
	}
	defer chain.Close()
	if len(chain) != 3 || chain[2].Path != base || chain[2].Format != Raw {
		t.Fatalf("chain %+v", chain)
	}
	for _, format := range []Format{Raw, Qcow2} {
		into := empty(t, "copy")
		if err := tool.Make(t.Context(), into, Plan{Format: format, Virtual: chain[0].Virtual}); err != nil {
			t.Fatal(err)
		}
		var last float64
		if err := tool.Convert(t.Context(), Copy{From: chain, Into: into, Format: format, Progress: func(p float64) { last = p }}); err != nil {
			t.Fatal(err)
		}
		if last != 1 {
			t.Errorf("progress ended at %v", last)
		}
		qemuImg(t, "compare", "-f", "raw", "-F", string(format), base, into.Name())
	}
}

// A raw copy writes its first bytes last. Until then it begins with zeros; a finished copy is equal to its source.
// Promise: F33
func TestConvert_InterruptedRawCopyBeginsWithZeros(t *testing.T) {
	whole := tool(t)
	top := filepath.Join(t.TempDir(), "top")
	qemuImg(t, "create", "-q", "-f", "qcow2", top, "4M")
	if out, err := exec.CommandContext(t.Context(), "qemu-io", "-f", "qcow2", "-c", "write -P 7 0 2M", "-c", "write -P 8 3M 512K", top).CombinedOutput(); err != nil {
		t.Skipf("needs qemu-io: %v: %s", err, out)
	}
	chain, err := OpenChain(t.Context(), scope.Daemon("a test"), top, Qcow2)
	if err != nil {
		t.Fatal(err)
	}
	defer chain.Close()
	script := filepath.Join(t.TempDir(), "qemu-img")
	text := fmt.Sprintf("#!/bin/sh\n[ ! -e %[1]s.ran ] && touch %[1]s.ran && exec %[2]s \"$@\"\n", script, whole.path)
	if err := os.WriteFile(script, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	once := &Tool{path: script, log: whole.log} // and then fails
	for _, tool := range []*Tool{whole, once} {
		into := empty(t, "copy")
		if err := whole.Make(t.Context(), into, Plan{Format: Raw, Virtual: 5 * mib}); err != nil {
			t.Fatal(err)
		}
		done := 0.0
		progress := func(share float64) {
			if share < done {
				t.Errorf("after %v of it %v are done", done, share)
			}
			done = share
		}
		if err := tool.Convert(t.Context(), Copy{From: chain, Into: into, Format: Raw, Last: mib, IntoKey: []byte("k")}); !fault.Is(err, fault.Internal) {
			t.Errorf("one that is encrypted: %v", err)
		}
		if err := tool.Convert(t.Context(), Copy{From: chain, Into: into, Format: Raw, Last: mib, Progress: progress}); (err != nil) != (tool == once) {
			t.Fatal(err)
		}
		got, err := os.ReadFile(into.Name())
		if err != nil {
			t.Fatal(err)
		}
		first := byte(7)
		if tool == once {
			first = 0
		}
		want := slices.Concat(bytes.Repeat([]byte{first}, mib), bytes.Repeat([]byte{7}, mib), make([]byte, mib), bytes.Repeat([]byte{8}, mib/2), make([]byte, 3*mib/2))
		if !bytes.Equal(got, want) {
			t.Errorf("the copy is another; cut off: %v", tool == once)
		}
	}
}

// Promise: X2
func TestOpenChain_Refused(t *testing.T) {
	tool(t)
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	overlay := func(name, backing, format string) {
		args := []string{"create", "-q", "-f", "qcow2", "-u", "-b", backing}
		if format != "" {
			args = append(args, "-F", format)
		}
		qemuImg(t, append(args, at(name), "1M")...)
	}
	overlay("loop1", at("loop2"), "qcow2")
	overlay("loop2", at("loop1"), "qcow2")
	overlay("self", "./self", "qcow2")
	overlay("net", "nbd://example.invalid/x", "raw")
	overlay("device", "/dev/null", "raw")
	overlay("gone", at("nothing"), "raw")
	qemuImg(t, "create", "-q", "-f", "qcow2", "-o", "data_file="+at("data")+",data_file_raw=on", at("external"), "1M")
	overlay("deep0", at("gone"), "qcow2")
	for i := range MaxDepth {
		overlay(fmt.Sprint("deep", i+1), at(fmt.Sprint("deep", i)), "qcow2")
	}
	qemuImg(t, "create", "-q", "-f", "qcow2", at("whole"), "1M")
	overlay("declared", at("whole"), "qcow2")
	patchOutFormat(t, at("declared"), at("undeclared"))
	locked := func(name string, method byte) {
		image, err := os.ReadFile(at("whole"))
		if err == nil {
			image[35] = method // of encryption
			err = os.WriteFile(at(name), image, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	locked("old", 1)
	locked("luks", 2)
	overlay("above-luks", at("luks"), "qcow2")
	first := append([]byte("QFI\xfb\x00\x00\x00\x01"), make([]byte, 64)...) // of the first version
	first[39] = 1                                                           // encrypted
	if err := os.WriteFile(at("first"), first, 0o600); err != nil {
		t.Fatal(err)
	}
	overlay("above-first", at("first"), "qcow")
	fifo := at("fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	overlay("pipe", fifo, "raw")
	for _, node := range []string{fifo, "/dev/null", dir} { // opening such a node can do harm
		if f, err := Open(node); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s is opened: %v, %v", node, f, err)
		}
	}
	for name, want := range map[string]struct {
		kind  fault.Kind
		words string
	}{
		"loop1": {fault.Invalid, "loop"}, "self": {fault.Invalid, "loop"}, "net": {fault.Unsupported, "not a local file"},
		"device": {fault.Invalid, "neither a file nor"}, "gone": {fault.NotFound, "nothing"}, "external": {fault.Unsupported, "external file"},
		fmt.Sprint("deep", MaxDepth): {fault.Invalid, "more than"}, "undeclared": {fault.Invalid, "declare its format"}, "pipe": {fault.Invalid, "neither a file nor"},
		"old": {fault.Unsupported, "old encryption"}, "above-luks": {fault.Unsupported, "only the uppermost"}, "above-first": {fault.Unsupported, "old encryption"},
	} {
		chain, err := OpenChain(t.Context(), scope.Daemon("a test"), at(name), Qcow2)
		if err == nil {
			chain.Close()
		}
		if err == nil || fault.Of(err) != want.kind || !strings.Contains(err.Error(), want.words) {
			t.Errorf("%s: %v (%v), want %v, %q", name, err, fault.Of(err), want.kind, want.words)
		}
	}
}

// patchOutFormat copies a qcow2 image and changes the type of the header extension
// that declares the format of the backing file into an unknown one.
func patchOutFormat(t *testing.T, from, to string) {
	t.Helper()
	image, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	patched := bytes.Replace(image, []byte("\xe2\x79\x2a\xca"), []byte("\x00\x00\x00\x01"), 1)
	if bytes.Equal(patched, image) {
		t.Fatal("nothing to patch")
	}
	if err := os.WriteFile(to, patched, 0o600); err != nil {
		t.Fatal(err)
	}
}

// Promise: X2, X7
func TestInspect_HostileHeaders(t *testing.T) {
	qcow2 := func(change func(h []byte)) []byte {
		h := make([]byte, 512)
		copy(h, "QFI\xfb\x00\x00\x00\x03")
		h[23], h[103] = 16, 104
		change(h)
		return h
	}
	for name, image := range map[string][]byte{
		"short":              []byte("QFI\xfb\x00\x00\x00\x03"),
		"clusters of 2^255":  qcow2(func(h []byte) { h[23] = 255 }),
		"header of 4 GiB":    qcow2(func(h []byte) { copy(h[100:], "\xff\xff\xff\xff") }),
		"size of 64 bits":    qcow2(func(h []byte) { copy(h[24:], "\xff\xff\xff\xff\xff\xff\xff\xff") }),
		"name far away":      qcow2(func(h []byte) { copy(h[8:], "\x7f\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x04") }),
		"name wraps":         qcow2(func(h []byte) { copy(h[8:], "\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x04") }),
		"name of 4 GiB":      qcow2(func(h []byte) { copy(h[8:], "\x00\x00\x00\x00\x00\x00\x01\x00\xff\xff\xff\xff") }),
		"extension of 4 GiB": qcow2(func(h []byte) { h[15], h[14], h[19] = 0, 1, 4; copy(h[104:], "\x01\x01\x01\x01\xff\xff\xff\xff") }),
		"vhdx cut":           []byte("vhdxfile"),
		"vmdk of long name":  []byte("# Disk DescriptorFile\nparentFileNameHint=\"" + strings.Repeat("/.", maxBackingName) + "\"\n"),
		"vdi cut":            append(make([]byte, 64), "\x7f\x10\xda\xbe"...),
	} {
		f := empty(t, "hostile")
		if _, err := f.Write(image); err != nil {
			t.Fatal(err)
		}
		info, err := Inspect(f, "")
		if !fault.Is(err, fault.Invalid) || info.Format == "" || info.Physical != uint64(len(image)) {
			t.Errorf("%s: %+v, %v", name, info, err)
		}
	}
}

func TestResize(t *testing.T) {
	tool := tool(t)
	for _, format := range []Format{Raw, Qcow2} {
		f := empty(t, "image")
		if err := tool.Make(t.Context(), f, Plan{Format: format, Virtual: 4 * mib}); err != nil {
			t.Fatal(err)
		}
		size := func(want uint64) {
			t.Helper()
			if info, err := Inspect(f, format); err != nil || info.Virtual != want {
				t.Fatalf("%s has %d bytes, want %d, %v", format, info.Virtual, want, err)
			}
		}
		if err := tool.Resize(t.Context(), f, format, Growth{Size: 8 * mib, Grown: Falloc}); err != nil {
			t.Fatal(err)
		}
		size(8 * mib)
		if info, _ := Inspect(f, format); info.Allocated < 4*mib {
			t.Errorf("%s grew without its space: %d", format, info.Allocated)
		}
		if err := tool.Resize(t.Context(), f, format, Growth{Size: mib}); !fault.Is(err, fault.Invalid) {
			t.Fatalf("shrunk without being told to: %v", err)
		}
		size(8 * mib)
		if err := tool.Resize(t.Context(), f, format, Growth{Size: mib, Shrink: true}); err != nil {
			t.Fatal(err)
		}
		size(mib)
	}
}

func TestConvert_Cancelled(t *testing.T) {
	// A stand-in that never ends on its own and writes its PID: this tests how the tool's
	// process is ended, not the tool.
	dir := t.TempDir()
	script := filepath.Join(dir, "stuck")
	pidFile := filepath.Join(dir, "pid")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nsleep 1000 &\necho $! > "+pidFile+".new; mv "+pidFile+".new "+pidFile+"\necho '(1.00/100%)'; wait\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	stuck := &Tool{path: script, log: slog.New(slog.DiscardHandler)}
	gone := errors.New("the client has gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	grandchild := -1
	err := stuck.run(ctx, bounds{cpu: time.Minute}, nil, &progress{tell: func(float64) {
		defer cancel(gone)
		text, err := os.ReadFile(pidFile)
		if err != nil {
			t.Error(err)
			return
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			t.Error(err)
			return
		}
		if grandchild, err = unix.PidfdOpen(pid, 0); err != nil {
			t.Error(err)
		}
	}})
	if !errors.Is(err, gone) || grandchild < 0 {
		t.Fatalf("got %v, want the cause", err)
	}
	// It is killed with its process group, and ends as soon as the kernel gets to it.
	fds := []unix.PollFd{{Fd: int32(grandchild), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 10_000)
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Poll(fds, 10_000)
	}
	if n != 1 || err != nil {
		t.Errorf("a child outlives the cancelled work: %d, %v", n, err)
	}
	if err := unix.Close(grandchild); err != nil {
		t.Error(err)
	}
}

// Promise: X7
func TestTool_Limits(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, "tell")
	// The limits are set just after the start, so the child reads them until they are in force.
	if err := os.WriteFile(script, []byte("#!/bin/sh\nuntil [ $(ulimit -t) = 7 ] && [ $(ulimit -v) = 8388608 ] && [ $(ulimit -c) = 0 ]; do :; done\n"+
		"head -c 10000000 /dev/zero >&2\nexit 1\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	bounded := &Tool{path: script, log: slog.New(slog.DiscardHandler)}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	err := bounded.run(ctx, bounds{cpu: 7 * time.Second}, nil, nil)
	if !fault.Is(err, fault.Failed) || len(err.Error()) > maxSaid+100 {
		t.Fatalf("kind %v, %d bytes of error", fault.Of(err), len(err.Error()))
	}
}

func TestInUse_SeesQEMU(t *testing.T) {
	f := empty(t, "image")
	if InUse(f) != Unused {
		t.Fatal("in use though nobody has it")
	}
	other, err := os.OpenFile(f.Name(), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	lock := func(at int64) {
		if err := unix.FcntlFlock(other.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_RDLCK, Start: at, Len: 1}); err != nil {
			t.Skip("no such locks on this file system:", err)
		}
	}
	lock(100)
	if got := InUse(f); got != Read {
		t.Errorf("a reader shows as %v", got)
	}
	lock(101)
	if got := InUse(f); got != Written {
		t.Errorf("a writer shows as %v", got)
	}
}

func TestProgress_InPieces(t *testing.T) {
	var got []float64
	p := &progress{tell: func(share float64) { got = append(got, share) }}
	for _, piece := range []string{"    (0.00/100%)\r  (1", "2.50/10", "0%)\r (x/100%) (", strings.Repeat("9", 100), "(100.00/100%)\n"} {
		if _, err := p.Write([]byte(piece)); err != nil {
			t.Fatal(err)
		}
	}
	if want := []float64{0, 0.125, 1}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("got %v, want %v", got, want)
	}
}
