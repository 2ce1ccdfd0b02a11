"""Every method that a node serves, called by everybody: the declared rule is what happens, on a real TLS server."""

import asyncio
import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from slackwater.errors import AccessDenied, ConnectionLost, SlackwaterError, UsageError
from slackwater.model.descriptors import NodeDescriptor
from slackwater.model.ids import NodeId
from slackwater.protocol.node import services
from slackwater.runtime import TcpNet, run
from slackwater.runtime.access import NO_ROLE, Certificate, Role, bound, roles_of
from slackwater.runtime.certs import create_ca, create_client, create_node, create_operator
from slackwater.runtime.rpc import Method, StreamMethod
from slackwater.runtime.tls import TlsFiles, client_context, client_files, node_files
from tests.unit.server.guarded import Guarded

NODES, OPERATORS, CLIENTS = "node", "operator", "client"
RULES = {
    "kv.batch": {NODES, OPERATORS},
    "node.hello": {NODES, OPERATORS},
    "node.init": {OPERATORS},
    "node.join": {"newcomer"},
    "node.reach": {NODES},
    "node.report": {NODES, OPERATORS},
    "store.status": {NODES, OPERATORS},
    "store.capacity": {NODES, OPERATORS},
    "store.fetch": {NODES, OPERATORS},
    "store.checksum": {NODES, OPERATORS},
    "store.quarantine": {NODES, OPERATORS},
    "store.snapshot": {NODES},
    "store.feed": {NODES, OPERATORS},
    "store.feed_register": {NODES, OPERATORS},
    "store.feed_drop": {NODES, OPERATORS},
    "closedts.updates": {NODES},
    "closedts.frontier": {NODES, OPERATORS},
    "closedts.heartbeats": {NODES},
    "closedts.wake": {NODES},
    "admin.drain": {OPERATORS},
    "admin.decommission": {OPERATORS},
    "admin.split": {OPERATORS},
    "admin.merge": {OPERATORS},
    "admin.refetch": {OPERATORS},
    "admin.settings": {OPERATORS},
    "admin.change_setting": {OPERATORS},
    "admin.zones": {OPERATORS},
    "admin.change_zone": {OPERATORS},
    "admin.unset_zone": {OPERATORS},
}
"""Written down a second time on purpose: whoever opens a door must say so here too. All of `db.` is for clients."""


@pytest.fixture(scope="module")
def certs(tmp_path_factory):
    directory = tmp_path_factory.mktemp("certs")
    create_ca(directory)
    create_node(directory, ["127.0.0.1"])
    create_operator(directory, "root")
    create_client(directory, "ann")
    other = directory / "other"
    other.mkdir()
    for name in ("ca.key", "ca.crt"):
        (other / name).write_bytes((directory / name).read_bytes())
    (other / "ca.key").chmod(0o600)
    create_node(other, ["127.0.0.1"], node_id=7)
    create_ca(directory / "strange")
    create_client(directory / "strange", "ann")
    return directory


async def outcome(dialer, address, handler):
    """How a call with a body that no method understands ends: whoever is let in hears `DecodeError`."""
    name = handler.method.name
    kind = StreamMethod if isinstance(handler.method, StreamMethod) else Method
    method = kind(name, int, object, callers=Role.NODE)
    try:
        if kind is StreamMethod:
            async for _ in await dialer.stream(address, method, "nonsense", timeout=5):
                pass
        else:
            await dialer.call(address, method, "nonsense", timeout=5)
    except SlackwaterError as error:
        return type(error).__name__
    return "answered"


def test_every_method_is_for_those_it_declares(certs):
    async def main():
        async with Guarded(certs) as guarded:
            handlers = guarded.node.server.handlers
            assert {name for name in handlers if not name.startswith("db.")} == set(RULES)
            callers = {
                NODES: guarded.dialer(files=node_files(certs / "other"), node_id=7),
                "newcomer": guarded.dialer(files=node_files(certs)),
                OPERATORS: guarded.dialer("root"),
                CLIENTS: guarded.dialer("ann"),
            }
            seen = set()
            for name, handler in handlers.items():
                allowed = RULES.get(name, {OPERATORS, CLIENTS})
                for caller, dialer in callers.items():
                    found = await outcome(dialer, guarded.address, handler)
                    expected = "DecodeError" if caller in allowed else "AccessDenied"
                    assert (name, caller, found) == (name, caller, expected)
                    seen.add((name, caller))
            assert len(seen) == 4 * len(handlers) > 150
            denied = guarded.node.server.refused_total["AccessDenied"]
            assert denied == sum(4 - len(RULES.get(name, {OPERATORS, CLIENTS})) for name in handlers)
            assert len(guarded.node.server.refusals) <= 64

    run(main())


