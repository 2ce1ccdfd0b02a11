"""Where a cluster is: `slackwater://h1:7400,h2:7400?user=ada&certs=/etc/slackwater&timeout=10s`.

    hosts      one or more `host` or `host:port` (default port 7400), separated by commas; any of them will do
    certs      the directory of the authority's and the user's certificates; without it only loopback is dialed
    user       whose certificate to present (default root)
    timeout    how long one operation may take (default 30s)
    locality   where this client is, e.g. region=eu,zone=a (commas written as they are): reads prefer what is near

The same names are keyword arguments of `slackwater.connect`; an argument wins over the URL.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import msgspec

from slackwater.clock.timestamp import parse_seconds
from slackwater.errors import UsageError
from slackwater.model.locality import Locality, locality_of
from slackwater.runtime.tcp import parse_address

SCHEME = "slackwater"
DEFAULT_PORT = 7400
DEFAULT_USER = "root"
DEFAULT_TIMEOUT_S = 30.0
EXAMPLE = "slackwater://host1:7400,host2:7400"
OPTIONS = ("certs", "user", "timeout", "locality")


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster, and how to talk to it."""

    addresses: tuple[str, ...]
    certs: Path | None = None
    user: str = DEFAULT_USER
    timeout_s: float = DEFAULT_TIMEOUT_S
    locality: Locality = ()

    def url(self) -> str:
        """A URL that says all of this; `parse_url` reads it back."""
        options = {"certs": str(self.certs.resolve()) if self.certs else "", "user": self.user}
        options["timeout"] = f"{self.timeout_s:g}"
        options["locality"] = ",".join(f"{name}={value}" for name, value in self.locality)
        usual = {"certs": "", "user": DEFAULT_USER, "timeout": f"{DEFAULT_TIMEOUT_S:g}", "locality": ""}
        said = {name: value for name, value in options.items() if value != usual[name]}
        query = f"?{urlencode(said, safe=',/')}" if said else ""
        return f"{SCHEME}://{','.join(self.addresses)}{query}"


def parse_url(url: str) -> Target:
    """Read a URL, or one line about what is wrong with it."""
    if not isinstance(url, str):
        raise UsageError(f"connect takes a URL such as {EXAMPLE}", got=type(url).__name__)
    scheme, colon, rest = url.partition("://")
    if not colon or scheme.lower() != SCHEME:
        raise UsageError(f"the URL of a cluster begins with {SCHEME}://, like {EXAMPLE}", url=url)
    # Newer Pythons refuse a list of hosts with an IPv6 address in it, so the hosts are not shown to urlsplit.
    ends = [at for mark in "/?#" if (at := rest.find(mark)) >= 0]
    hosts = rest[: min(ends, default=len(rest))]
    parts = urlsplit(f"{SCHEME}://{rest[len(hosts) :]}")
    if parts.path not in ("", "/") or parts.fragment:
        raise UsageError(f"the URL of a cluster has no path: tables are named in calls; write {EXAMPLE}", url=url)
    if "@" in hosts:
        raise UsageError("users are named with ?user=NAME and known by their certificate; there are no passwords")
    options = _options(parts.query)
    return Target(
        addresses=addresses_of(unquote(hosts)),
        certs=Path(options["certs"]) if "certs" in options else None,
        user=options.get("user", DEFAULT_USER),
        timeout_s=seconds_of(options.get("timeout", DEFAULT_TIMEOUT_S)),
        locality=locality_of(options.get("locality", "")),
    )


def addresses_of(hosts: str) -> tuple[str, ...]:
    """`h1,h2:7401` as addresses."""
    found = []
    for host in (part.strip() for part in hosts.split(",")):
        if not host:
            continue
        bracketed = host.startswith("[")
        has_port = "]:" in host if bracketed else ":" in host
        address = host if has_port else f"{host}:{DEFAULT_PORT}"
        parse_address(address)
        found.append(address)
    if not found:
        raise UsageError(f"name at least one host, like {EXAMPLE}")
    return tuple(dict.fromkeys(found))


def seconds_of(value: object) -> float:
    """A positive duration from a number of seconds or a text such as `500ms`."""
    if isinstance(value, str):
        try:
            seconds = float(value)
        except ValueError:
            seconds = parse_seconds(value)
    else:
        seconds = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else -1.0
    if not 0 < seconds < float("inf"):
        raise UsageError("a timeout is a positive number of seconds, or a text such as 500ms or 10s", timeout=value)
    return seconds


def _options(query: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in OPTIONS:
            raise UsageError(f"unknown option {name!r} in the URL; known: {', '.join(OPTIONS)}")
        if name in found:
            raise UsageError(f"the option {name!r} is in the URL twice")
        found[name] = value
    return found
