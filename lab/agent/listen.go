package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"sync"
)

// Listen answers on a unix socket until ctx ends: what a port is in a guest. A
// socket that is there already is replaced.
func Listen(ctx context.Context, path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot replace %s: %w", path, err)
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "unix", path)
	if err != nil {
		return fmt.Errorf("cannot listen: %w", err)
	}
	var open sync.WaitGroup
	defer open.Wait()
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	defer stop()
	a := &Agent{}
	for {
		conn, err := listener.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("cannot listen on %s: %w", path, err)
		}
		open.Go(func() {
			// Cut off, a host's calls end with it.
			cut := context.AfterFunc(ctx, func() { _ = conn.Close() })
			defer cut()
			defer conn.Close()
			_ = a.Serve(ctx, conn)
		})
	}
}
