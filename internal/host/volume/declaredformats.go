package volume

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/lodge-kvm/lodge/internal/mechanism/fsguard"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
)

// Declared collects the formats of volumes as they were made, from the records of a store, for an export to
// another daemon. A guest may write a raw volume that looks like another format, and the other daemon would
// not know.
type Declared struct {
	pools        map[string]*definition // by name
	uuids        map[string]string      // of the pools
	declarations map[string]declaration // by key of the record
}

// Take adds a record of any kind.
func (d *Declared) Take(kind, key string, version int, body []byte) {
	switch kind {
	case poolKind.Name:
		var r poolRecord
		if poolKind.Decode(key, version, body, &r) != nil {
			return // the export reports it
		}
		if def, err := parsePool(r.Saved, key, false); err == nil {
			if d.pools == nil {
				d.pools, d.uuids = map[string]*definition{}, map[string]string{}
			}
			d.pools[def.name], d.uuids[def.name] = def, key
		}
	case volumeKind.Name:
		var made declaration
		if volumeKind.Decode(key, version, body, &made) == nil {
			if d.declarations == nil {
				d.declarations = map[string]declaration{}
			}
			d.declarations[key] = made
		}
	}
}

// Format returns the declared format of a volume in the terms of a guest's definition. It is "" if that is
// unknown, or if another file has the name by now.
func (d *Declared) Format(pool, volume string) string {
	def := d.pools[pool]
	made, known := d.declarations[d.uuids[pool]+"/"+volume]
	if def == nil || !known || made.Format != image.Raw && made.Format != image.Qcow2 || volume == ".." || strings.ContainsAny(volume, "/\x00") {
		return ""
	}
	path := filepath.Join(def.target, volume)
	info, err := fsguard.Do(context.Background(), path, func() (os.FileInfo, error) { return os.Lstat(path) }, nil)
	if err != nil {
		return ""
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !ok || st.Ino != made.Inode {
		return ""
	}
	return string(made.Format)
}
