import asyncio
import contextlib
import ssl
import stat

import pytest
from cryptography import x509

from slackwater.errors import AccessDenied, ConnectionLost, UsageError
from slackwater.runtime import TcpNet, run
from slackwater.runtime.access import ANYBODY
from slackwater.runtime.certs import create_ca, create_client, create_node
from slackwater.runtime.rpc import Dialer, Identity, Method, RpcServer
from slackwater.runtime.tls import client_context, client_files, node_files, server_context
from tests.unit.runtime.world import ECHO, Answer, Ask, turns, world

WHO = Method("who", Ask, str, callers=ANYBODY)


@pytest.fixture(scope="module")
def certs(tmp_path_factory):
    directory = tmp_path_factory.mktemp("certs")
    create_ca(directory)
    create_node(directory, ["127.0.0.1", "localhost", "::1"])
    create_client(directory, "ann")
    return directory


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    directory = tmp_path_factory.mktemp("other")
    create_ca(directory)
    create_node(directory, ["127.0.0.1"])
    create_client(directory, "ann")
    return directory


@contextlib.asynccontextmanager
async def secure(server_files):
    """A world whose server speaks TLS."""
    async with world("tcp", connect_timeout=5) as w:
        w.runtime.net = TcpNet(w.settings, server_tls=server_context(server_files))
        server = RpcServer(w.runtime, w.scope, identity=Identity(cluster_id="c1", node_id=1), settings=w.settings)
        server.handle_sync(ECHO, lambda request, _: Answer(request.n))
        server.handle_sync(WHO, lambda _, context: context.user)
        w.address = await server.listen("127.0.0.1:0")
        w.secure = server
        yield w
        await server.close()


async def dial(w, context, *, node_id=0, address=None):
    w.runtime.net = TcpNet(w.settings, client_tls=context)
    dialer = Dialer(w.runtime, w.scope, identity=Identity(node_id=node_id), settings=w.settings)
    return await dialer.peer(address or w.address)


def test_nodes_and_clients_of_one_authority_talk(certs):
    async def main():
        async with secure(node_files(certs)) as w:
            peer = await dial(w, client_context(client_files(certs, "ann")))
            assert await peer.call(WHO, Ask(1)) == "ann"
            assert peer.certificate.name == "node"
            assert await peer.call(ECHO, Ask(5, bytes(1 << 20))) == Answer(5)
            node = await dial(w, client_context(node_files(certs)), node_id=2)
            assert await node.call(WHO, Ask(1)) == "node"
            peer.close()
            node.close()
            await turns()

    run(main())


def test_thousands_of_calls_over_tls(certs):
    async def main():
        async with secure(node_files(certs)) as w:
            peer = await dial(w, client_context(client_files(certs, "ann")))
            answers = await asyncio.gather(*[peer.call(ECHO, Ask(n)) for n in range(2000)])
            assert [a.n for a in answers] == list(range(2000))
            peer.close()
            await turns()

    run(main())


def test_a_client_of_another_authority_is_refused(certs, other):
    async def main():
        async with secure(node_files(certs)) as w:
            context = client_context(client_files(other, "ann"))
            with pytest.raises(ConnectionLost, match="certificate cannot be trusted"):
                await dial(w, context)  # it does not trust the server either
            context.load_verify_locations(str(certs / "ca.crt"))
            with pytest.raises(ConnectionLost):
                await dial(w, context)
            assert (await dial(w, client_context(client_files(certs, "ann")))).node_id == 1

    run(main())


def test_a_client_without_a_certificate_is_refused(certs):
    async def main():
        async with secure(node_files(certs)) as w:
            context = ssl.create_default_context(cafile=str(certs / "ca.crt"))
            with pytest.raises(ConnectionLost):
                await dial(w, context)
            with pytest.raises(ConnectionLost):
                await dial(w, None)
            assert w.secure.connections == 0

    run(main())


def test_a_node_is_known_by_its_hosts(certs, tmp_path):
    async def main():
        (tmp_path / "ca.key").write_bytes((certs / "ca.key").read_bytes())
        (tmp_path / "ca.key").chmod(0o600)
        (tmp_path / "ca.crt").write_bytes((certs / "ca.crt").read_bytes())
        elsewhere = create_node(tmp_path, ["db.example"])
        async with secure(elsewhere) as w:
            with pytest.raises(ConnectionLost, match=r"IP address mismatch|doesn't match"):
                await dial(w, client_context(client_files(certs, "ann")))

    run(main())


