package hostcalls

import (
	"context"
	"encoding/xml"
	"time"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/format/xdr"
	"github.com/lodge-kvm/lodge/internal/guest/provision"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/word/topology"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// wholeHost stands for all CPUs or all cells in a call that takes the number of one.
const wholeHost = -1

// NodeCalls are the calls about the host's processors and memory.
func NodeCalls(g rpc.Group) {
	rpc.On(g, xdr.ProcNodeGetInfo, nodeGetInfo)
	rpc.On(g, xdr.ProcNodeGetFreeMemory, nodeGetFreeMemory)
	rpc.On(g, xdr.ProcNodeGetCellsFreeMemory, nodeGetCellsFreeMemory)
	rpc.On(g, xdr.ProcNodeGetFreePages, nodeGetFreePages)
	rpc.On(g, xdr.ProcNodeGetCPUStats, nodeGetCPUStats)
	rpc.On(g, xdr.ProcNodeGetMemoryStats, nodeGetMemoryStats)
	rpc.On(g, xdr.ProcNodeGetCPUMap, nodeGetCPUMap)
	rpc.On(g, xdr.ProcNodeGetSecurityModel, nodeGetSecurityModel)
	rpc.On(g, xdr.ProcConnectGetSysinfo, connectGetSysinfo)
}

func nodeGetInfo(_ context.Context, h *rpc.Handlers, _ *rpc.Request, _ *rpc.Void) (*xdr.NodeGetInfoRet, error) {
	facts := h.Host.Facts()
	shape := facts.Topology.Shape()
	info := &xdr.NodeGetInfoRet{
		Memory: facts.Memory >> 10, CPUs: int32(facts.Topology.Online.Len()), MHz: int32(facts.CPU.MHz),
		Nodes: int32(shape.Cells), Sockets: int32(shape.Packages), Cores: int32(shape.Cores), Threads: int32(shape.Threads),
	}
	copy(info.Model[:len(info.Model)-1], facts.Arch) // the last byte stays NUL
	return info, nil
}

func nodeGetFreeMemory(_ context.Context, h *rpc.Handlers, _ *rpc.Request, _ *rpc.Void) (*xdr.NodeGetFreeMemoryRet, error) {
	memory, err := h.Host.Memory()
	return &xdr.NodeGetFreeMemoryRet{FreeMemory: memory.Free}, err
}

// nodeGetCellsFreeMemory returns the free memory of cells by their numbers. A number
// without a cell counts as a cell without free memory.
func nodeGetCellsFreeMemory(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.NodeGetCellsFreeMemoryArgs) (*xdr.NodeGetCellsFreeMemoryRet, error) {
	if args.MaxCells <= 0 {
		return nil, fault.New(fault.Invalid, fault.Call, "the number of cells must be above 0, not %d", args.MaxCells)
	}
	cells, err := cellRange(h, args.StartCell, uint32(args.MaxCells))
	if err != nil {
		return nil, err
	}
	ret := &xdr.NodeGetCellsFreeMemoryRet{}
	for _, id := range cells {
		var free uint64
		if _, ok := h.Host.Facts().Topology.Cell(id); ok {
			memory, err := h.Host.CellMemory(id)
			if err != nil {
				return nil, err
			}
			free = memory.Free
		}
		ret.Cells = append(ret.Cells, free)
	}
	return ret, nil
}

// cellRange returns at most count cell numbers, from start to the highest cell's.
func cellRange(h *rpc.Handlers, start int32, count uint32) ([]int, error) {
	ids := h.Host.Facts().Topology.CellIDs()
	if start < 0 || int(start) > ids.Max() {
		return nil, rpc.WithCode(rpc.CodeInternal, fault.New(fault.Invalid, fault.Call, "start cell %d out of range (0-%d)", start, ids.Max()))
	}
	var cells []int
	for id := int(start); id <= ids.Max() && uint32(len(cells)) < count; id++ {
		cells = append(cells, id)
	}
	return cells, nil
}

// nodeGetFreePages answers cell by cell, for each page size in the call's order.
func nodeGetFreePages(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.NodeGetFreePagesArgs) (*xdr.NodeGetFreePagesRet, error) {
	if err := rpc.CheckFlags("NODE_GET_FREE_PAGES", args.Flags, 0); err != nil {
		return nil, err
	}
	cells, err := cellRange(h, args.StartCell, args.CellCount)
	if err != nil {
		return nil, err
	}
	ret := &xdr.NodeGetFreePagesRet{}
	for _, id := range cells {
		pools, err := h.Host.Pages(id)
		if err != nil {
			return nil, err
		}
		cell := topology.Cell{Pages: pools}
		for _, kib := range args.Pages {
			pool, ok := cell.Pool(uint64(kib) << 10)
			if !ok {
				return nil, fault.New(fault.Invalid, fault.Call, "page size %d KiB is not available on cell %d", kib, id)
			}
			ret.Counts = append(ret.Counts, pool.Free)
		}
	}
	return ret, nil
}

// nodeGetCPUStats returns times in nanoseconds.
func nodeGetCPUStats(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.NodeGetCPUStatsArgs) (*xdr.NodeGetCPUStatsRet, error) {
	if err := rpc.CheckFlags("NODE_GET_CPU_STATS", args.Flags, 0); err != nil {
		return nil, err
	}
	times, err := h.Host.CPUTimes()
	if err != nil {
		return nil, err
	}
	t := times.Total
	if args.CPU != wholeHost {
		var ok bool
		if t, ok = times.Each[int(args.CPU)]; !ok {
			return nil, fault.New(fault.Invalid, fault.Call, "processor %d is not online; those that are: %s", args.CPU, h.Host.Facts().Topology.Online)
		}
	}
	stat := func(field string, d time.Duration) xdr.NodeCPUStat {
		return xdr.NodeCPUStat{Field: field, Value: uint64(d)}
	}
	params := []xdr.NodeCPUStat{
		stat("kernel", t.System+t.IRQ+t.SoftIRQ), stat("user", t.User+t.Nice), stat("idle", t.Idle), stat("iowait", t.IOWait),
	}
	params, count, err := statsOrCount(params, args.NParams)
	return &xdr.NodeGetCPUStatsRet{Params: params, NParams: count}, err
}

// nodeGetMemoryStats returns sizes in KiB.
func nodeGetMemoryStats(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.NodeGetMemoryStatsArgs) (*xdr.NodeGetMemoryStatsRet, error) {
	if err := rpc.CheckFlags("NODE_GET_MEMORY_STATS", args.Flags, 0); err != nil {
		return nil, err
	}
	var memory kernel.Memory
	var err error
	if args.Cell == wholeHost {
		memory, err = h.Host.Memory()
	} else {
		memory, err = h.Host.CellMemory(int(args.Cell))
	}
	if err != nil {
		return nil, err
	}
	stat := func(field string, bytes uint64) xdr.NodeMemoryStat {
		return xdr.NodeMemoryStat{Field: field, Value: bytes >> 10}
	}
	params := []xdr.NodeMemoryStat{stat("total", memory.Total), stat("free", memory.Free)}
	if args.Cell == wholeHost {
		params = append(params, stat("buffers", memory.Buffers), stat("cached", memory.Cached))
	}
	params, count, err := statsOrCount(params, args.NParams)
	return &xdr.NodeGetMemoryStatsRet{Params: params, NParams: count}, err
}

// statsOrCount serves getters that clients call twice: with room for none they get the
// number of parameters; any other room must be that number.
func statsOrCount[S any](params []S, asked int32) (sent []S, count int32, err error) {
	count = int32(len(params))
	switch asked {
	case 0:
		return nil, count, nil
	case count:
		return params, count, nil
	}
	return nil, 0, fault.New(fault.Invalid, fault.Call, "there are %d parameters, not %d", count, asked)
}

func nodeGetCPUMap(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.NodeGetCPUMapArgs) (*xdr.NodeGetCPUMapRet, error) {
	if err := rpc.CheckFlags("NODE_GET_CPU_MAP", args.Flags, 0); err != nil {
		return nil, err
	}
	host := h.Host.Facts().Topology
	ret := &xdr.NodeGetCPUMapRet{Count: int32(host.Present.Max() + 1)}
	if args.NeedMap {
		ret.CPUMap = host.Online.Map(int(ret.Count))
	}
	if args.NeedOnline {
		ret.Online = uint32(host.Online.Len())
	}
	return ret, nil
}

// nodeGetSecurityModel returns the first of the security models that separate guests.
func nodeGetSecurityModel(_ context.Context, h *rpc.Handlers, _ *rpc.Request, _ *rpc.Void) (*xdr.NodeGetSecurityModelRet, error) {
	if all := provision.SecurityModels(h.Guests); len(all) > 0 {
		return &xdr.NodeGetSecurityModelRet{Model: rpc.NULTerminated(all[0].Name), DOI: rpc.NULTerminated(all[0].DOI)}, nil
	}
	return &xdr.NodeGetSecurityModelRet{Model: []byte{0}, DOI: []byte{0}}, nil
}

// sysinfo is libvirt's document about the SMBIOS tables.
type sysinfo struct {
	XMLName xml.Name `xml:"sysinfo"`
	Type    string   `xml:"type,attr"`
	Groups  []sysinfoGroup
}

type sysinfoGroup struct {
	XMLName xml.Name
	Entries []sysinfoEntry `xml:"entry"`
}

type sysinfoEntry struct {
	Name  string `xml:"name,attr"`
	Value string `xml:",chardata"`
}

func connectGetSysinfo(_ context.Context, h *rpc.Handlers, _ *rpc.Request, args *xdr.ConnectGetSysinfoArgs) (*xdr.ConnectGetSysinfoRet, error) {
	if err := rpc.CheckFlags("CONNECT_GET_SYSINFO", args.Flags, 0); err != nil {
		return nil, err
	}
	firmware := h.Host.Facts().Firmware
	if firmware == nil {
		return nil, fault.New(fault.Unsupported, fault.Config, "Host SMBIOS information is not available")
	}
	doc, err := xmltree.Format(describeFirmware(firmware))
	return &xdr.ConnectGetSysinfoRet{Sysinfo: doc}, err
}

func describeFirmware(d *kernel.DMI) *sysinfo {
	doc := &sysinfo{Type: "smbios"}
	add := func(group string, namesAndValues ...string) {
		g := sysinfoGroup{XMLName: xml.Name{Local: group}}
		for i := 0; i < len(namesAndValues); i += 2 {
			if value := namesAndValues[i+1]; value != "" {
				g.Entries = append(g.Entries, sysinfoEntry{namesAndValues[i], validXMLText(value)})
			}
		}
		if g.Entries != nil {
			doc.Groups = append(doc.Groups, g)
		}
	}
	add("bios", "vendor", d.BIOSVendor, "version", d.BIOSVersion, "date", d.BIOSDate, "release", d.BIOSRelease)
	add("system", "manufacturer", d.Vendor, "product", d.Product, "version", d.Version, "serial", d.Serial,
		"uuid", d.UUID, "sku", d.SKU, "family", d.Family)
	add("baseBoard", "manufacturer", d.BoardVendor, "product", d.BoardName, "version", d.BoardVersion,
		"serial", d.BoardSerial, "asset", d.BoardAsset)
	add("chassis", "manufacturer", d.ChassisVendor, "version", d.ChassisVersion, "serial", d.ChassisSerial, "asset", d.ChassisAsset)
	return doc
}
