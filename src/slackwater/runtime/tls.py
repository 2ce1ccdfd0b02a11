"""TLS contexts for a cluster whose members trust one certificate authority and no other.

    node    presents node.crt (role node, its host names as SANs, for servers and clients)
            demands a certificate of the same authority from every caller
    client  presents client.NAME.crt (role client or operator, common name NAME, for clients only)
            demands that the server's certificate is of the authority and names the host that was dialed

So three impostures fail in the handshake: a server of another authority, a server at the wrong host, and a *client*
certificate used to play a server (its extended key usage forbids it). The fourth, a peer that claims to be a node that it
is not, is refused by the RPC greeting (`access.py`).

Both sides refuse what the authority has revoked (`ca.crl`, where there is one). `credentials.py` loads all of it again when
the files change.

TLS 1.2 or newer. Files are as `certs.py` writes them. A private key that others may read is refused.
"""

from __future__ import annotations

import ssl
from pathlib import Path

import msgspec

from slackwater.errors import UsageError

KEY_MODE_FORBIDDEN = 0o077


class TlsFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Where an identity is kept: the authority's certificate, one's own certificate and its key."""

    ca: Path
    certificate: Path
    key: Path
    crl: Path | None = None
    """The authority's list of revoked certificates, if there is such a file."""


def node_files(directory: Path) -> TlsFiles:
    """The files of a node in a directory written by `certs`."""
    return _files(directory, "node")


def client_files(directory: Path, user: str) -> TlsFiles:
    """The files of a client in a directory written by `certs`."""
    return _files(directory, f"client.{user}")


def _files(directory: Path, name: str) -> TlsFiles:
    return TlsFiles(
        ca=directory / "ca.crt",
        certificate=directory / f"{name}.crt",
        key=directory / f"{name}.key",
        crl=directory / "ca.crl",
    )


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """For `TcpNet(server_tls=...)`: demands a certificate from every client."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    return _load(context, files)


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """For `TcpNet(client_tls=...)`: verifies the server and its host name, and presents our own certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = True
    context.verify_mode = ssl.CERT_REQUIRED
    return _load(context, files)


def check_secret(path: Path) -> None:
    """Refuse a key that others than its owner may use."""
    if path.is_file() and path.stat().st_mode & KEY_MODE_FORBIDDEN:
        raise UsageError(f"others may read {path}; run chmod 600 on it", file=str(path))


def _load(context: ssl.SSLContext, files: TlsFiles) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    for path in (files.ca, files.certificate, files.key):
        if not path.is_file():
            raise UsageError(f"{path} is missing; create it with `slackwater cert`", file=str(path))
    check_secret(files.key)
    try:
        context.load_verify_locations(cafile=str(files.ca))
        if files.crl is not None and files.crl.is_file():
            context.load_verify_locations(cafile=str(files.crl))
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
        context.load_cert_chain(str(files.certificate), str(files.key))
    except (ssl.SSLError, OSError) as error:
        raise UsageError(f"the certificates cannot be used: {error}", certificate=str(files.certificate)) from error
    return context
