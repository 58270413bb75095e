"""Starts a domain whose optional disk is missing, and prints the event that tells of it.

Usage: dropped.py URI DOMAIN
"""

import sys

import libvirt

uri, name = sys.argv[1:3]
libvirt.virEventRegisterDefaultImpl()
heard = []
late = libvirt.virEventAddTimeout(60_000, lambda *_: sys.exit("no event within a minute"), None)
conn = libvirt.open(uri)
domain = conn.lookupByName(name)
conn.domainEventRegisterAny(
    domain, libvirt.VIR_DOMAIN_EVENT_ID_DISK_CHANGE,
    lambda _c, _d, old, new, alias, reason, _o: heard.append(f"{old} {new} {alias} {reason}"), None)
domain.create()
while not heard:
    libvirt.virEventRunDefaultImpl()
print(heard[0])
