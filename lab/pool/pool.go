// Package pool keeps files at a daemon by libvirt's calls alone: in directories of its
// host that go again with what is in them.
//
// What belongs here: pools of directories, and volumes that are plain files. What does
// not: what the files are for, and what is sent into them (target).
package pool

import (
	"context"
	"encoding/xml"
	"errors"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/lab/node"
)

// document is what is written and read of a pool's definition.
type document struct {
	XMLName xml.Name `xml:"pool"`
	Type    string   `xml:"type,attr"`
	Name    string   `xml:"name"`
	UUID    string   `xml:"uuid,omitempty"`
	Path    string   `xml:"target>path"`
}

func (d document) text() string {
	d.Type = "dir"
	text, _ := xml.MarshalIndent(d, "", "  ") // of strings alone
	return string(text)
}

// build has the daemon make a pool's directory, with those above it.
const build = 1

// Make makes a pool that is gone with the next boot, and its directory.
func Make(ctx context.Context, c node.Caller, name, dir string) (xdr.StoragePool, error) {
	return create(ctx, c, name, dir, build)
}

// Over is Make for a directory that is there.
func Over(ctx context.Context, c node.Caller, name, dir string) (xdr.StoragePool, error) {
	return create(ctx, c, name, dir, 0)
}

func create(ctx context.Context, c node.Caller, name, dir string, flags uint32) (xdr.StoragePool, error) {
	var ret xdr.StoragePoolCreateXMLRet
	err := c.Call(ctx, xdr.ProcStoragePoolCreateXML, &xdr.StoragePoolCreateXMLArgs{XML: document{Name: name, Path: dir}.text(), Flags: flags}, &ret)
	return ret.Pool, fault.Wrap(err, fault.Failed, fault.Pool, "cannot make a pool of %s on the daemon's host", dir)
}

// Volumes lists what is in a pool now.
func Volumes(ctx context.Context, c node.Caller, pool xdr.StoragePool) ([]xdr.StorageVol, error) {
	if err := c.Call(ctx, xdr.ProcStoragePoolRefresh, &xdr.StoragePoolRefreshArgs{Pool: pool}, nil); err != nil {
		return nil, err
	}
	var ret xdr.StoragePoolListAllVolumesRet
	err := c.Call(ctx, xdr.ProcStoragePoolListAllVolumes, &xdr.StoragePoolListAllVolumesArgs{Pool: pool, NeedResults: true}, &ret)
	return ret.Volumes, err
}

// File makes a volume that is a file full of holes, and that everybody may read: QEMUs
// may run as any account.
func File(ctx context.Context, c node.Caller, pool xdr.StoragePool, name string, bytes int64) (xdr.StorageVol, error) {
	text, _ := xml.MarshalIndent(volume{Name: name, Capacity: bytes, Format: format{"raw"}, Mode: "0644"}, "", "  ")
	var made xdr.StorageVolCreateXMLRet
	err := c.Call(ctx, xdr.ProcStorageVolCreateXML, &xdr.StorageVolCreateXMLArgs{Pool: pool, XML: string(text)}, &made)
	return made.Volume, fault.Wrap(err, fault.Of(err), fault.Volume, "cannot make volume %s", name)
}

// volume is the definition of a file, sizes in bytes.
type volume struct {
	XMLName    xml.Name `xml:"volume"`
	Name       string   `xml:"name"`
	Capacity   int64    `xml:"capacity"`
	Allocation int64    `xml:"allocation"`
	Format     format   `xml:"target>format"`
	Mode       string   `xml:"target>permissions>mode"`
}

type format struct {
	Type string `xml:"type,attr"`
}

// Remove takes a pool away with all that is in it, and its directory. libvirt removes a
// directory for a pool that is defined and does not run only, and so it is that for a
// moment. Where the lab was killed then, this goes on.
func Remove(ctx context.Context, c node.Caller, pool xdr.StoragePool) error {
	var runs xdr.StoragePoolIsActiveRet
	err := c.Call(ctx, xdr.ProcStoragePoolIsActive, &xdr.StoragePoolIsActiveArgs{Pool: pool}, &runs)
	if err == nil && !runs.Active { // its directory may be gone already
		err = c.Call(ctx, xdr.ProcStoragePoolCreate, &xdr.StoragePoolCreateArgs{Pool: pool, Flags: build}, nil)
	}
	if err != nil {
		return err
	}
	defined, err := definition(ctx, c, pool)
	all, failed := Volumes(ctx, c, pool)
	err = errors.Join(err, failed)
	for _, v := range all {
		err = errors.Join(err, c.Call(ctx, xdr.ProcStorageVolDelete, &xdr.StorageVolDeleteArgs{Volume: v}, nil))
	}
	err = errors.Join(err, c.Call(ctx, xdr.ProcStoragePoolDestroy, &xdr.StoragePoolDestroyArgs{Pool: pool}, nil))
	if err != nil {
		return err
	}
	var ret xdr.StoragePoolDefineXMLRet
	if err := c.Call(ctx, xdr.ProcStoragePoolDefineXML, &xdr.StoragePoolDefineXMLArgs{XML: defined.text()}, &ret); err != nil {
		return err
	}
	return errors.Join(
		c.Call(ctx, xdr.ProcStoragePoolDelete, &xdr.StoragePoolDeleteArgs{Pool: ret.Pool}, nil),
		c.Call(ctx, xdr.ProcStoragePoolUndefine, &xdr.StoragePoolUndefineArgs{Pool: ret.Pool}, nil),
	)
}

// definition is what a daemon has of a pool.
func definition(ctx context.Context, c node.Caller, pool xdr.StoragePool) (d document, err error) {
	var ret xdr.StoragePoolGetXMLDescRet
	if err := c.Call(ctx, xdr.ProcStoragePoolGetXMLDesc, &xdr.StoragePoolGetXMLDescArgs{Pool: pool}, &ret); err != nil {
		return d, err
	}
	err = xml.Unmarshal([]byte(ret.XML), &d)
	return d, fault.Wrap(err, fault.Failed, fault.XML, "cannot read the definition of pool %s", pool.Name)
}
