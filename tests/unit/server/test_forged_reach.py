"""Statements of reach that no node made: without certificates anyone on the machine may call in the name of a node."""

import pytest

from slackwater.errors import AccessDenied
from slackwater.model.ids import NodeId
from slackwater.protocol.node import services
from slackwater.runtime import RealRuntime, run
from slackwater.runtime.certs import create_ca, create_node
from slackwater.runtime.rpc import Dialer, Identity
from slackwater.runtime.tls import node_files
from slackwater.storage.memory import MemoryDisk
from tests.unit.server.cluster import Cluster
from tests.unit.server.guarded import Guarded

N1, N2, N3 = NodeId(1), NodeId(2), NodeId(3)


def test_a_forged_statement_without_a_certificate_takes_no_leases():
    """A siege of fuzzed frames moved leases every second: one of a thousand was such a statement."""

    async def main():
        async with Cluster(3) as cluster:
            first = cluster.nodes[0]
            runtime = RealRuntime(disk=MemoryDisk(), net=cluster.net, settings=cluster.settings)
            scope = runtime.scope("forger")
            forger = Dialer(runtime, scope, identity=Identity(node_id=2), settings=cluster.settings)
            for speaker in (N2, N3):
                said = services.ReachStatement(speaker, misses=[N1], cut_off=[N1])
                answer = await forger.call(first.address, services.REACH, said, timeout=5)
                assert answer.node_id == N1, "it is answered as ever"
            assert first.fitness.reasons() == []
            for victim in (N2, N3):
                reach = first.fitness.reach
                assert reach.missed_by(victim, now_ns=runtime.clock.monotonic_ns(), window_ns=10**9) == []
            await forger.close()
            await scope.close()

    run(main())


def test_a_certificate_of_a_node_speaks_for_that_node_only(tmp_path):
    create_ca(tmp_path)
    create_node(tmp_path, ["127.0.0.1"])

    async def main():
        async with Guarded(tmp_path) as guarded:
            dialer = guarded.dialer(files=node_files(tmp_path), node_id=7)
            said = services.ReachStatement(NodeId(8), cut_off=[N1])
            with pytest.raises(AccessDenied, match="says what it misses itself"):
                await dialer.call(guarded.address, services.REACH, said, timeout=5)
            assert guarded.node.fitness.reasons() == []

    run(main())
