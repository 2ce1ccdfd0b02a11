"""The deterministic simulator: whole clusters, real code, one seed.

    seed ──► tape ──► scenario ──► world ──► run ──► verdict + trace hash
             streams   nodes,       loop (time, order)      0 pass · 2 crash · 3 liveness
             of        faults,      net  disk  log          4 wrong history · 5 nondeterminism
             choices   settings,    clocks  machines
                       schedule     nemesis

The same drivers, cores and RPC code as in production run here, because they reach the world only through
`runtime.seam`. What is outside the simulation on purpose: RocksDB, NATS, Spark, TLS, sockets; they are covered by
conformance with their simulated twins and by integration tests.

    loop       (with `handles`) virtual time, seeded order, trace hash; parks what a power cut drops
    tape       every choice, in separate streams; recorded and replayed
    schedule   uniform, FIFO, PCT, starve
    fence      real time, chance, threads, sockets, files raise during a run
    world      machines with programs on them; crash, kill, pause, slow
    net, link  TCP-like connections; partitions, stalls, resets, half-open ends
    disk       the memory engine on slow, failing, full hardware
    log        the ordered log with every ambiguity its contract allows
    clocks     offset, drift, waves, steps; monotonic time is honest
    faults     the nemesis
    scenario   what a seed draws; the shelf of plays, oracles, planted bugs
    scenarios/ the plays themselves
    mutants/   planted bugs: patches of production code, each with the oracles that must find it
    run        one run; `runner` many, on all cores; `report` for people; `command` is `slackwater sim`

To add a workload or an oracle: a module under `scenarios/` that calls `register`. To add a planted bug: `plant` in `mutants/`.
"""