def test_a_client_certificate_cannot_play_a_server(certs):
    async def main():
        async with secure(client_files(certs, "ann")) as w:
            with pytest.raises(ConnectionLost, match="certificate cannot be trusted"):
                await dial(w, client_context(client_files(certs, "ann")))

    run(main())


def test_a_client_certificate_cannot_speak_for_a_node(certs):
    async def main():
        async with secure(node_files(certs)) as w:
            with pytest.raises(AccessDenied, match="may not speak for n3"):
                await dial(w, client_context(client_files(certs, "ann")), node_id=3)

    run(main())


def test_old_protocols_are_off(certs):
    assert server_context(node_files(certs)).minimum_version == ssl.TLSVersion.TLSv1_2
    assert client_context(node_files(certs)).minimum_version == ssl.TLSVersion.TLSv1_2
    assert client_context(node_files(certs)).check_hostname


def test_plain_bytes_to_a_tls_port_hurt_nobody(certs):
    async def main():
        async with secure(node_files(certs)) as w:
            host, port = w.address.split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"GET / HTTP/1.0\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                await reader.read()
            writer.close()
            peer = await dial(w, client_context(client_files(certs, "ann")))
            assert await peer.call(ECHO, Ask(1)) == Answer(1)

    run(main())


def test_keys_are_secret_and_never_overwritten(tmp_path):
    create_ca(tmp_path)
    create_node(tmp_path, ["h"])
    create_client(tmp_path, "bob")
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    assert sorted(before) == ["ca.crt", "ca.key", "client.bob.crt", "client.bob.key", "node.crt", "node.key"]
    for key in tmp_path.glob("*.key"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    with pytest.raises(UsageError, match="not overwritten"):
        create_ca(tmp_path)
    with pytest.raises(UsageError, match="not overwritten"):
        create_node(tmp_path, ["h"])
    with pytest.raises(UsageError, match="not overwritten"):
        create_client(tmp_path, "bob")
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
    create_node(tmp_path, ["h2"], replace=True)
    assert (tmp_path / "node.key").read_bytes() != before["node.key"]
    assert (tmp_path / "ca.key").read_bytes() == before["ca.key"]
    server_context(node_files(tmp_path))


def test_certificates_say_what_they_are_for(tmp_path):
    create_ca(tmp_path)
    create_node(tmp_path, ["db.example", "10.0.0.1"])
    create_client(tmp_path, "bob")
    node = x509.load_pem_x509_certificate((tmp_path / "node.crt").read_bytes())
    sans = node.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert sans.get_values_for_type(x509.DNSName) == ["db.example"]
    assert [str(ip) for ip in sans.get_values_for_type(x509.IPAddress)] == ["10.0.0.1"]
    client = x509.load_pem_x509_certificate((tmp_path / "client.bob.crt").read_bytes())
    uses = client.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(uses) == [x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH]
    ca = x509.load_pem_x509_certificate((tmp_path / "ca.crt").read_bytes())
    client.verify_directly_issued_by(ca)
    assert ca.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


@pytest.mark.parametrize("user", ["", "node", "node-3", "a/b", "..", "a b", "x" * 64, "ann\n"])
def test_odd_client_names_are_refused(tmp_path, user):
    create_ca(tmp_path)
    with pytest.raises(UsageError, match="cannot be the name of a client"):
        create_client(tmp_path, user)


def test_mistakes_with_files_say_what_to_do(tmp_path):
    with pytest.raises(UsageError, match="create-ca"):
        create_node(tmp_path, ["h"])
    create_ca(tmp_path)
    with pytest.raises(UsageError, match="at least one host"):
        create_node(tmp_path, [])
    with pytest.raises(UsageError, match="missing"):
        server_context(node_files(tmp_path))
    files = create_node(tmp_path, ["h"])
    files.key.chmod(0o640)
    with pytest.raises(UsageError, match="chmod 600"):
        server_context(files)
    files.key.chmod(0o600)
    files.certificate.write_text("nonsense")
    with pytest.raises(UsageError, match="cannot be used"):
        server_context(files)
    (tmp_path / "ca.crt").write_text("nonsense")
    with pytest.raises(UsageError, match="cannot be read"):
        create_client(tmp_path, "ann")
