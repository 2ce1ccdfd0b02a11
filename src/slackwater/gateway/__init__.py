"""What a node does for clients: the native protocol (`protocol.client.calls`), served by every node alike.

    client ──► any node ── catalog ── which table, which version
                    ├───── KV ─────── writes and transactions, to whichever ranges hold the keys
                    ├───── scans ──── page after page, from leaseholders or the nearest replicas
                    └───── staleness ─ one timestamp for many tables

A gateway keeps no state for a client but its open transactions (`txns`): they are bounded in number, are rolled back when
unused, and can be asked about by id at any other gateway once they were told to commit. Everything else may be
asked of another gateway the next time, so a client whose gateway dies goes on with the next.

The methods of the topics are a Python API: `gateway.rows.write(Write(…), call)`. `Gateway.serve` binds them to an RPC server,
whose `Context` is the call; code in the same process makes a `LocalCall` (`context.py`) and needs no connection. What a gateway
needs of its node is handed over when it is made (`node.py`): this folder imports nothing of `server/`.

What a client sends is checked here, before anything is done with it: the table must exist in the version that the client
used, keys must be sorted, unique and inside the table, spans must lie inside it, values must be of that version.

Files: `service` (what is served, and by whom), `tables` (definitions), `rows` (writes and point reads), `scans` (pages of
Arrow), `txns` (open transactions), `times` (snapshots, resolved, close, frontier), `partitions`,
`staging` (commits from many processes), `jobs` and `verify` (durable jobs).
"""

from slackwater.gateway.service import Gateway

__all__ = ["Gateway"]
