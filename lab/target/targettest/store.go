package targettest

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/remote"
)

// content is what a volume holds.
type content struct {
	mu    sync.Mutex
	bytes bytes.Buffer
	reads bool // a download reads it
}

func (c *content) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bytes.Write(p)
}

func (c *content) Read(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.reads {
		return 0, io.EOF
	}
	return c.bytes.Read(p)
}

func (c *content) Close() error { return nil }

// open has a pool at a path. What was there before is there.
func (d *Daemon) open(pool, path string) {
	if d.volumes == nil {
		d.volumes, d.defined, d.paths = map[string]map[string]*content{}, map[string]string{}, map[string]string{}
	}
	d.paths[pool] = path
	if d.volumes[pool] == nil {
		d.volumes[pool] = map[string]*content{}
	}
}

// add makes a volume.
func (d *Daemon) add(pool, name string) xdr.StorageVol {
	if d.volumes[pool] != nil {
		d.volumes[pool][name] = &content{}
	}
	return xdr.StorageVol{Pool: pool, Name: name, Key: d.paths[pool] + "/" + name}
}

// transfer is the other end of an upload or a download.
func (d *Daemon) transfer(args *xdr.WithVolumeOffsetLengthFlags) io.ReadWriteCloser {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.volumes[args.Volume.Pool][args.Volume.Name]
}

// Volumes are the volumes of a pool with what was sent for them.
func (d *Daemon) Volumes(pool string) map[string]string {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := map[string]string{}
	for name, c := range d.volumes[pool] {
		all[name] = c.bytes.String()
	}
	return all
}

// Fill has a volume hold a text.
func (d *Daemon) Fill(pool, name, text string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.volumes[pool][name].bytes.WriteString(text)
}

// Lose takes a volume away, as somebody else would.
func (d *Daemon) Lose(pool, name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.volumes[pool], name)
}

// store answers what is asked of pools and their volumes.
func (d *Daemon) store(proc int32, args xdr.Message) (xdr.Message, error) {
	note := func(pool string) { d.calls = append(d.calls, xdr.Lookup(xdr.ProgramRemote, proc).Name+" "+pool) }
	switch args := args.(type) {
	case *xdr.StoragePoolDefineXMLArgs:
		one := nameOf(args.XML)
		note(one)
		d.defined[one] = args.XML
		return &xdr.StoragePoolDefineXMLRet{Pool: xdr.StoragePool{Name: one}}, nil
	case *xdr.WithPoolFlags:
		return d.change(proc, args.Pool, note)
	case *xdr.WithPool:
		switch proc {
		case xdr.ProcStoragePoolGetInfo:
			return &xdr.StoragePoolGetInfoRet{Available: 100 << 30}, nil
		case xdr.ProcStoragePoolIsActive:
			return &xdr.StoragePoolIsActiveRet{Active: d.runs(args.Pool.Name)}, nil
		}
		note(args.Pool.Name) // undefine
		delete(d.defined, args.Pool.Name)
	case *xdr.StoragePoolListAllVolumesArgs:
		var all []xdr.StorageVol
		for _, one := range slices.Sorted(maps.Keys(d.volumes[args.Pool.Name])) {
			all = append(all, xdr.StorageVol{Pool: args.Pool.Name, Name: one})
		}
		return &xdr.StoragePoolListAllVolumesRet{Volumes: all, Count: uint32(len(all))}, nil
	case *xdr.WithVolume:
		c := d.volumes[args.Volume.Pool][args.Volume.Name]
		c.reads = true
		return &xdr.StorageVolGetInfoRet{Capacity: uint64(c.bytes.Len())}, nil
	case *xdr.WithName: // a pool is looked up
		if _, defined := d.defined[args.Name]; !defined && !d.runs(args.Name) {
			return nil, &remote.Error{Code: 49, Message: "no such pool"}
		}
		return &xdr.StoragePoolLookupByNameRet{Pool: xdr.StoragePool{Name: args.Name}}, nil
	}
	return nil, nil
}

// runs says whether a pool does.
func (d *Daemon) runs(pool string) bool {
	return slices.ContainsFunc(d.Pools, func(one xdr.StoragePool) bool { return one.Name == pool })
}

// change is of a pool that is defined; or it is described.
func (d *Daemon) change(proc int32, pool xdr.StoragePool, note func(pool string)) (xdr.Message, error) {
	_, defined := d.defined[pool.Name]
	switch proc {
	case xdr.ProcStoragePoolGetXMLDesc:
		return &xdr.StoragePoolGetXMLDescRet{XML: fmt.Sprintf("<pool><name>%s</name><target><path>%s</path></target></pool>", pool.Name, d.paths[pool.Name])}, nil
	case xdr.ProcStoragePoolRefresh:
		if !d.runs(pool.Name) {
			return nil, &remote.Error{Code: 55, Message: "the pool does not run"}
		}
	case xdr.ProcStoragePoolCreate:
		note(pool.Name)
		if !defined || d.runs(pool.Name) {
			return nil, &remote.Error{Code: 55, Message: "the pool runs, or there is none"}
		}
		d.Pools = append(d.Pools, pool)
	case xdr.ProcStoragePoolDelete:
		note(pool.Name)
		if !defined || d.runs(pool.Name) || len(d.volumes[pool.Name]) > 0 {
			return nil, &remote.Error{Code: 55, Message: "the directory is not empty, or of no pool that does not run"}
		}
	}
	return nil, nil
}

func pathOf(document string) string {
	_, path, _ := strings.Cut(document, "<path>")
	path, _, _ = strings.Cut(path, "</path>")
	return path
}
