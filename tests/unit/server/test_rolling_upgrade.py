"""A cluster that is upgraded one node at a time: processes that announce different ranges of protocol versions."""

import asyncio

import pytest

from slackwater.codec.layout import kv
from slackwater.errors import ProtocolError
from slackwater.runtime import RealRuntime, run
from slackwater.runtime.rpc import ProtocolVersions
from slackwater.server.node import Node
from slackwater.settings import Settings
from slackwater.storage.memory import MemoryDisk, MemoryEngine
from tests.unit.server.cluster import DEADLINE_S, Cluster

OLD, MIDDLE, NEW = ProtocolVersions(1, 1), ProtocolVersions(1, 2), ProtocolVersions(2, 3)


def test_old_and_new_nodes_serve_in_one_cluster_and_use_what_they_have_in_common() -> None:
    async def main() -> None:
        async with Cluster(3, versions=(MIDDLE, OLD, MIDDLE)) as cluster:
            first, old, third = cluster.nodes
            await first.admin.relocate(kv(b""), [first.node_id, old.node_id, third.node_id])
            for number, node in enumerate(cluster.nodes):
                await node.kv.put(kv(b"k%d" % number), b"v")
            for node in cluster.nodes:
                assert len((await node.kv.scan(kv(b""), b"\x05")).keys) == 3
            spoken = {
                n.node_id: (await n.dialer.peer(old.address, node_id=old.node_id)).version for n in (first, third)
            }
            assert spoken == {first.node_id: 1, third.node_id: 1}
            assert (await first.dialer.peer(third.address, node_id=third.node_id)).version == 2
            # The old node is replaced by a newer process on the same store: the upgrade of one node.
            await old.node.stop()
            cluster.versions = (MIDDLE, MIDDLE, MIDDLE)
            again = await cluster.add(old.engine, 1)  # type: ignore[arg-type]
            assert (await again.dialer.peer(first.address, node_id=first.node_id)).version == 2
            await cluster.until(lambda: again.liveness.own() is not None)
            assert len((await again.kv.scan(kv(b""), b"\x05")).keys) == 3

    run(main())


def test_a_node_too_new_for_the_cluster_does_not_join_and_says_which_side_to_upgrade() -> None:
    async def main() -> None:
        async with Cluster(1, versions=(OLD,)) as cluster:
            runtime = RealRuntime(disk=MemoryDisk(), net=cluster.net)
            failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
            scope = runtime.scope("late", on_failure=failed.set_result)
            late = Node(
                runtime=runtime,
                scope=scope,
                engine=MemoryEngine(),
                log=cluster.log.handle(),
                address="n2:7400",
                settings=Settings(cluster.settings),
                join=("n1:7400",),
                versions=NEW,
            )
            await late.start()
            error = await asyncio.wait_for(failed, DEADLINE_S)
            assert isinstance(error, ProtocolError)
            assert error.message.endswith("n1 speaks 1, the caller speaks 2 to 3; upgrade n1")
            assert late.member is None
            await late.server.close()
            await late.dialer.close()
            await scope.close()

    run(main())


@pytest.mark.parametrize("versions", [OLD, MIDDLE])
def test_a_node_tells_the_agreed_version_to_its_handlers(versions: ProtocolVersions) -> None:
    async def main() -> None:
        async with Cluster(2, versions=(MIDDLE, versions)) as cluster:
            first, second = cluster.nodes
            assert (await second.dialer.peer(first.address)).version == versions.newest

    run(main())
