"""Commits the disk vda of a domain, pivots, and prints the events of the block job.

Usage: blockcommit.py URI DOMAIN pivot|abort
"""

import sys
import threading

import libvirt

uri, name, how = sys.argv[1:4]
STATUS = {0: "completed", 1: "failed", 2: "canceled", 3: "ready"}
ready, ended = threading.Event(), threading.Event()


def job(conn, domain, disk, kind, status, opaque):
    print(opaque, disk.rsplit("/", 1)[-1], kind, STATUS[status], flush=True)
    if opaque == "by-target":
        (ready if STATUS[status] == "ready" else ended).set()


def run_loop():
    while True:
        libvirt.virEventRunDefaultImpl()


libvirt.virEventRegisterDefaultImpl()
threading.Thread(target=run_loop, daemon=True).start()
conn = libvirt.open(uri)
domain = conn.lookupByName(name)
conn.domainEventRegisterAny(domain, libvirt.VIR_DOMAIN_EVENT_ID_BLOCK_JOB, job, "by-path")
conn.domainEventRegisterAny(domain, libvirt.VIR_DOMAIN_EVENT_ID_BLOCK_JOB_2, job, "by-target")
domain.blockCommit("vda", None, None, 0, libvirt.VIR_DOMAIN_BLOCK_COMMIT_ACTIVE)
if not ready.wait(30):
    sys.exit("it is never ready")
print("info", domain.blockJobInfo("vda", 0)["type"], flush=True)
flags = libvirt.VIR_DOMAIN_BLOCK_JOB_ABORT_PIVOT if how == "pivot" else libvirt.VIR_DOMAIN_BLOCK_JOB_ABORT_ASYNC
domain.blockJobAbort("vda", flags)
if not ended.wait(30):
    sys.exit("its end is not told")
print("info", domain.blockJobInfo("vda", 0), flush=True)
