package libvirt

import (
	"bytes"
	"encoding/binary"
	"reflect"
	"slices"
	"testing"

	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
)

// draw makes arguments of calls from a fuzzer's bytes, and from words that calls know.
type draw struct {
	input []byte
	words []string
}

// byte returns the next byte; zero when there are no more.
func (d *draw) byte() byte {
	if len(d.input) == 0 {
		return 0
	}
	b := d.input[0]
	d.input = d.input[1:]
	return b
}

// number returns a number below a bound; the bound is below 1<<16.
func (d *draw) number(bound int) int { return (int(d.byte())<<8 | int(d.byte())) % bound }

func (d *draw) word() string { return d.words[int(d.byte())%len(d.words)] }

var drawnUUIDs = []string{mineUUID, theirUUID, poolUUID, secretUUID, "00000000-0000-4000-8000-000000000002", minePoolUUID}

// fill fills in the parts of arguments.
func (d *draw) fill(v reflect.Value) {
	switch whole := v.Addr().Interface().(type) {
	case *xdr.UUID:
		*whole, _ = rpc.ParseUUID(drawnUUIDs[int(d.byte())%len(drawnUUIDs)])
		return
	case *xdr.TypedValue:
		*whole = d.value()
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(d.word())
	case reflect.Bool:
		v.SetBool(d.byte()&1 == 1)
	case reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(int64(d.integer()))
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(d.integer())
	case reflect.Float64:
		v.SetFloat(float64(d.byte()))
	case reflect.Pointer:
		if d.byte()&3 != 0 {
			v.Set(reflect.New(v.Type().Elem()))
			d.fill(v.Elem())
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			v.SetBytes([]byte(d.word()))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), int(d.byte()&3), 3))
		for i := range v.Len() {
			d.fill(v.Index(i))
		}
	case reflect.Array:
		for i := range v.Len() {
			d.fill(v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				d.fill(v.Field(i))
			}
		}
	}
}

// integer returns mostly a small number or a flag.
func (d *draw) integer() uint64 {
	switch b := d.byte(); {
	case b < 128:
		return uint64(b)
	case b < 192:
		return 1 << (b & 63)
	case b == 255:
		return ^uint64(0)
	default:
		return uint64(b&63)<<8 | uint64(d.byte())
	}
}

func (d *draw) value() xdr.TypedValue {
	switch d.byte() % 7 {
	case 0:
		return xdr.Int(int32(d.integer()))
	case 1:
		return xdr.Uint(uint32(d.integer()))
	case 2:
		return xdr.Int64(int64(d.integer()))
	case 3:
		return xdr.Uint64(d.integer())
	case 4:
		return xdr.Double(float64(d.integer()))
	case 5:
		return xdr.Bool(d.byte()&1 == 1)
	default:
		return xdr.String(d.word())
	}
}

// seedRestricted adds each implemented call as a seed, once about the client's own objects and once about others'. The
// zeros that remain become changes by others.
func seedRestricted(f *testing.F, built rpc.Table) {
	for number := range maxDrawn {
		key := rpc.ProcedureKey{Program: xdr.ProgramRemote, Number: int32(number)}
		if number > firstOfQEMU {
			key = rpc.ProcedureKey{Program: xdr.ProgramQEMU, Number: int32(number - firstOfQEMU)}
		}
		if built[key] == nil {
			continue
		}
		call := binary.BigEndian.AppendUint16(nil, uint16(number))
		for _, pattern := range [][]byte{{0}, {1}, {0, 1}, {1, 0}} {
			f.Add(append(call[:2:2], bytes.Repeat(pattern, 12/len(pattern))...), "")
		}
	}
	at := func(word string) byte { return byte(slices.Index(drawWords, word)) }
	own := byte(slices.Index(drawnUUIDs, minePoolUUID))
	for n := range drawWords {
		doc := byte(n)
		var calls []byte
		for _, c := range []struct {
			number int32
			args   []byte
		}{
			{xdr.ProcStorageVolCreateXML, []byte{at("mine"), own, doc, 0}},
			{xdr.ProcStorageVolCreateXMLFrom, []byte{at("mine"), own, doc, at("mine"), at("v"), doc, 0}},
			{xdr.ProcStorageVolCreateXMLFrom, []byte{at("mine"), own, doc, at("theirs"), at("a.img"), doc, 0}},
			{xdr.ProcStoragePoolDefineXML, []byte{doc, 0}},
			{xdr.ProcStoragePoolCreateXML, []byte{doc, 1}},
			{xdr.ProcStorageVolLookupByPath, []byte{doc}},
			{xdr.ProcStorageVolLookupByKey, []byte{doc}},
			{xdr.ProcStorageVolDelete, []byte{at("mine"), doc, doc, 0}},
			{xdr.ProcDomainDefineXML, []byte{doc}},
			{xdr.ProcDomainAttachDeviceFlags, []byte{at("mine"), 0, 0, doc, 2}},
		} {
			calls = append(binary.BigEndian.AppendUint16(calls, uint16(c.number)), c.args...)
		}
		f.Add(calls, "")
	}
}

