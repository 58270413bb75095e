package libvirt

import (
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lodge-kvm/lodge/internal/edge/libvirt/hostcalls"
	"github.com/lodge-kvm/lodge/internal/edge/libvirt/rpc"
	"github.com/lodge-kvm/lodge/internal/guest"
	"github.com/lodge-kvm/lodge/internal/host/resources"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel"
	"github.com/lodge-kvm/lodge/internal/mechanism/kernel/kerneltest"
	"github.com/lodge-kvm/lodge/internal/mechanism/store"
	"github.com/lodge-kvm/lodge/internal/word/topology"
)

// onHost gives the server the backends that describe a host.
func onHost(t *testing.T, root kernel.Root) func(*rpc.Server) {
	t.Helper()
	inventory, err := resources.NewInventory(root)
	if err != nil {
		t.Fatal(err)
	}
	return func(s *rpc.Server) {
		s.Handlers.Host = inventory
		s.Handlers.Devices = resources.NewDevices(root)
	}
}

// withQEMU gives the server this machine's QEMU, which is probed at the first call that needs it.
func withQEMU(t *testing.T) func(*rpc.Server) {
	t.Helper()
	if testing.Short() {
		t.Skip("probing QEMU takes seconds")
	}
	binary, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		t.Skip("qemu-system-x86_64 is not installed")
	}
	kept, err := store.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := kept.Close(); err != nil {
			t.Error(err)
		}
	})
	emulators, err := resources.NewEmulators(kept, binary, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return func(s *rpc.Server) { s.Handlers.Emulators, s.Handlers.Guests = emulators, &guest.Registry{} }
}

// virshOutput is a virsh command with its expected output. An output line may contain more blanks than expected, because
// columns are wide.
type virshOutput struct {
	args []string
	want string
}

func squeeze(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return strings.Join(lines, "\n")
}

func (h *testServer) virshSays(commands []virshOutput) {
	h.t.Helper()
	for _, c := range commands {
		out, err := h.virsh(c.args...)
		if !strings.Contains(squeeze(out), c.want) {
			h.t.Errorf("virsh %s: %v\n%s\nwant:\n%s", strings.Join(c.args, " "), err, out, c.want)
		}
	}
}

func TestVirsh_ServerHost(t *testing.T) {
	serve(t, onHost(t, kerneltest.Host(t, kerneltest.Server))).virshSays([]virshOutput{
		{[]string{"nodeinfo"}, "CPU(s): 16\nCPU frequency: 2100 MHz\nCPU socket(s): 1\nCore(s) per socket: 2\n" +
			"Thread(s) per core: 2\nNUMA cell(s): 4\nMemory size: 268435456 KiB"},
		{[]string{"freecell"}, "Total: 174063616 KiB"},
		{[]string{"freecell", "2"}, "2: 44040192 KiB"},
		{[]string{"freecell", "9"}, "start cell 9 out of range (0-3)"},
		{[]string{"freepages", "--cellno", "1", "--pagesize", "1048576"}, "1048576KiB: 4"},
		{[]string{"freepages", "--cellno", "1", "--pagesize", "64"}, "page size 64 KiB is not available on cell 1"},
		{[]string{"nodecpustats"}, "user: 18800000000\nsystem: 8480000000\nidle: 160000000000\niowait: 800000000"},
		{[]string{"nodecpustats", "2"}, "user: 1120000000\nsystem: 530000000\nidle: 10000000000\niowait: 50000000"},
		{[]string{"nodecpustats", "16"}, "processor 16 is not online"},
		{[]string{"nodememstats"}, "total : 268435456 KiB\nfree : 174063616 KiB\nbuffers: 1048576 KiB\ncached : 31457280 KiB"},
		{[]string{"nodememstats", "3"}, "total : 67108864 KiB\nfree : 45088768 KiB"},
		{[]string{"nodememstats", "4"}, "this host has no cell 4; its cells are 0-3"},
		{[]string{"nodecpumap"}, "CPUs present: 16\nCPUs online: 16\nCPU map: yyyyyyyyyyyyyyyy"},
		{[]string{"sysinfo"}, "Host SMBIOS information is not available"},
		{[]string{"nodedev-list", "--cap", "net"}, "net_ens1f0_3c_fd_fe_00_00_01\nnet_ens1f0v0_3c_fd_fe_00_00_02\nnet_lo_00_00_00_00_00_00"},
		{[]string{"nodedev-list", "--cap", "fc_host,storage"}, "block_nvme0n1_S64GNE0R000001\nscsi_host7"},
		{[]string{"nodedev-list", "--cap", "mdev"}, ""},
		{[]string{"nodedev-dumpxml", "20000024ff000001,21000024ff000001"}, "<name>scsi_host7</name>"},
		{[]string{"nodedev-dumpxml", "pci_1"}, "Node device not found: no node device with matching name 'pci_1'"},
		{[]string{"nodedev-info", "pci_0000_41_00_0"}, "Name: pci_0000_41_00_0\nParent: pci_0000_40_01_0\nActive: yes\nPersistent: yes\nAutostart: yes"},
	})
}

