"""Free ports on loopback, for processes that are started, killed and started again at the same address.

The operating system's own choice (port 0) comes from the range it also gives to outgoing connections: while a node is down,
any client on the machine may be given its port. These are chosen below that range, where nothing is handed out.
"""

from __future__ import annotations

import random
import socket

LOOPBACK = "127.0.0.1"
LOWEST, HIGHEST = 15_000, 32_000
"""Above the well-known ports, below the ephemeral ones (from 32768 on Linux, 49152 elsewhere); 80 more is still there."""
TRIES_MAX = 1000


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago; held together, so that all differ."""
    choose = random.SystemRandom()  # several processes choose at once: no seed may be shared
    held: list[socket.socket] = []
    try:
        for _ in range(TRIES_MAX):
            if len(held) == count:
                return [each.getsockname()[1] for each in held]
            each = socket.socket()
            try:
                each.bind((LOOPBACK, choose.randrange(LOWEST, HIGHEST)))
            except OSError:
                each.close()
            else:
                held.append(each)
        raise OSError(f"no {count} free ports between {LOWEST} and {HIGHEST}")
    finally:
        for each in held:
            each.close()