@pytest.mark.parametrize(
    "stranger", ["another authority", "wrong node", "client as node", "no name", "no role", "plain"]
)
def test_strangers_and_impostors_reach_no_method(certs, stranger, tmp_path):
    """They are turned away at the greeting, hence from every method."""

    async def main():
        async with Guarded(certs) as guarded:
            dialer, error, text = impostor(guarded, certs, stranger, tmp_path)
            with pytest.raises(error, match=text):
                await dialer.peer(guarded.address)
            assert dialer.live(guarded.address) is None
            assert guarded.node.server.connections <= 1  # that of the node to itself

    run(main())


def impostor(guarded, certs, kind, tmp_path):
    if kind == "another authority":
        files = client_files(certs / "strange", "ann")
        context = client_context(files)
        context.load_verify_locations(str(certs / "ca.crt"))
        dialer = guarded.dialer("ann")
        dialer._runtime.net = TcpNet(guarded.settings, client_tls=context)
        return dialer, ConnectionLost, None
    if kind == "plain":
        dialer = guarded.dialer("ann")
        dialer._runtime.net = TcpNet(guarded.settings)
        return dialer, ConnectionLost, None
    if kind == "wrong node":
        return guarded.dialer(files=node_files(certs / "other"), node_id=1), AccessDenied, "of n7 may not speak for n1"
    if kind == "client as node":
        return guarded.dialer("root", node_id=1), AccessDenied, "may not speak for n1"
    name, role = ("", "operator") if kind == "no name" else ("root", "")
    text = "no common name" if kind == "no name" else "has no role"
    return guarded.dialer(files=signed(certs, tmp_path, name, role)), AccessDenied, text


