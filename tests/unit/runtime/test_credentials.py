"""Certificates that change while they are in use: renewed, revoked, broken, about to end. Real TLS on loopback."""

import datetime
import shutil
import stat

import pytest
from cryptography import x509

from slackwater.errors import AccessDenied, ConnectionLost, UsageError
from slackwater.runtime import TcpNet, run
from slackwater.runtime.access import ANYBODY
from slackwater.runtime.certs import create_ca, create_client, create_node, create_operator, revoke
from slackwater.runtime.credentials import DAY_S, Credentials
from slackwater.runtime.rpc import Dialer, Identity, Method, RpcServer
from slackwater.runtime.tls import client_files, node_files
from tests.unit.runtime.world import Ask, world

WHO = Method("who", Ask, str, callers=ANYBODY)


@pytest.fixture
def certs(tmp_path):
    create_ca(tmp_path)
    create_node(tmp_path, ["127.0.0.1"])
    create_client(tmp_path, "ann")
    create_client(tmp_path, "bob")
    return tmp_path


class Served:
    """A server whose certificates are those of a directory, and dialers of users."""

    def __init__(self, w, certs):
        self.w = w
        self.credentials = Credentials(node_files(certs), serves=True)
        w.runtime.net = TcpNet(w.settings, server_tls=self.credentials.server)
        self.server = RpcServer(w.runtime, w.scope, identity=Identity(cluster_id="c1", node_id=1), settings=w.settings)
        self.server.handle_sync(WHO, lambda _, context: context.user)

    async def __aenter__(self):
        self.address = await self.server.listen("127.0.0.1:0")
        return self

    async def __aexit__(self, *exc):
        await self.server.close()

    async def dial(self, certs, user):
        self.w.runtime.net = TcpNet(self.w.settings, client_tls=Credentials(client_files(certs, user)).fresh_client)
        dialer = Dialer(self.w.runtime, self.w.scope, identity=Identity(), settings=self.w.settings)
        return await dialer.peer(self.address)


def serial(path):
    return x509.load_pem_x509_certificate(path.read_bytes()).serial_number


def test_a_renewed_certificate_is_shown_from_the_next_connection_on(certs):
    async def main():
        async with world("tcp", connect_timeout=5) as w, Served(w, certs) as served:
            before = await served.dial(certs, "ann")
            first = serial(certs / "node.crt")
            create_node(certs, ["127.0.0.1"], replace=True)
            assert served.credentials.look()
            assert not served.credentials.look(), "nothing has changed since"
            after = await served.dial(certs, "ann")
            assert (before.certificate.serial, after.certificate.serial) == (first, serial(certs / "node.crt"))
            assert await before.call(WHO, Ask(1)) == await after.call(WHO, Ask(1)) == "ann"
            before.close()
            after.close()

    run(main())


def test_a_client_shows_its_renewed_certificate_when_it_dials_again(certs):
    async def main():
        async with world("tcp", connect_timeout=5) as w, Served(w, certs) as served:
            w.runtime.net = TcpNet(w.settings, client_tls=Credentials(client_files(certs, "ann")).fresh_client)
            dialer = Dialer(w.runtime, w.scope, identity=Identity(), settings=w.settings)
            seen = []
            served.server.handle_sync(
                Method("serial", Ask, bool, callers=ANYBODY),
                lambda _, context: bool(seen.append(context.certificate.serial)),
            )
            for _ in range(2):
                await dialer.call(served.address, Method("serial", Ask, bool, callers=ANYBODY), Ask(1))
                dialer.live(served.address).close()
                create_client(certs, "ann", replace=True)
            assert len(set(seen)) == 2
            await dialer.close()

    run(main())


def test_half_copied_files_change_nothing(certs, tmp_path_factory):
    async def main():
        new = tmp_path_factory.mktemp("new")
        for name in ("ca.crt", "ca.key"):
            shutil.copy2(certs / name, new / name)
        create_node(new, ["127.0.0.1"])
        async with world("tcp", connect_timeout=5) as w, Served(w, certs) as served:
            shutil.copy2(new / "node.crt", certs / "node.crt")  # the key comes a little later
            assert not served.credentials.look()
            assert "cannot be used" in served.credentials.problem
            assert served.credentials.warnings(0, within_days=1)[-1].startswith("the certificates on disk")
            (await served.dial(certs, "ann")).close()
            shutil.copy2(new / "node.key", certs / "node.key")
            assert served.credentials.look()
            assert served.credentials.problem == ""
            peer = await served.dial(certs, "ann")
            assert peer.certificate.serial == serial(new / "node.crt")
            peer.close()

    run(main())


