"""Begins downloads of volumes 0, 1, ... of a pool, on several connections, and reads nothing.

Usage: greedy.py URI POOL VOLUMES
Says how many were begun and how the others were refused, and holds them until its input ends.
"""

import sys

import libvirt

uri, pool, volumes = sys.argv[1], sys.argv[2], int(sys.argv[3])
libvirt.registerErrorHandler(lambda context, error: None, None)
conns = [libvirt.open(uri) for _ in range(4)]
streams, refusal = [], None
for i in range(volumes):
    conn = conns[i % len(conns)]
    stream = conn.newStream(libvirt.VIR_STREAM_NONBLOCK)
    try:
        conn.storagePoolLookupByName(pool).storageVolLookupByName(str(i)).download(stream, 0, 0)
        streams.append(stream)
    except libvirt.libvirtError as e:
        refusal = e
print(len(streams), refusal, flush=True)
sys.stdin.read()
