"""Runs an appliance as libguestfs does: a transient domain that ends with its connection.

The console and the daemon of the appliance are sockets that this program serves in a folder of its
own, to which QEMU connects.

Usage: libguestfs.py URI FOLDER KERNEL INITRD
"""

import os
import socket
import subprocess
import sys
import time

import libvirt

uri, folder, kernel, initrd = sys.argv[1:5]
name = "guestfs-0123456789abcdef"


def serve(path):
    s = socket.socket(socket.AF_UNIX)
    s.bind(path)
    s.listen(1)
    s.settimeout(60)
    return s


os.umask(0o077)
os.mkdir(folder, 0o755)
console, daemon = (serve(f"{folder}/{end}.sock") for end in ("console", "guestfsd"))
disk, overlay = f"{folder}/disk", f"{folder}/overlay2.qcow2"
with open(disk, "wb") as f:
    f.truncate(1 << 20)
base = f"{folder}/root"
with open(base, "wb") as f:
    f.truncate(1 << 20)
subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", "-b", base, "-F", "raw", overlay], check=True)

xml = f"""<?xml version="1.0"?>
<domain type="qemu" xmlns:qemu="http://libvirt.org/schemas/domain/qemu/1.0">
  <name>{name}</name>
  <memory unit="MiB">256</memory>
  <currentMemory unit="MiB">256</currentMemory>
  <cpu mode="maximum"/>
  <vcpu>1</vcpu>
  <clock offset="utc">
    <timer name="rtc" tickpolicy="catchup"/>
    <timer name="pit" tickpolicy="delay"/>
    <timer name="hpet" present="no"/>
  </clock>
  <os>
    <type machine="q35">hvm</type>
    <kernel>{kernel}</kernel>
    <initrd>{initrd}</initrd>
    <cmdline>panic=1 console=ttyS0 edd=off TERM=linux guestfs_identifier={name}</cmdline>
    <bios useserial="yes"/>
  </os>
  <on_reboot>destroy</on_reboot>
  <seclabel type="none"/>
  <devices>
    <rng model="virtio"><backend model="random">/dev/urandom</backend></rng>
    <controller type="scsi" index="0" model="virtio-scsi"/>
    <disk device="disk" type="file">
      <source file="{disk}"/>
      <target dev="sda" bus="scsi"/>
      <driver name="qemu" type="raw" cache="writeback" discard="unmap"/>
      <serial>first</serial>
      <address type="drive" controller="0" bus="0" target="0" unit="0"/>
    </disk>
    <disk type="file" device="disk">
      <source file="{overlay}"/>
      <target dev="sdb" bus="scsi"/>
      <driver name="qemu" type="qcow2" cache="unsafe"/>
      <address type="drive" controller="0" bus="0" target="1" unit="0"/>
    </disk>
    <serial type="unix">
      <source mode="connect" path="{folder}/console.sock"/>
      <target port="0"/>
    </serial>
    <channel type="unix">
      <source mode="connect" path="{folder}/guestfsd.sock"/>
      <target type="virtio" name="org.libguestfs.channel.0"/>
    </channel>
    <interface type="user"><model type="virtio"/></interface>
    <controller type="usb" model="none"/>
    <memballoon model="none"/>
  </devices>
  <qemu:commandline>
    <qemu:env name="TMPDIR" value="/var/tmp"/>
  </qemu:commandline>
</domain>
"""
conn = libvirt.open(uri)
domain = conn.createXML(xml, libvirt.VIR_DOMAIN_START_AUTODESTROY)
assert domain.isActive() and not domain.isPersistent()
line, _ = console.accept()
channel, _ = daemon.accept()
line.settimeout(60)
said = b""
while b"Linux version" not in said:
    more = line.recv(4096)
    assert more, f"the console ends after {said!r}"
    said += more

del domain  # it holds the connection
assert conn.close() == 0
while line.recv(4096):
    pass
conn = libvirt.open(uri)
late = time.monotonic() + 30
while name in [d.name() for d in conn.listAllDomains()]:  # QEMU has ended, and the daemon settles that
    if time.monotonic() > late:
        sys.exit("the appliance outlives its connection")
    time.sleep(0.01)
print("the appliance ran")
