"""One node, put together: everything below it is wired here, and nowhere else.

    process ──► Node ─────────────────► Member ─────────────────► drain, stop
    arguments   a process with a store   once it belongs to a cluster
                doors, clock, address    ranges here, gateway, feeds, jobs, queues
                book, membership

Every attribute of `Node` and of `Member` exists from construction on: what a node has only as a member is an attribute of
`Member`.

    start and end       process, node, member, bootstrap, identity, embedded, drain, rebuild, journal
    other nodes         membership, addresses, announcing, announcements, peers, reach, fitness, clock_hook
    what RPC reaches    admin_service, config_service, feeds, closing, raw_writes and records (checks), remote (the caller's side)
    care for ranges     queues/, admin, merging, meta, replication, refetch, damage, recovery/
    copies of settings  cluster_settings, lease_settings, zone_follower, retention, protection
    what a node says    reports, metrics, health, watch

Decisions stand in pure functions (`queues/` has one file per concern, each with one); what is here reads the facts, asks the
function and acts. A node's own machinery sees the store through `SystemKv`, as a client would: no layer below knows of another.
"""
