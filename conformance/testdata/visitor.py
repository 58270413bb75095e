"""Stays connected until the daemon hangs up.

Usage: visitor.py URI
"""

import sys
import threading

import libvirt


def run_loop():
    while True:
        libvirt.virEventRunDefaultImpl()


libvirt.registerErrorHandler(lambda context, error: None, None)
libvirt.virEventRegisterDefaultImpl()
threading.Thread(target=run_loop, daemon=True).start()
out = threading.Event()
conn = libvirt.open(sys.argv[1])
conn.registerCloseCallback(lambda conn, reason, opaque: out.set(), None)
print("in", flush=True)
out.wait()
