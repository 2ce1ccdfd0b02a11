"""An identity on disk that is in force: loaded, loaded again when its files change, and counted down to its end.

    files change ──look()──► everything loads? ──yes──► new connections use it; open ones stay
                                             └──no───► what was in force stays, and `problem` says why

So certificates are renewed by copying files over, without a restart and without a pause in serving. Files
that are copied one after the other do not match for a moment: that is a problem until the last one is there, and no harm.

Rules
    - What is loaded is loaded as a whole: authority, certificate, key and list of revoked certificates.
    - A list of revoked certificates (`ca.crl`) counts only when the authority has signed it. Once there was one it must not
      go away: without it the revoked would be let in again.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from slackwater.errors import UsageError
from slackwater.runtime.tls import TlsFiles, client_context, server_context

if TYPE_CHECKING:
    from pathlib import Path

    from cryptography import x509

DAY_S = 86_400
Tls = ssl.SSLContext | Callable[[], ssl.SSLContext] | None
"""A context, or what yields the one that is in force now; None without TLS."""
Stamp = tuple[tuple[int, int, int], ...]


class CertificateTerm(msgspec.Struct, frozen=True):
    """Until when one of the certificates may be used, in seconds since 1970."""

    what: str
    ends_s: float

    def warning(self, now_s: float, *, within_days: float) -> str:
        """What to say when the end is near; empty when it is not."""
        left_days = (self.ends_s - now_s) / DAY_S
        if left_days > within_days:
            return ""
        when = f"ends in {int(left_days)} days" if left_days > 0 else "has expired"
        how = "cert create-node --replace" if self.what == "node" else "cert create-ca, and all others after it"
        return f"the certificate of {'this node' if self.what == 'node' else 'the authority'} {when}; renew it: {how}"


class Credentials:
    """The contexts of one identity."""

    def __init__(self, files: TlsFiles, *, serves: bool = False) -> None:
        self.files = files
        self._serves = serves
        self.problem = ""
        """Why the files that are there now are not in force."""
        self.loads = 0
        self.revoked: frozenset[int] = frozenset()
        self.terms: list[CertificateTerm] = []
        self._stamp: Stamp = ()
        self._load()

    def look(self, *, anyway: bool = False) -> bool:
        """Load the files if they changed since the last look, or anyway; whether that put new ones in force."""
        stamp = _stamp(self.files)
        if stamp == self._stamp and not anyway:
            return False
        self._stamp = stamp
        try:
            self._load()
        except UsageError as error:
            self.problem = error.message
            return False
        return True

    def server(self) -> ssl.SSLContext:
        """For connections that are accepted from now on."""
        assert self._server is not None, "these credentials do not serve"
        return self._server

    def client(self) -> ssl.SSLContext:
        """For connections that are dialed from now on."""
        return self._client

    def fresh_client(self) -> ssl.SSLContext:
        """`client`, after a look at the files: for those who have nothing that looks from time to time."""
        self.look()
        return self._client

    def warnings(self, now_s: float, *, within_days: float) -> list[str]:
        """What an operator should know."""
        found = [term.warning(now_s, within_days=within_days) for term in self.terms]
        if self.problem:
            found.append(f"the certificates on disk cannot be used, the former stay in force: {self.problem}")
        return [text for text in found if text]

    def _load(self) -> None:
        """Load everything, then put it in force: an error changes nothing."""
        self._stamp = _stamp(self.files)
        crl = self.files.crl
        if self.loads and self.revoked and (crl is None or not crl.is_file()):
            raise UsageError(f"{crl} is gone, and with it what was revoked; copy it back", file=str(crl))
        client = client_context(self.files)
        server = server_context(self.files) if self._serves else None
        authority = _certificate(self.files.ca)
        terms = [_term("node", _certificate(self.files.certificate)), _term("authority", authority)]
        revoked = frozenset[int]() if crl is None or not crl.is_file() else revoked_by(crl, authority)
        self._client, self._server, self.terms, self.revoked = client, server, terms, revoked
        self.problem = ""
        self.loads += 1


def revoked_by(path: Path, authority: x509.Certificate) -> frozenset[int]:
    """The serial numbers in a list, if the authority has signed it."""
    from cryptography import x509

    try:
        found = x509.load_pem_x509_crl(path.read_bytes())
    except ValueError as error:
        raise UsageError(f"{path} is no list of revoked certificates: {error}", file=str(path)) from None
    if not found.is_signature_valid(authority.public_key()):  # type: ignore[arg-type] # any public key will do
        raise UsageError(f"{path} is not signed by this authority; copy it anew", file=str(path))
    return frozenset(entry.serial_number for entry in found)


def _certificate(path: Path) -> x509.Certificate:
    from cryptography import x509  # most who import this never load a certificate, and it takes a while

    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError as error:
        raise UsageError(f"{path} is no certificate: {error}", file=str(path)) from None


def _term(what: str, certificate: x509.Certificate) -> CertificateTerm:
    return CertificateTerm(what, certificate.not_valid_after_utc.timestamp())


def _stamp(files: TlsFiles) -> Stamp:
    """Changes whenever one of the files does."""
    found = []
    for path in (files.ca, files.certificate, files.key, files.crl):
        try:
            stat = path.stat() if path is not None else None
        except OSError:
            stat = None
        found.append((0, 0, 0) if stat is None else (stat.st_mtime_ns, stat.st_size, stat.st_ino))
    return tuple(found)


def provider(tls: Tls) -> Callable[[], ssl.SSLContext | None]:
    """What yields the context for the next connection."""
    if tls is None or isinstance(tls, ssl.SSLContext):
        return lambda: tls
    return tls
