// Package polkit asks the host's polkit, over the system bus, whether a process may
// come in. What belongs here: the question, its answer and its bounds. What does
// not: who is asked about what, and what follows from an answer.
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

// The actions, by libvirt's names, for which hosts have policies already.
const (
	Manage  = "org.libvirt.unix.manage"  // do everything
	Monitor = "org.libvirt.unix.monitor" // look
)

// Why a process may not come in, besides that polkit could not be asked.
var (
	// ErrNoAgent says that somebody would have to show who he is, and that
	// nothing is there to ask him by.
	ErrNoAgent = errors.New("no polkit agent is there to ask who you are")
	// ErrDismissed says that he was asked, and did not want to say.
	ErrDismissed = errors.New("the question who you are was dismissed")
	// ErrRefused says that the policy says no.
	ErrRefused = errors.New("its policy says no")
)

// Patience is how long an answer may take: the time to type a password.
const Patience = 30 * time.Second

// Bounds of questions under way. Each is a connection of the daemon's to the bus.
const (
	maxQuestions = 128
	maxEach      = 8 // about processes of one user
)

// Authority is the host's polkit. Each question has a connection to the bus of its
// own: none waits behind another, and a bus that was started anew is found.
type Authority struct {
	bus      string // its address; empty: the system's, which the environment may name
	patience time.Duration

	mu    sync.Mutex
	under map[uint32]int // questions under way, by user
	all   int
}

// New makes an authority. It asks nothing yet: a bus that is not there is
// said to those who come in by it.
func New() *Authority { return &Authority{patience: Patience, under: map[uint32]int{}} }

// Check asks whether a process may do something. Without an answer it may not.
func (a *Authority) Check(ctx context.Context, p Process, action string) error {
	if !a.begin(p.UID) {
		return fault.New(fault.Denied, fault.Call, "polkit has not answered %d questions yet, or %d about user %d; try again later", maxQuestions, maxEach, p.UID)
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
		return fault.Wrap(ErrDismissed, fault.Denied, fault.Call, "user %d has no %s", p.UID, action)
	case v.Challenge:
		return fault.Wrap(ErrNoAgent, fault.Denied, fault.Call, "user %d has no %s", p.UID, action)
	}
	return fault.Wrap(ErrRefused, fault.Denied, fault.Call, "polkit does not give user %d %s", p.UID, action)
}

// startPatience is how long polkit may take to begin: the bus starts it when it is
// first asked.
const startPatience = 5 * time.Second

// Answers says why polkit cannot decide who comes in: no bus, no polkit on it, or one
// without a policy of the actions.
func (a *Authority) Answers(ctx context.Context) error {
	ctx, stop := context.WithTimeoutCause(ctx, startPatience, fault.New(fault.Timeout, fault.Host, "no answer within %v", startPatience))
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

// description is what polkit tells of an action; its first word is the name.
type description struct {
	Action, Text, Message, Vendor, VendorURL, Icon string
	Any, Inactive, Active                          uint32
	Annotations                                    map[string]string
}

// hasPolicy looks for the actions among those that polkit has policies of.
func hasPolicy(ctx context.Context, bus *dbus.Conn) error {
	var all []description
	err := bus.Object(polkitName, polkitPath).CallWithContext(ctx, authority+"EnumerateActions", 0, "").Store(&all)
	if told, ok := errors.AsType[dbus.Error](err); ok && told.Name == "org.freedesktop.DBus.Error.UnknownMethod" {
		return nil // it is there, and says of what when it is asked
	}
	if err != nil {
		return err
	}
	for _, action := range []string{Manage, Monitor} {
		if !slices.ContainsFunc(all, func(d description) bool { return d.Action == action }) {
			return fault.New(fault.NotFound, fault.Host, "it has no policy of %s: put packaging/org.libvirt.unix.policy into /usr/share/polkit-1/actions", action)
		}
	}
	return nil
}

// verdict is polkit's answer.
type verdict struct {
	Authorized, Challenge bool
	Details               map[string]string
}

// subject is what polkit calls somebody who asks for something.
type subject struct {
	Kind    string
	Details map[string]dbus.Variant
}

const (
	polkitName = "org.freedesktop.PolicyKit1"
	polkitPath = "/org/freedesktop/PolicyKit1/Authority"
	authority  = "org.freedesktop.PolicyKit1.Authority."
	// mayInteract lets polkit ask the user for a password.
	mayInteract = uint32(1)
	// question names the one question of a connection, to take it back.
	question = "login"
)

func (a *Authority) ask(ctx context.Context, p Process, action string) (v verdict, err error) {
	// The connection outlives the patience by a word: that nobody waits any more.
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
	if a.all >= maxQuestions || a.under[uid] >= maxEach {
		return false
	}
	a.all++
	a.under[uid]++
	return true
}

func (a *Authority) end(uid uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all--
	if a.under[uid]--; a.under[uid] == 0 {
		delete(a.under, uid)
	}
}
