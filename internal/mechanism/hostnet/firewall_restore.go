package hostnet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/lodge-kvm/lodge/internal/base/fault"
)

// Restore puts back the rules in force that another program removed, and returns
// the bridges that had lost some.
func (f *Firewall) Restore() (lacking []string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.applied) == 0 {
		return nil, nil
	}
	c, err := firewallConn()
	if err == nil {
		lacking, err = f.lacking(c)
	}
	if err == nil && len(lacking) > 0 {
		err = f.applyAgain(lacking)
	}
	return lacking, fault.Wrap(err, fault.Failed, fault.Host, "cannot restore the firewall rules of table %q", f.table.Name)
}

// lacking returns the bridges that miss some of their rules. It only counts rules:
// an administrator who adds or replaces one is responsible for it.
func (f *Firewall) lacking(c *nftables.Conn) ([]string, error) {
	all := slices.Sorted(maps.Keys(f.applied))
	there, err := f.exists(c)
	if err != nil || !there {
		f.laid = f.laid && there
		return all, err
	}
	now, err := f.look(c)
	if err != nil {
		return nil, err
	}
	has := func(chain string, least int) bool {
		if err != nil || !now.chains[chain] {
			return false
		}
		var rules []*nftables.Rule
		rules, err = c.GetRules(&f.table, &nftables.Chain{Name: chain, Table: &f.table})
		return len(rules) >= least
	}
	if !has("forward", 2) || !has("postrouting", 1) {
		f.laid = false
		return all, err
	}
	var lacking []string
	for _, bridge := range all {
		for i, rules := range f.applied[bridge].compile() {
			if !now.jumps[i][bridge] || !has(bridge+chainSuffix[i], len(rules)) {
				lacking = append(lacking, bridge)
				break
			}
		}
	}
	return lacking, err
}

// applyAgain puts the rules of bridges in force. If leftovers prevent that, such as a chain
// that another program attached to a different hook, it makes the whole table again.
func (f *Firewall) applyAgain(bridges []string) error {
	again := func(bridges []string) error {
		for _, bridge := range bridges {
			c, err := firewallConn()
			if err == nil {
				err = f.apply(c, f.applied[bridge])
			}
			if err != nil {
				return fmt.Errorf("bridge %q: %w", bridge, err)
			}
		}
		return nil
	}
	err := again(bridges)
	if err == nil {
		return nil
	}
	c, e := firewallConn()
	if e != nil {
		return errors.Join(err, e)
	}
	c.AddTable(&f.table) // so that there is one to remove
	c.DelTable(&f.table)
	if e := c.Flush(); e != nil {
		return errors.Join(err, e)
	}
	f.laid = false
	return again(slices.Sorted(maps.Keys(f.applied)))
}

// FirewallWatch reports removals from the table of a Firewall by other programs.
type FirewallWatch struct {
	conn        *netlink.Conn
	table, self string
	taken       bool // the transaction that is being received removes something
}

// Watch starts listening. Only Restore finds rules that were removed before.
func (f *Firewall) Watch() (*FirewallWatch, error) {
	w := &FirewallWatch{table: f.table.Name}
	self, err := os.ReadFile("/proc/self/comm")
	if err == nil {
		w.self = strings.TrimSpace(string(self))
		w.conn, err = netlink.Dial(unix.NETLINK_NETFILTER, nil)
	}
	if err == nil {
		if err = w.conn.JoinGroup(unix.NFNLGRP_NFTABLES); err != nil {
			_ = w.conn.Close()
		}
	}
	return w, fault.Wrap(err, fault.Failed, fault.Host, "cannot listen to changes of the firewall")
}

// Close ends the watch.
func (w *FirewallWatch) Close() { _ = w.conn.Close() }

// Next waits until another program has removed something from the table, and returns the program's name.
// It returns "" when messages of the kernel were lost for lack of space: something may have been removed then.
func (w *FirewallWatch) Next(ctx context.Context) (by string, err error) {
	defer context.AfterFunc(ctx, func() { _ = w.conn.SetReadDeadline(time.Now()) })()
	for ctx.Err() == nil {
		told, err := w.conn.Receive()
		if errors.Is(err, unix.ENOBUFS) {
			w.taken = false
			return "", nil
		}
		if err != nil {
			return "", fault.Wrap(err, fault.Failed, fault.Host, "cannot receive changes of the firewall")
		}
		for _, m := range told {
			if who := w.hear(m); who != "" {
				by = who
			}
		}
		if by != "" {
			return by, nil
		}
	}
	return "", context.Cause(ctx)
}

// hear reads one message. The kernel sends the parts of a transaction one by one, and at its end the name of the
// program that made it. A transaction of this program itself is no loss.
func (w *FirewallWatch) hear(m netlink.Message) (by string) {
	kind := uint16(m.Header.Type)
	if kind>>8 != unix.NFNL_SUBSYS_NFTABLES || len(m.Data) < 4 {
		return ""
	}
	attributes, err := netlink.NewAttributeDecoder(m.Data[4:])
	if err != nil {
		return ""
	}
	switch kind & 0xff {
	case unix.NFT_MSG_DELTABLE, unix.NFT_MSG_DELCHAIN, unix.NFT_MSG_DELRULE, unix.NFT_MSG_DELSET, unix.NFT_MSG_DELSETELEM:
		for attributes.Next() { // the table's name has one number in all of them
			if attributes.Type() == unix.NFTA_TABLE_NAME && attributes.String() == w.table {
				w.taken = true
			}
		}
	case unix.NFT_MSG_NEWGEN:
		for attributes.Next() {
			if attributes.Type() == unix.NFTA_GEN_PROC_NAME {
				by = attributes.String()
			}
		}
		taken := w.taken && by != w.self
		w.taken = false
		if taken {
			return cmp.Or(by, "an unknown program")
		}
	}
	return ""
}