// drawWords are the strings for arguments. New ones are appended: the kept inputs of the fuzzer
// select them by index.
var drawWords = []string{
	"mine", "theirs", "mine2", "", "default", mineUUID, theirUUID, poolUUID, secretUUID,
	mineXML, theirNamed, mineAsTheirs, mineRenamed, mineWithTheirDisk,
	"<disk type='file'><source file='/etc/shadow'/><target dev='vdb' bus='virtio'/></disk>",
	"<disk type='file' device='cdrom'><target dev='sda' bus='sata'/></disk>",
	"<interface type='user'/>", "<controller type='scsi'/>", "<domainsnapshot><name>s</name></domainsnapshot>", "<domaincheckpoint/>", "<domainbackup/>",
	"<pool type='dir'><name>mine</name><target><path>/etc</path></target></pool>", "<volume><name>v</name><capacity>1</capacity></volume>",
	"<network><name>mine</name></network>", "<secret><usage type='volume'><volume>/x</volume></usage></secret>", "<interface type='bridge' name='b'/>",
	"vda", "sda", "serial0", "sata0-0-0", "/etc/shadow", "/nowhere/image", "qemu:///system", "qemu+tcp://127.0.0.1:1/system", "tcp:127.0.0.1:1",
	"vcpu_quota", "cpu_shares", "weight", "hard_limit", "total_bytes_sec", "inbound.average", "numa_nodeset", "user", "s",
	"https://libvirt.org/schemas/x", "<x/>", "http://lodge-kvm.org/guest/1",
	"{\"execute\":\"query-status\"}", "info block", "\x01\x02", "org.qemu.guest_agent.0", "root", "ssh-ed25519 AAAA x", "x86_64", "q35", "kvm",
	"v", "../theirs/a.img", "a.img", "$DIR/mine/pool/v", "$DIR/mine/pool/new", "$DIR/theirs/a.img", "$DIR/mine/../theirs/a.img", "$DIR/mine/pool", "$DIR/theirs",
	"<volume><name>new</name><capacity>1024</capacity></volume>", "<volume><name>../theirs/new</name><capacity>1024</capacity></volume>",
	"<volume><name>q</name><capacity>1024</capacity><target><format type='qcow2'/></target><backingStore><path>$DIR/theirs/a.img</path><format type='raw'/></backingStore></volume>",
	"<volume><name>q</name><capacity>1024</capacity><target><path>$DIR/theirs/b</path><permissions><mode>0777</mode><owner>0</owner></permissions></target></volume>",
	"<pool type='dir'><name>mine2</name><target><path>$DIR/mine/pool2</path></target></pool>", "<pool type='dir'><name>mine2</name><target><path>$DIR/theirs</path></target></pool>",
	"<pool type='dir'><name>mine</name><uuid>" + poolUUID + "</uuid><target><path>$DIR/mine/pool</path></target></pool>",
	"<disk type='file'><source file='$DIR/theirs/a.img'/><target dev='vdc' bus='virtio'/></disk>", "<disk type='volume'><source pool='mine' volume='v'/><target dev='vdc' bus='virtio'/></disk>",
}

const (
	small             = "<memory unit='MiB'>16</memory><os><type arch='x86_64' machine='pc-q35-7.2'>hvm</type></os>"
	theirNamed        = "<domain type='qemu'><name>theirs</name>" + small + "</domain>"
	mineAsTheirs      = "<domain type='qemu'><name>mine2</name><uuid>" + theirUUID + "</uuid>" + small + "</domain>"
	mineRenamed       = "<domain type='qemu'><name>mine2</name><uuid>" + mineUUID + "</uuid>" + small + "</domain>"
	mineWithTheirDisk = "<domain type='qemu'><name>mine2</name>" + small + "<devices><disk type='volume'><source pool='default' volume='v'/><target dev='vda'/></disk></devices></domain>"
)
