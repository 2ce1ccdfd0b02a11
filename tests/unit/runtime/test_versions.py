"""Protocol versions: the highest in common is used; none in common is an error that names the side to upgrade."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.errors import ProtocolError
from slackwater.runtime import run
from slackwater.runtime.rpc import SUPPORTED, Dialer, Identity, ProtocolVersions, session, wire
from slackwater.runtime.rpc.versions import agree
from tests.unit.runtime.world import ECHO, NETS, Ask, world

ranges = st.tuples(st.integers(1, 9), st.integers(0, 4)).map(
    lambda drawn: ProtocolVersions(drawn[0], drawn[0] + drawn[1])
)


@given(ours=ranges, theirs=ranges)
def test_both_sides_agree_on_the_highest_version_that_both_speak(
    ours: ProtocolVersions, theirs: ProtocolVersions
) -> None:
    common = set(range(ours.oldest, ours.newest + 1)) & set(range(theirs.oldest, theirs.newest + 1))
    names = {"own_name": "n1", "peer_name": "n2"}
    if common:
        assert agree(ours, theirs, **names) == agree(theirs, ours, **names) == max(common)
        return
    older = "n1" if ours.newest < theirs.newest else "n2"
    with pytest.raises(ProtocolError, match=f"upgrade {older}$"):
        agree(ours, theirs, **names)
    with pytest.raises(ProtocolError, match=f"upgrade {older}$"):  # the other side says the same
        agree(theirs, ours, own_name="n2", peer_name="n1")


@pytest.mark.parametrize("theirs", [ProtocolVersions(0, 0), ProtocolVersions(3, 2), ProtocolVersions(-1, 1)])
def test_what_is_no_range_of_versions_is_refused(theirs: ProtocolVersions) -> None:
    with pytest.raises(ProtocolError, match="no range"):
        agree(SUPPORTED, theirs, own_name="n1", peer_name="n2")


@pytest.mark.parametrize("net", NETS)
def test_a_connection_uses_the_version_in_common(net: str) -> None:
    async def main() -> None:
        async with world(net, identity=Identity(cluster_id="c1", node_id=1, versions=ProtocolVersions(2, 4))) as w:
            served = []

            async def echo(request, context):
                served.append(context.version)
                return request

            w.server.handlers["echo"] = w.server.handlers["echo"]._replace(function=echo, kind="async", at_once=None)
            for versions, used in (
                (ProtocolVersions(1, 3), 3),
                (ProtocolVersions(4, 9), 4),
                (ProtocolVersions(2, 2), 2),
            ):
                identity = Identity(cluster_id="c1", versions=versions)
                dialer = Dialer(w.runtime, w.scope, identity=identity, settings=w.settings)
                peer = await dialer.peer(w.address)
                await peer.call(ECHO, Ask(1))
                assert (peer.version, served[-1]) == (used, used)

    run(main())


@pytest.mark.parametrize(
    ("ours", "older"),
    [(ProtocolVersions(1, 1), "the caller"), (ProtocolVersions(5, 6), "n1")],
    ids=["old caller", "old server"],
)
def test_without_a_version_in_common_both_sides_hear_which_one_to_upgrade(ours: ProtocolVersions, older: str) -> None:
    async def main() -> None:
        async with world(identity=Identity(cluster_id="c1", node_id=1, versions=ProtocolVersions(2, 4))) as w:
            dialer = Dialer(w.runtime, w.scope, identity=Identity(cluster_id="c1", versions=ours), settings=w.settings)
            with pytest.raises(ProtocolError, match=f"n1 speaks 2 to 4.*upgrade {older}$"):
                await dialer.peer(w.address)
            ((_, refusal),) = w.server.refusals
            assert refusal.message.endswith(f"upgrade {older}")

    run(main())


def test_a_peer_from_before_ranges_of_versions_speaks_exactly_the_one_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its greeting has one field less."""

    async def main() -> None:
        async with world(identity=Identity(cluster_id="c1", node_id=1, versions=ProtocolVersions(1, 3))) as w:
            old = wire.encode(wire.Hello(wire.MAGIC, 1, "c1", 0, 6000))
            assert wire.decode_from_caller(old).oldest == 0
            dialer = Dialer(w.runtime, w.scope, identity=Identity(versions=ProtocolVersions(1, 1)), settings=w.settings)
            original = session.RpcSession._hello
            monkeypatch.setattr(
                session.RpcSession, "_hello", lambda s: old if type(s).__name__ == "Peer" else original(s)
            )
            peer = await dialer.peer(w.address)
            assert peer.version == 1

    run(main())