def test_who_is_revoked_is_cut_off_and_not_let_in_again(certs):
    async def main():
        async with world("tcp", connect_timeout=5) as w, Served(w, certs) as served:
            ann, bob = await served.dial(certs, "ann"), await served.dial(certs, "bob")
            revoke(certs, [str(certs / "client.ann.crt")])
            assert served.credentials.look()
            assert served.server.end_revoked(served.credentials.revoked, AccessDenied("revoked")) == 1
            with pytest.raises(ConnectionLost):
                await ann.call(WHO, Ask(1))
            with pytest.raises(ConnectionLost, match="revoked"):
                await served.dial(certs, "ann")
            assert await bob.call(WHO, Ask(1)) == "bob"
            bob.close()
            revoke(certs, [f"{serial(certs / 'client.bob.crt'):x}"])  # in the same second as the first
            assert served.credentials.look()
            assert len(served.credentials.revoked) == 2
            for user in ("ann", "bob"):
                with pytest.raises(ConnectionLost):
                    await served.dial(certs, user)
            create_client(certs, "bob", replace=True)
            peer = await served.dial(certs, "bob")
            assert await peer.call(WHO, Ask(1)) == "bob"
            peer.close()

    run(main())


def test_a_client_refuses_a_node_that_was_revoked(certs):
    async def main():
        async with world("tcp", connect_timeout=5) as w, Served(w, certs) as served:
            revoke(certs, [str(certs / "node.crt")])
            with pytest.raises(ConnectionLost, match="was revoked"):
                await served.dial(certs, "ann")

    run(main())


def test_the_list_must_be_the_authoritys_and_must_stay(certs, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    create_ca(other)
    create_client(other, "ann")
    revoke(other, [str(other / "client.ann.crt")])
    shutil.copy2(other / "ca.crl", certs / "ca.crl")
    with pytest.raises(UsageError, match="not signed by this authority"):
        Credentials(node_files(certs))
    (certs / "ca.crl").write_text("nonsense")
    with pytest.raises(UsageError, match="cannot be used"):
        Credentials(node_files(certs))
    (certs / "ca.crl").unlink()
    revoke(certs, [str(certs / "client.ann.crt")])
    credentials = Credentials(node_files(certs))
    (certs / "ca.crl").unlink()
    assert not credentials.look()
    assert "is gone" in credentials.problem
    with pytest.raises(UsageError, match="neither the file"):
        revoke(certs, ["no-such-thing"])


def test_the_end_is_announced(certs):
    create_node(certs, ["127.0.0.1"], days=30, replace=True)
    credentials = Credentials(node_files(certs), serves=True)
    node, authority = credentials.terms
    assert (node.what, authority.what) == ("node", "authority")
    assert credentials.warnings(node.ends_s - 22 * DAY_S, within_days=21) == []
    (warning,) = credentials.warnings(node.ends_s - 20.5 * DAY_S, within_days=21)
    assert "of this node ends in 20 days; renew it: cert create-node --replace" in warning
    (warning,) = credentials.warnings(node.ends_s + 1, within_days=21)
    assert "has expired" in warning


def test_leaves_last_months_and_authorities_years(certs):
    def days(path):
        made = x509.load_pem_x509_certificate(path.read_bytes())
        return (made.not_valid_after_utc - made.not_valid_before_utc) / datetime.timedelta(days=1)

    create_operator(certs, "root", days=7)
    assert 90 <= days(certs / "node.crt") - 1 <= 180
    assert days(certs / "client.root.crt") - 1 == 7
    assert days(certs / "ca.crt") > 3000
    for odd in (0, -1, 4000):
        with pytest.raises(UsageError, match="days"):
            create_client(certs, "eve", days=odd)


def test_a_readable_authority_key_is_refused(certs):
    assert stat.S_IMODE((certs / "ca.key").stat().st_mode) == 0o600
    (certs / "ca.key").chmod(0o640)
    with pytest.raises(UsageError, match="chmod 600"):
        create_client(certs, "eve")