// A host with cells that have only memory, and with offline CPUs. nodeinfo has libvirt's values
// for hosts whose number of CPUs is not the product of sockets, cores and threads.
// Capabilities have the cells.
func TestVirsh_ServerMemoryOnlyCells(t *testing.T) {
	dir := kerneltest.Dir(t, kerneltest.Server)
	for file, text := range map[string]string{
		"cpu/online": "0-3,8-10", "cpu/present": "0-3,8-11", "node/node1/cpulist": "2-3,10", "node/node2/cpulist": "", "node/node3/cpulist": "",
	} {
		if err := os.WriteFile(filepath.Join(dir, "sys/devices/system", file), []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	h := serve(t, onHost(t, kernel.At(dir)))
	h.virshSays([]virshOutput{
		{[]string{"nodeinfo"}, "CPU(s): 7\nCPU frequency: 2100 MHz\nCPU socket(s): 1\nCore(s) per socket: 8\n" +
			"Thread(s) per core: 1\nNUMA cell(s): 1\nMemory size: 268435456 KiB"},
		{[]string{"nodecpumap"}, "CPUs present: 12\nCPUs online: 7\nCPU map: yyyy----yyy-"},
		{[]string{"freecell", "3"}, "3: 45088768 KiB"},
		{[]string{"freecell", "4"}, "internal error: start cell 4 out of range (0-3)"},
		{[]string{"nodememstats", "2"}, "total : 67108864 KiB"},
		{[]string{"freepages", "--cellno", "3", "--pagesize", "4"}, "4KiB: 11272192"},
		{[]string{"sysinfo"}, "Host SMBIOS information is not available"},
	})
	inventory, err := resources.NewInventory(kernel.At(dir))
	if err != nil {
		t.Fatal(err)
	}
	cells := printed(t, hostcalls.DescribeCells(inventory.Facts().Topology.Cells))
	for _, want := range []string{"<cells num='4'>", "<cpus num='3'>", "<cpus num='0'/>", "<cell id='3'>\n    <memory unit='KiB'>67108864</memory>"} {
		if !strings.Contains(cells, want) {
			t.Errorf("%q is missing in\n%s", want, cells)
		}
	}
	if cpu := printed(t, hostcalls.DescribeHostCPU(inventory.Facts(), aQEMU(false))); !strings.Contains(cpu, "<topology sockets='1' dies='1' cores='8' threads='1'/>") {
		t.Errorf("capabilities tell another shape than nodeinfo:\n%s", cpu)
	}
}

// The elements for memory and distances are left out if a cell has none.
func TestDescribeCells_WithoutMemoryOrDistances(t *testing.T) {
	if cell := printed(t, hostcalls.DescribeCells([]topology.Cell{{ID: 5}})); cell != "<cells num='1'>\n  <cell id='5'>\n    <cpus num='0'/>\n  </cell>\n</cells>\n" {
		t.Errorf("an empty cell is described as\n%s", cell)
	}
}

func TestVirsh_LaptopHost(t *testing.T) {
	h := serve(t, onHost(t, kerneltest.Host(t, kerneltest.Laptop)))
	h.virshSays([]virshOutput{
		{[]string{"sysinfo"}, "<sysinfo type='smbios'>\n<bios>\n<entry name='vendor'>LENOVO</entry>"},
		{[]string{"sysinfo"}, "<entry name='asset'>No Asset &amp; Tag</entry>"},
		{[]string{"nodedev-list", "--tree"}, "+- pci_0000_00_14_0\n| |\n| +- usb_usb1\n| |\n| +- usb_1_0_1_0\n| +- usb_1_4\n| |\n| +- usb_1_4_1_0"},
		{[]string{"nodedev-dumpxml", "usb_1_4_1_0"}, "<description>Keyboard &amp; &lt;Mouse&gt;</description>"},
	})
}

func TestNodeDevice_XML(t *testing.T) {
	server := resources.NewDevices(kerneltest.Host(t, kerneltest.Server))
	laptop := resources.NewDevices(kerneltest.Host(t, kerneltest.Laptop))
	for _, c := range []struct {
		devices *resources.Devices
		name    string
		want    string
	}{
		{server, "computer", `<device>
  <name>computer</name>
  <capability type='system'>
    <hardware>
      <uuid>00000000-0000-0000-0000-000000000000</uuid>
    </hardware>
    <firmware/>
  </capability>
</device>
`},
		{server, "pci_0000_41_00_0", `<device>
  <name>pci_0000_41_00_0</name>
  <path>/sys/devices/pci0000:40/0000:40:01.0/0000:41:00.0</path>
  <parent>pci_0000_40_01_0</parent>
  <driver>
    <name>i40e</name>
  </driver>
  <capability type='pci'>
    <class>0x020000</class>
    <domain>0</domain>
    <bus>65</bus>
    <slot>0</slot>
    <function>0</function>
    <product id='0x1572'/>
    <vendor id='0x8086'/>
    <capability type='virt_functions' maxCount='32'>
      <address domain='0x0000' bus='0x41' slot='0x02' function='0x0'/>
      <address domain='0x0000' bus='0x41' slot='0x02' function='0x1'/>
    </capability>
    <iommuGroup number='11'>
      <address domain='0x0000' bus='0x41' slot='0x00' function='0x0'/>
    </iommuGroup>
    <numa node='1'/>
    <pci-express>
      <link validity='cap' port='0' speed='8' width='8'/>
      <link validity='sta' speed='8' width='8'/>
    </pci-express>
  </capability>
</device>
`},
		{server, "net_ens1f0_3c_fd_fe_00_00_01", `<device>
  <name>net_ens1f0_3c_fd_fe_00_00_01</name>
  <path>/sys/devices/pci0000:40/0000:40:01.0/0000:41:00.0/net/ens1f0</path>
  <parent>pci_0000_41_00_0</parent>
  <capability type='net'>
    <interface>ens1f0</interface>
    <address>3c:fd:fe:00:00:01</address>
    <link speed='10000' state='up'/>
    <capability type='80203'/>
  </capability>
</device>
`},
		{server, "scsi_host7", `<device>
  <name>scsi_host7</name>
  <path>/sys/devices/pci0000:80/0000:80:02.0/host7</path>
  <parent>pci_0000_80_02_0</parent>
  <capability type='scsi_host'>
    <host>7</host>
    <unique_id>7</unique_id>
    <capability type='fc_host'>
      <wwnn>20000024ff000001</wwnn>
      <wwpn>21000024ff000001</wwpn>
      <fabric_wwn>1000c4f57c000001</fabric_wwn>
    </capability>
  </capability>
</device>
`},
		{laptop, "usb_1_4", `<device>
  <name>usb_1_4</name>
  <path>/sys/devices/pci0000:00/0000:00:14.0/usb1/1-4</path>
  <parent>usb_usb1</parent>
  <driver>
    <name>usb</name>
  </driver>
  <capability type='usb_device'>
    <bus>1</bus>
    <device>3</device>
    <product id='0xc52b'>Unifying Receiver</product>
    <vendor id='0x046d'>Logitech, Inc.</vendor>
  </capability>
</device>
`},
		{laptop, "block_sr0_HL_DT_ST_DVDRAM_GUD0N_KLZ000", `<device>
  <name>block_sr0_HL_DT_ST_DVDRAM_GUD0N_KLZ000</name>
  <path>/sys/devices/pci0000:00/0000:00:17.0/ata2/host1/target1:0:0/1:0:0:0/block/sr0</path>
  <devnode type='dev'>/dev/sr0</devnode>
  <devnode type='link'>/dev/cdrom</devnode>
  <parent>scsi_1_0_0_0</parent>
  <capability type='storage'>
    <block>/dev/sr0</block>
    <bus>ata</bus>
    <drive_type>cdrom</drive_type>
    <model>HL-DT-ST_DVDRAM_GUD0N</model>
    <vendor>HL-DT-ST</vendor>
    <serial>HL-DT-ST_DVDRAM_GUD0N_KLZ000</serial>
    <capability type='removable'>
      <media_available>1</media_available>
      <media_size>1073741312</media_size>
      <logical_block_size>512</logical_block_size>
      <num_blocks>2097151</num_blocks>
    </capability>
  </capability>
</device>
`},
		{laptop, "drm_renderD128", `<device>
  <name>drm_renderD128</name>
  <path>/sys/devices/pci0000:00/0000:00:02.0/drm/renderD128</path>
  <devnode type='dev'>/dev/dri/renderD128</devnode>
  <parent>pci_0000_00_02_0</parent>
  <capability type='drm'>
    <type>render</type>
  </capability>
</device>
`},
	} {
		d, err := c.devices.ByName(c.name)
		if err != nil {
			t.Error(err)
			continue
		}
		doc, err := hostcalls.DescribeDevice(d)
		if diff := cmp.Diff(c.want, doc); diff != "" || err != nil {
			t.Errorf("%s: %v\n%s", c.name, err, diff)
		}
	}
}

// Every device of this machine can be looked up and described, and has a parent, as for a
// client that walks the tree.
func TestVirsh_ThisHost(t *testing.T) {
	h := serve(t, onHost(t, kernel.Root{}))
	out, err := h.virsh("nodedev-list")
	if err != nil {
		t.Fatal(out, err)
	}
	for name := range strings.FieldsSeq(out) {
		doc, err := h.virsh("nodedev-dumpxml", name)
		if err != nil || !strings.Contains(doc, "<name>"+name+"</name>") {
			t.Errorf("%s: %v\n%s", name, err, doc)
		}
	}
	for _, command := range []string{"nodeinfo", "freecell", "nodecpustats", "nodememstats", "nodecpumap", "nodedev-list --tree"} {
		if out, err := h.virsh(strings.Fields(command)...); err != nil {
			t.Errorf("virsh %s: %v\n%s", command, err, out)
		}
	}
}

func TestVirsh_QEMUCapabilities(t *testing.T) {
	h := serve(t, onHost(t, kerneltest.Host(t, kerneltest.Server)), withQEMU(t))
	h.virshSays([]virshOutput{
		{[]string{"version"}, "Running hypervisor: QEMU"},
		{[]string{"capabilities"}, "<cell id='2'>\n<memory unit='KiB'>67108864</memory>"},
		{[]string{"capabilities"}, "<cpu id='12' socket_id='1' die_id='0' core_id='0' siblings='4,12'/>"},
		{[]string{"capabilities"}, "<domain type='qemu'/>"},
		{[]string{"freecell", "--all"}, "0: 41943040 KiB\n1: 42991616 KiB\n2: 44040192 KiB\n3: 45088768 KiB"},
		{[]string{"freepages", "--all"}, "Node 0:\n4KiB: 10485760\n2048KiB: 256\n1048576KiB: 0"},
		{[]string{"freepages", "--all"}, "Node 3:\n4KiB: 11272192\n2048KiB: 0"},
		{[]string{"domcapabilities", "--machine", "q35", "--virttype", "qemu"}, "<domain>qemu</domain>\n<machine>pc-q35-"},
		{[]string{"domcapabilities", "--machine", "q35", "--virttype", "qemu"}, "<mode name='maximum' supported='yes'>"},
		{[]string{"domcapabilities", "--machine", "pc", "--virttype", "qemu"}, "<value>ide</value>"},
		{[]string{"domcapabilities", "--machine", "foo"}, "the machine 'foo' is not supported by emulator"},
		{[]string{"domcapabilities", "--arch", "aarch64"}, "unable to find any emulator to serve 'aarch64' architecture"},
		{[]string{"domcapabilities", "--virttype", "xen"}, "unknown type 'xen'"},
		{[]string{"-r", "domcapabilities", "--emulatorbin", "/bin/true"}, "forbidden"},
		{[]string{"cpu-models", "x86_64"}, "Nehalem"},
		{[]string{"cpu-models", "s390x"}, "this host runs x86_64"},
		{[]string{"maxvcpus", "qemu"}, "255"},
		{[]string{"maxvcpus"}, "255"},
	})
}
