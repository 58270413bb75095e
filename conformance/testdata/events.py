"""Runs a guest through its life and prints the events that arrive meanwhile.

Usage: events.py URI DOMAIN
"""

import sys
import threading

import libvirt

uri, name = sys.argv[1:3]
stopped = threading.Event()

KINDS = ["defined", "undefined", "started", "suspended", "resumed", "stopped", "shutdown", "pmsuspended", "crashed"]


def say(*words):
    print(*words, flush=True)


def lifecycle(conn, domain, event, detail, opaque):
    say("lifecycle", domain.name(), KINDS[event], detail)
    if KINDS[event] == "stopped":
        stopped.set()


def reboot(conn, domain, opaque):
    say("reboot", domain.name())


def agent(conn, domain, state, reason, opaque):
    say("agent", domain.name(), {1: "connected", 2: "disconnected"}[state], reason)


def metadata(conn, domain, kind, uri, opaque):
    say("metadata", domain.name(), kind)


def run_loop():
    while True:
        libvirt.virEventRunDefaultImpl()


libvirt.virEventRegisterDefaultImpl()
threading.Thread(target=run_loop, daemon=True).start()
conn = libvirt.open(uri)
conn.setKeepAlive(5, 3)
ids = [
    conn.domainEventRegisterAny(None, libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE, lifecycle, None),
    conn.domainEventRegisterAny(None, libvirt.VIR_DOMAIN_EVENT_ID_REBOOT, reboot, None),
    conn.domainEventRegisterAny(None, libvirt.VIR_DOMAIN_EVENT_ID_AGENT_LIFECYCLE, agent, None),
    conn.domainEventRegisterAny(None, libvirt.VIR_DOMAIN_EVENT_ID_METADATA_CHANGE, metadata, None),
]
domain = conn.lookupByName(name)
domain.create()
domain.suspend()
domain.resume()
domain.setMetadata(libvirt.VIR_DOMAIN_METADATA_TITLE, "on stage", None, None, libvirt.VIR_DOMAIN_AFFECT_LIVE)
domain.reset()
domain.destroy()
if not stopped.wait(60):
    sys.exit("no event says that the guest has stopped")
for i in ids:
    conn.domainEventDeregisterAny(i)
conn.close()
