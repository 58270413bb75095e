"""Holds a guest's console and hears events until the daemon ends the console.

Usage: bystander.py URI DOMAIN
"""

import sys
import threading

import libvirt

uri, name = sys.argv[1:3]


def say(*words):
    print(*words, flush=True)


def lifecycle(conn, domain, event, detail, opaque):
    say("event", domain.name(), event)


def run_loop():
    while True:
        libvirt.virEventRunDefaultImpl()


libvirt.registerErrorHandler(lambda context, error: None, None)
libvirt.virEventRegisterDefaultImpl()
threading.Thread(target=run_loop, daemon=True).start()
conn = libvirt.open(uri)
conn.domainEventRegisterAny(None, libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE, lifecycle, None)
stream = conn.newStream(0)
conn.lookupByName(name).openConsole(None, stream, 0)
say("sees", *sorted(d.name() for d in conn.listAllDomains()))
say("counts", conn.numOfDomains() + conn.numOfDefinedDomains(), len(conn.getAllDomainStats()))
try:
    while stream.recv(1024):
        pass
    say("console finished")
except libvirt.libvirtError as e:
    say("console ended", e.get_error_code())
