// Package polkit asks the host's polkit, over the system bus, whether a process may
// connect. It holds the question, its answer and its bounds. It does not decide
// which clients are checked for which action, nor how an answer is used.
package polkit

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// The actions have libvirt's names, because hosts have policies for these already.
const (
	Manage  = "org.libvirt.unix.manage"  // do everything
	Monitor = "org.libvirt.unix.monitor" // look only
)

// Reasons for a refusal, beside the failure to ask polkit.
var (
	// ErrNoAgent says that the user would have to authenticate, and that
	// no agent runs that could ask for the password.
	ErrNoAgent = errors.New("no polkit agent is running that could ask for a password")
	// ErrDismissed says that the user cancelled the authentication.
	ErrDismissed = errors.New("authentication was cancelled")
	// ErrRefused says that the policy refuses the action.
	ErrRefused = errors.New("its policy refuses")
)

// Patience is how long an answer may take: the time to type a password.
const Patience = 30 * time.Second

// Bounds of open questions. Each one is a connection of the daemon to the bus.
const (
	maxQuestions = 128
	maxPerUser   = 8 // about processes of one user
)

// Authority is the host's polkit. Each question has a connection to the bus of its
// own: questions do not wait for each other, and a restarted bus is found.
type Authority struct {
	bus      string // its address; empty: the system bus, which the environment may name
	patience time.Duration

	mu      sync.Mutex
	pending map[uint32]int // open questions by user
	all     int
}

// New makes an authority. It connects to nothing yet: a missing bus is reported
// to the client that needs it.
func New() *Authority { return &Authority{patience: Patience, pending: map[uint32]int{}} }

// Check asks whether a process may do something. Without an answer the result is a refusal.
func (a *Authority) Check(ctx context.Context, p Process, action string) error {
	if !a.begin(p.UID) {
		return fault.New(fault.Denied, fault.Call, "polkit has not answered %d questions yet, or %d about user %d; try again later", maxQuestions, maxPerUser, p.UID)
	}
	defer a.end(p.UID)
	ctx, stop := context.WithTimeoutCause(ctx, a.patience, fault.New(fault.Timeout, fault.Host, "no answer within %v", a.patience))
	defer stop()
	v, err := a.ask(ctx, p, action)
	switch {
	case err != nil:
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return fault.Wrap(err, fault.Denied, fault.Call, "cannot ask polkit whether user %d has %s", p.UID, action)
	case v.Authorized:
		return nil
	case v.Details["polkit.dismissed"] != "":
		return fault.Wrap(ErrDismissed, fault.Denied, fault.Call, "polkit has not authorized user %d for %s", p.UID, action)
	case v.Challenge:
		return fault.Wrap(ErrNoAgent, fault.Denied, fault.Call, "polkit has not authorized user %d for %s", p.UID, action)
	}
	return fault.Wrap(ErrRefused, fault.Denied, fault.Call, "polkit does not give user %d %s", p.UID, action)
}

// startTimeout is how long polkit may take to start: the bus starts it for the
// first question.
const startTimeout = 5 * time.Second

// Answers returns why polkit cannot decide about clients: there is no bus, no polkit on it, or a polkit
// without a policy for the actions.
func (a *Authority) Answers(ctx context.Context) error {
	ctx, stop := context.WithTimeoutCause(ctx, startTimeout, fault.New(fault.Timeout, fault.Host, "no answer within %v", startTimeout))
	defer stop()
	bus, err := a.connect(ctx)
	if err == nil {
		defer func() { _ = bus.Close() }()
		err = hasPolicy(ctx, bus)
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return fault.Wrap(err, fault.Failed, fault.Host, "cannot ask polkit who may manage guests")
}

// description is polkit's description of an action; its first field is the name.
type description struct {
	Action, Text, Message, Vendor, VendorURL, Icon string
	Any, Inactive, Active                          uint32
	Annotations                                    map[string]string
}

// hasPolicy reports an error if polkit has no policy for the actions.
func hasPolicy(ctx context.Context, bus *dbus.Conn) error {
	var all []description
	err := bus.Object(polkitName, polkitPath).CallWithContext(ctx, authority+"EnumerateActions", 0, "").Store(&all)
	if told, ok := errors.AsType[dbus.Error](err); ok && told.Name == "org.freedesktop.DBus.Error.UnknownMethod" {
		return nil // polkit runs; it reports the failure again for a question
	}
	if err != nil {
		return err
	}
	for _, action := range []string{Manage, Monitor} {
		if !slices.ContainsFunc(all, func(d description) bool { return d.Action == action }) {
			return fault.New(fault.NotFound, fault.Host, "it has no policy for %s: copy packaging/org.libvirt.unix.policy into /usr/share/polkit-1/actions", action)
		}
	}
	return nil
}

// verdict is polkit's answer.
type verdict struct {
	Authorized, Challenge bool
	Details               map[string]string
}

// subject is polkit's term for the process that a question is about.
type subject struct {
	Kind    string
	Details map[string]dbus.Variant
}

const (
	polkitName = "org.freedesktop.PolicyKit1"
	polkitPath = "/org/freedesktop/PolicyKit1/Authority"
	authority  = "org.freedesktop.PolicyKit1.Authority."
	// mayInteract allows polkit to ask the user for a password.
	mayInteract = uint32(1)
	// question is the ID of a connection's only question, for its cancellation.
	question = "login"
)

func (a *Authority) ask(ctx context.Context, p Process, action string) (v verdict, err error) {
	// The connection outlives the patience by one message: the cancellation.
	open, hangUp := context.WithCancelCause(context.WithoutCancel(ctx))
	defer hangUp(nil)
	impatient := context.AfterFunc(ctx, func() { hangUp(context.Cause(ctx)) })
	bus, err := a.connect(open)
	if err != nil {
		return v, err
	}
	defer func() { _ = bus.Close() }()
	impatient()
	polkit := bus.Object(polkitName, polkitPath)
	err = polkit.CallWithContext(ctx, authority+"CheckAuthorization", 0, p.subject(), action, map[string]string{}, mayInteract, question).Store(&v)
	if ctx.Err() != nil {
		polkit.Go(authority+"CancelCheckAuthorization", dbus.FlagNoReplyExpected, nil, question)
	}
	return v, err
}

func (a *Authority) connect(ctx context.Context) (*dbus.Conn, error) {
	if a.bus == "" {
		return dbus.ConnectSystemBus(dbus.WithContext(ctx))
	}
	return dbus.Connect(a.bus, dbus.WithContext(ctx))
}

func (a *Authority) begin(uid uint32) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.all >= maxQuestions || a.pending[uid] >= maxPerUser {
		return false
	}
	a.all++
	a.pending[uid]++
	return true
}

func (a *Authority) end(uid uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all--
	if a.pending[uid]--; a.pending[uid] == 0 {
		delete(a.pending, uid)
	}
}
