package device

// pciModels are the devices that libvirt names as the models of bridges.
var pciModels = map[string]string{
	"pci-bridge": "pci-bridge", "dmi-to-pci-bridge": "i82801b11-bridge", "pcie-to-pci-bridge": "pcie-pci-bridge",
	"pcie-root-port": "pcie-root-port", "pcie-switch-upstream-port": "x3130-upstream",
	"pcie-switch-downstream-port": "xio3130-downstream", "pci-expander-bus": "pxb", "pcie-expander-bus": "pxb-pcie",
}

// NumberPorts gives every PCI bridge with an address its model and the chassis and port numbers
// that guests identify slots by, unless they are given.
func (s *Set) NumberPorts() {
	lowest := uint(maxBus + 1)
	chassis := map[uint]bool{}
	for _, c := range s.Controllers {
		if c.PCI != nil && c.PCI.BusNr != nil {
			lowest = min(lowest, *c.PCI.BusNr)
		}
		if c.PCI != nil && c.PCI.Chassis != nil {
			chassis[*c.PCI.Chassis] = true
		}
	}
	for _, c := range s.Controllers {
		model, ok := pciModels[c.Model]
		if c.Type != "pci" || !ok {
			continue
		}
		if c.PCI == nil {
			c.PCI = new(PCIController)
		}
		if c.PCI.ModelName == "" {
			c.PCI.ModelName = model
		}
		at, _ := c.Address.(PCI)
		switch c.Model {
		case "pci-bridge":
			number(&c.PCI.ChassisNr, c.Index)
		case "pcie-root-port", "pcie-switch-downstream-port":
			if c.PCI.Chassis == nil {
				free := c.Index
				for chassis[free] {
					free++
				}
				chassis[free] = true
				c.PCI.Chassis = &free
			}
			if c.Model == "pcie-root-port" {
				at.Slot = at.Slot<<3 | at.Function
			}
			number(&c.PCI.Port, at.Slot)
		case "pci-expander-bus", "pcie-expander-bus":
			if c.PCI.BusNr == nil {
				lowest = max(lowest, 2) - 2
				number(&c.PCI.BusNr, lowest)
			}
		}
	}
}

// number fills in a number that is not said.
func number(p **uint, value uint) {
	if *p == nil {
		*p = &value
	}
}
