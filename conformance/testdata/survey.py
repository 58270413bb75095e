"""Asks a connection and a running guest for what monitoring tools ask for.

Usage: survey.py URI DOMAIN
"""

import sys
import xml.etree.ElementTree as tree

import libvirt

uri, name = sys.argv[1:3]
conn = libvirt.open(uri)
assert conn.getType() == "QEMU", conn.getType()
assert conn.isAlive() and not conn.isEncrypted() and conn.isSecure()
assert conn.getLibVersion() >= 9_000_000 // 1000
model, memory, cpus, mhz, nodes, sockets, cores, threads = conn.getInfo()
assert cpus > 0 and memory > 0 and sockets * cores * threads * nodes >= cpus, conn.getInfo()
assert conn.getFreeMemory() > 0
total, online, cpumap = conn.getCPUMap()[0], conn.getCPUMap()[2], conn.getCPUMap()[1]
assert total >= online == sum(cpumap), conn.getCPUMap()
assert tree.fromstring(conn.getCapabilities()).tag == "capabilities"
assert tree.fromstring(conn.getDomainCapabilities()).tag == "domainCapabilities"
assert name in [d.name() for d in conn.listAllDomains()]
domain = conn.lookupByName(name)
assert conn.lookupByUUIDString(domain.UUIDString()).name() == name
assert conn.lookupByID(domain.ID()).name() == name
state, max_memory, used_memory, vcpus, cpu_time = domain.info()
assert state == libvirt.VIR_DOMAIN_RUNNING and vcpus == 1 and cpu_time > 0, domain.info()
(_, stats), = conn.domainListGetStats([domain])
assert stats["state.state"] == libvirt.VIR_DOMAIN_RUNNING and stats["vcpu.current"] == 1, stats
assert stats["cpu.time"] > 0 and stats["balloon.maximum"] == max_memory, stats
every = conn.getAllDomainStats()
assert len(every) == len(conn.listAllDomains()), every
assert tree.fromstring(domain.XMLDesc()).findtext("name") == name
assert domain.isActive() and domain.isPersistent()
try:
    conn.lookupByName("nobody")
    sys.exit("a domain that is not there was found")
except libvirt.libvirtError as e:
    assert e.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN, e
    assert e.get_error_domain() == libvirt.VIR_FROM_QEMU, e.get_error_domain()
try:
    domain.create()
    sys.exit("a running domain was started")
except libvirt.libvirtError as e:
    assert e.get_error_code() == libvirt.VIR_ERR_OPERATION_INVALID, e
conn.close()
print("surveyed", name)
