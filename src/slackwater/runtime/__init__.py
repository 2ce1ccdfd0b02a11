"""The only door to the world: time, chance, tasks, sockets, threads, disks and logs, behind one seam.

    seam.py       the protocols every layer above is written against (and the simulator implements a second time)
    real.py       RealRuntime and `run`: the production world, on asyncio and uvloop
    clock.py rng.py tasks.py      its clock, its chance, and `Scope`, the owner of tasks
    framing.py tcp.py local.py    connections that carry frames: on TCP or TLS, or inside one process
    tls.py certs.py               TLS contexts, and the certificates a cluster needs
    rpc/                          calls, streams, heartbeats and deadlines over any `seam.Net`
    sync.py                       the waiting primitives drivers may use
    deadline.py retry.py          until when, and how often, one operation is tried

The rule of this folder is that nothing above it may tell which world it runs in. `Scope` and `rpc/` are written against
the seam alone and so run in the simulator as they are; `real`, `tcp`, `tls` and `clock` are what it replaces.

                     drivers, servers, clients
                               │
            ┌──────────────────┴──────────────────┐
            │  rpc/   Scope   sync                 │   runs in both worlds
            ├──────────────────┬──────────────────┤
            │  seam.Runtime    │  seam.Runtime     │
            │  real, tcp, tls  │  sim/             │
            └──────────────────┴──────────────────┘

Why one seam and not a mock per test: a fault found in simulation is a fault in the code that ships, because no line
of it above this folder was replaced.
"""

from slackwater.runtime.local import LocalNet
from slackwater.runtime.real import RealRuntime, run
from slackwater.runtime.tasks import Scope
from slackwater.runtime.tcp import TcpNet

__all__ = ["LocalNet", "RealRuntime", "Scope", "TcpNet", "run"]
