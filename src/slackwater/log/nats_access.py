"""Authentication and encryption towards NATS servers: TLS, certificates, users, and none of it in messages.

    nats+tls://db1:4222,db2:4222/?stream=s&ca=/etc/nats/ca.crt&cert=/etc/nats/node.crt&key=/etc/nats/node.key
    nats+tls://db1:4222/?stream=s&auth=/etc/nats/auth       a file of mode 0600: `user:password`, or a token
    nats+tls://user:password@db1:4222/?stream=s             as well, but then the password is in the list of processes

Without `ca` the servers' certificates are checked against the system's authorities; `cert` and `key` are for servers that ask
for a certificate.

NATS servers begin in plain text and ask for TLS in their first line. The client library believes that line: a machine in
between that leaves the request out would be told the password in the clear. `nats.GuardedClient` refuses to go on without TLS
when the URL asks for it.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec

from slackwater.errors import UsageError
from slackwater.runtime.tls import check_secret

OPTIONS = frozenset({"ca", "cert", "key", "auth"})
AUTH_BYTES_MAX = 4096


class Access(msgspec.Struct, frozen=True):
    """What a client shows to the servers. Its secrets are in no representation of it."""

    tls: ssl.SSLContext | None = None
    user: str = ""
    password: str = ""
    token: str = ""

    def __repr__(self) -> str:
        return f"Access(tls={self.tls is not None}, user={bool(self.user)}, token={bool(self.token)})"

    def arguments(self) -> dict[str, Any]:
        """For `Client.connect`."""
        assert not (self.user and self.token), "a client shows a user, or a token"
        found: dict[str, Any] = {} if self.tls is None else {"tls": self.tls}
        if self.user:
            found |= {"user": self.user, "password": self.password}
        if self.token:
            found["token"] = self.token
        return found


def access_of(options: dict[str, str], *, secure: bool, userinfo: str) -> Access:
    """What the options and the part before the hosts of a URL say. Messages name options, never their secrets."""
    files = sorted({"ca", "cert", "key"} & set(options))
    if files and not secure:
        raise UsageError(f"{', '.join(files)} are for TLS; write nats+tls:// instead of nats://")
    if ("cert" in options) != ("key" in options):
        raise UsageError("a certificate needs its key: give both cert= and key=")
    if userinfo and "auth" in options:
        raise UsageError("name the user in the URL or in the file of auth=, not in both")
    user, password, token = (
        _user(_read_auth(Path(options["auth"]))) if "auth" in options else _user(userinfo, quoted=True)
    )
    assert not (user and token), "a client shows a user, or a token"
    return Access(_context(options) if secure else None, user, password, token)


def _user(text: str, *, quoted: bool = False) -> tuple[str, str, str]:
    """User, password, token: a text without a colon is a token."""
    user, colon, password = text.partition(":")
    if quoted:
        user, password = unquote(user), unquote(password)
    return (user, password, "") if colon else ("", "", user)


def _read_auth(path: Path) -> str:
    check_secret(path)
    try:
        with path.open(encoding="utf-8") as file:
            lines = file.read(AUTH_BYTES_MAX).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the file of auth= cannot be read: {path}: {type(error).__name__}") from None
    if not lines or not lines[0].strip():
        raise UsageError(f"{path} is empty; it holds one line, user:password or a token")
    return lines[0].strip()


def _context(options: dict[str, str]) -> ssl.SSLContext:
    for name in ("ca", "cert", "key"):
        if name in options and not Path(options[name]).is_file():
            raise UsageError(f"the file of {name}= is missing: {options[name]}")
    try:
        context = ssl.create_default_context(cafile=options.get("ca"))
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if "cert" in options:
            check_secret(Path(options["key"]))
            context.load_cert_chain(options["cert"], options["key"])
    except ssl.SSLError as error:
        raise UsageError(f"the certificates for the log cannot be used: {error.reason or error}") from None
    return context


def shown(url: str) -> str:
    """A log's URL for messages: without what is before the hosts, and without the values of options that are none."""
    kind, _, _ = url.partition(":")
    if kind == "sqlite":
        return url
    if "@" in url:
        url = f"{kind}://…@{url.rpartition('@')[2]}"
    head, mark, query = url.partition("?")
    parts = []
    for pair in query.split("&") if mark else []:
        name, _, value = pair.partition("=")
        parts.append(pair if name in _TOLD else f"{name}=…" if value else name)
    return head + mark + "&".join(parts)


_TOLD = OPTIONS | {"stream", "replicas", "monitor", "sync_always", "allow_lossy"}
