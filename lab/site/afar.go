package site

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/lab/experiment"
	"github.com/lodge-kvm/lodge/lab/scenario"
	"github.com/lodge-kvm/lodge/lab/session"
)

// Away says whether the daemon is on another host, as far as its address tells.
func (s *Site) Away() bool { return s.target.Away() }

// HostCounters are what the daemon's host has counted, as the daemon tells.
func (s *Site) HostCounters(ctx context.Context) (map[string]float64, error) {
	return s.target.Counters(ctx)
}

// roomAfar is what the daemon tells of its host.
func (s *Site) roomAfar(ctx context.Context) (experiment.Room, error) {
	memory, err := s.target.MemoryAvailable(ctx)
	if err != nil {
		return experiment.Room{}, fault.Wrap(err, fault.Failed, fault.Host, "cannot tell how much memory the daemon's host has available")
	}
	disk, err := s.target.DiskAvailable(ctx, s.dir, s.files())
	if err != nil {
		return experiment.Room{}, fault.Wrap(err, fault.Of(err), fault.Host, "cannot tell how much of %s is free on the daemon's host", s.dir)
	}
	return experiment.Room{
		Memory: scenario.Size(memory), Disk: scenario.Size(disk), Processors: s.target.Processors(), Translated: s.target.Accelerator != "kvm", Afar: true,
	}, nil
}

// Where a guest answers once whoever asks for it at its address, and for how long.
const (
	knockPort     = 61613
	knockPatience = 15 * time.Second
	knockPause    = 200 * time.Millisecond
)

// answer is run in the guest: it says one word to the first who connects. A second
// more than it is waited for ends it.
const answer = `use IO::Socket::INET; alarm $ARGV[2];
	my $l = IO::Socket::INET->new(Listen => 1, LocalPort => $ARGV[0], ReuseAddr => 1) or die $!;
	my $c = $l->accept or die $!; print $c $ARGV[1]; close $c;`

// Reaches says why a guest does not answer the lab at its address. Another machine
// may have that address here, so the guest says a word that nobody else knows.
func (s *Site) Reaches(ctx context.Context, one experiment.Guest) error {
	g, ok := one.(*guest)
	if !ok {
		return fault.New(fault.Unsupported, fault.Agent, "it is no guest of the site")
	}
	ctx, stop := context.WithTimeoutCause(ctx, knockPatience, fault.New(fault.Timeout, fault.Network, "%s does not answer as the guest does within %s", g.Address(), knockPatience))
	defer stop()
	word := rand.Text()
	said := make(chan struct{})
	go func() {
		defer close(said)
		_, _ = g.session.Exec(ctx, session.Command{Argv: []string{"perl", "-e", answer, fmt.Sprint(knockPort), word, fmt.Sprint(int(knockPatience.Seconds()) + 1)}})
	}()
	err := knock(ctx, net.JoinHostPort(g.Address(), fmt.Sprint(knockPort)), word)
	stop()
	<-said
	return err
}

// knock tries an address until it says the word.
func knock(ctx context.Context, address, word string) error {
	again := time.NewTicker(knockPause)
	defer again.Stop()
	for {
		if heard := listen(ctx, address, len(word)); heard == word {
			return nil
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// listen gives the first words of whoever has an address; "" if nobody answers.
func listen(ctx context.Context, address string, length int) string {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return ""
	}
	defer conn.Close()
	end := context.AfterFunc(ctx, func() { conn.Close() })
	defer end()
	heard := make([]byte, length)
	n, _ := io.ReadFull(conn, heard)
	return string(heard[:n])
}