def signed(certs, directory, name, role):
    """A certificate of the right authority with an odd subject."""
    ca = x509.load_pem_x509_certificate((certs / "ca.crt").read_bytes())
    ca_key = serialization.load_pem_private_key((certs / "ca.key").read_bytes(), password=None)
    key = ec.generate_private_key(ec.SECP256R1())
    parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Slackwater")]
    if role:
        parts.append(x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, role))
    if name:
        parts.append(x509.NameAttribute(NameOID.COMMON_NAME, name))
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name(parts))
        .issuer_name(ca.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(ca.not_valid_before_utc)
        .not_valid_after(ca.not_valid_before_utc + datetime.timedelta(days=30))
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (directory / "odd.crt").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (directory / "odd.key").write_bytes(pem)
    (directory / "odd.key").chmod(0o600)
    return TlsFiles(ca=certs / "ca.crt", certificate=directory / "odd.crt", key=directory / "odd.key")


def test_a_node_is_bound_to_the_host_it_is_known_at(certs):
    async def main():
        async with Guarded(certs) as guarded:
            guarded.node.book.learn([NodeDescriptor(NodeId(5), "db5.example:7400")])
            dialer = guarded.dialer(files=node_files(certs), node_id=5)
            with pytest.raises(AccessDenied, match=r"is for 127\.0\.0\.1, and n5 is at db5\.example"):
                await dialer.call(guarded.address, services.REPORT, services.ReportRequest(), timeout=5)
            unknown = guarded.dialer(files=node_files(certs), node_id=6)  # it has just joined through another node
            await unknown.call(guarded.address, services.REPORT, services.ReportRequest(), timeout=5)

    run(main())


@pytest.mark.parametrize(
    ("told", "text"),
    [
        (NodeDescriptor(NodeId(8), "127.0.0.1:1"), "where it is itself"),
        (NodeDescriptor(NodeId(6), "db5.example:7400"), "is for 127.0.0.1"),
        (NodeDescriptor(NodeId(6), "x" * 256 + ":1"), "at most 255 bytes"),
        (NodeDescriptor(NodeId(6), "nowhere"), "is not an address"),
        (NodeDescriptor(NodeId(6), "127.0.0.1:1", tuple((str(n), "x") for n in range(9))), "at most 8 tiers"),
        (NodeDescriptor(NodeId(6), "127.0.0.1:1", (("zone", "x" * 65),)), "of 64 bytes"),
        (NodeDescriptor(NodeId(6), "127.0.0.1:1", store_id="x" * 65), "at most 64 bytes"),
        (NodeDescriptor(NodeId(6), "127.0.0.1:1", started_at=(1 << 62)), "starts in the future"),
    ],
)
def test_a_node_tells_only_what_may_be_kept(certs, told, text):
    async def main():
        async with Guarded(certs) as guarded:
            dialer = guarded.dialer(files=node_files(certs), node_id=6)
            with pytest.raises(UsageError, match=text):
                await dialer.call(guarded.address, services.HELLO, services.HelloRequest(told), timeout=5)
            assert set(guarded.node.book.nodes) == {1}
            good = NodeDescriptor(NodeId(6), "127.0.0.1:1", (("zone", "a"),))
            await dialer.call(guarded.address, services.HELLO, services.HelloRequest(good), timeout=5)
            assert guarded.node.book.nodes[NodeId(6)] == good

    run(main())


def test_joining_takes_a_certificate_for_the_address(certs):
    async def main():
        async with Guarded(certs) as guarded:
            log = tuple(guarded.node.log.identity())
            ask = lambda dialer, address: dialer.call(  # noqa: E731
                guarded.address, services.JOIN, services.JoinRequest(address, (), log), timeout=5
            )
            newcomer = guarded.dialer(files=node_files(certs))
            with pytest.raises(AccessDenied, match=r"is for 127\.0\.0\.1"):
                await ask(newcomer, "db5.example:7400")
            with pytest.raises(UsageError, match="255"):
                await ask(newcomer, "x" * 6_000_000 + ":1")
            with pytest.raises(AccessDenied, match="is for n7 only"):
                await ask(guarded.dialer(files=node_files(certs / "other")), "127.0.0.1:1")
            with pytest.raises(AccessDenied, match="nodes that join"):
                await ask(guarded.dialer("root"), "127.0.0.1:1")
            assert (await ask(newcomer, "127.0.0.1:1")).node_id == 2

    run(main())


def test_a_node_joins_over_tls_and_then_speaks_as_itself(certs):
    async def main():
        async with Guarded(certs) as first, Guarded(certs, join=first) as second:
            assert second.node.node_id == 2
            await second.node.kv.put(b"\x04k\x00\x01", b"v")
            async with asyncio.timeout(20):
                while NodeId(2) not in first.node.book.nodes:
                    await asyncio.sleep(0.02)

    run(main())


def test_a_method_that_nobody_may_call_cannot_be_made():
    with pytest.raises(TypeError):
        Method("x", int, int)
    with pytest.raises(UsageError, match="names no role"):
        Method("x", int, int, callers=NO_ROLE)


@pytest.mark.parametrize(
    ("name", "covered"),
    [
        ("db1.example", True),
        ("DB1.Example", True),
        ("a.wild.example", True),
        ("a.b.wild.example", False),
        ("10.0.0.1", True),
        ("10.0.0.2", False),
        ("0:0:0:0:0:0:0:1", True),
        ("[::1]", True),
        ("", False),
    ],
)
def test_hosts_are_compared_as_tls_does(name, covered):
    certificate = Certificate("node", "node", ("db1.example", "*.wild.example", "10.0.0.1", "::1"))
    assert certificate.covers(name) is covered


def test_roles():
    assert roles_of(Certificate("node", "node"), node_id=0) is Role.NEWCOMER
    assert roles_of(Certificate("node", "node-3"), node_id=3) is Role.NODE
    for odd in ("node-", "node-0", "node-03", "node-x", "nodes"):
        with pytest.raises(AccessDenied, match="is called node"):
            roles_of(Certificate("node", odd), node_id=0)
    bound(Certificate("node", "node-3"), node_id=3, host="anywhere")
    with pytest.raises(AccessDenied, match="no host"):
        bound(Certificate("node", "node"), node_id=3, host="anywhere")
