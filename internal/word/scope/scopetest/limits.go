// Package scopetest makes scopes of restricted clients for tests.
package scopetest

import (
	"github.com/lodge-kvm/lodge/internal/word/domain"
	"github.com/lodge-kvm/lodge/internal/word/scope"
)

// Limits implements scope.Limits by its functions. A nil function allows everything.
type Limits struct {
	Call    func(uuid string) error
	Guest   func(uuid string, def *domain.Definition, written uint64) error
	Volume  func(pool, name string) error
	Network func(name string, written uint64) error
	Secret  func(pool, secret string) error
}

// Client returns the scope of a client with these limits that may open every path.
func Client(l Limits) scope.Scope { return scope.Client("a client", scope.Anywhere, l) }

// Authorize implements scope.Limits.
func (l Limits) Authorize(uuid string) error {
	if l.Call == nil {
		return nil
	}
	return l.Call(uuid)
}

// ReserveGuest implements scope.Limits.
func (l Limits) ReserveGuest(uuid string, def *domain.Definition, written uint64) error {
	if l.Guest == nil {
		return nil
	}
	return l.Guest(uuid, def, written)
}

// ReserveVolume implements scope.Limits.
func (l Limits) ReserveVolume(pool, name string) error {
	if l.Volume == nil {
		return nil
	}
	return l.Volume(pool, name)
}

// ReserveNetwork implements scope.Limits.
func (l Limits) ReserveNetwork(name string, written uint64) error {
	if l.Network == nil {
		return nil
	}
	return l.Network(name, written)
}

// OpenSecret implements scope.Limits.
func (l Limits) OpenSecret(pool, secret string) error {
	if l.Secret == nil {
		return nil
	}
	return l.Secret(pool, secret)
}
