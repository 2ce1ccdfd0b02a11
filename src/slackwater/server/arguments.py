"""What the commands' arguments mean: addresses, localities, settings, certificates. Each error says what to write.

Two rules about safety live here, because every command must keep them:

    - Without certificates a node listens, and a client dials, on loopback only (`--insecure`): leaving an option out
      never puts an open database on a network.
    - With certificates both ends verify each other (`runtime.tls`).
"""

from __future__ import annotations

import re
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from slackwater.errors import UsageError
from slackwater.runtime.credentials import Credentials
from slackwater.runtime.tcp import TcpNet, is_loopback, parse_address
from slackwater.runtime.tls import client_files, node_files
from slackwater.settings import Settings, describe

if TYPE_CHECKING:
    import argparse

    from slackwater.runtime.credentials import Tls

DEFAULT_ADDRESS = "127.0.0.1:7400"
DEFAULT_USER = "root"
_INTERVAL = re.compile(r"-[\d.]")
TABLE_ID_MAX = (1 << 32) - 1


def address_of(text: str) -> str:
    """A checked `host:port`."""
    parse_address(text)
    return text


def addresses_of(text: str) -> tuple[str, ...]:
    """Addresses separated by commas."""
    return tuple(address_of(part.strip()) for part in text.split(",") if part.strip())


def settings_of(pairs: list[str]) -> Settings:
    """`name=value` pairs over the defaults, each within its safe range."""
    settings = Settings()
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UsageError("write a setting as name=value; `slackwater settings` lists them", setting=pair)
        settings.set(name, describe(name).parse(value))
    return settings


def node_credentials(certs: Path | None) -> Credentials | None:
    """What a node shows; None without certificates."""
    return None if certs is None else Credentials(node_files(certs), serves=True)


def node_net(settings: Settings, *, credentials: Credentials | None, insecure: bool, listen: str) -> TcpNet:
    """The network of a node: under TLS, or on loopback."""
    if credentials is not None:
        return TcpNet(settings, server_tls=credentials.server, client_tls=credentials.client)
    if not insecure:
        raise UsageError("say how to talk: --certs DIR (see `slackwater cert`), or --insecure on a loopback address")
    if not is_loopback(listen):
        raise UsageError(
            "--insecure is for loopback addresses only; use --certs DIR to listen on a network", listen=listen
        )
    return TcpNet(settings)


def http_tls(*, credentials: Credentials | None, listen: str) -> Tls:
    """How /metrics and /health are served: under TLS with both sides verified, or on loopback."""
    if credentials is not None:
        return credentials.server
    if listen and not is_loopback(listen):
        raise UsageError(
            "--insecure is for loopback addresses only; use --certs DIR to serve HTTP on a network", http=listen
        )
    return None


def client_net(settings: Settings, addresses: tuple[str, ...], *, certs: Path | None, user: str) -> TcpNet:
    """The network of a client: under TLS, or on loopback."""
    if certs is not None:
        return TcpNet(settings, client_tls=Credentials(client_files(certs, user)).fresh_client)
    far = [a for a in addresses if not is_loopback(a)]
    if far:
        raise UsageError("a node on a network is reached with --certs DIR; without, on loopback only", address=far[0])
    return TcpNet(settings)


def joined(argv: list[str], *names: str) -> list[str]:
    """The arguments with `--at -5s` as `--at=-5s`: argparse takes a word that begins with a minus for an option."""
    found: list[str] = []
    for word in argv:
        if found and found[-1] in names and _INTERVAL.match(word):
            found[-1] += f"={word}"
        else:
            found.append(word)
    return found


def is_table_id(text: str) -> bool:
    """Whether a table is named by its number; anything else is a name. Refuses numbers that no table has."""
    if not (text.isascii() and text.removeprefix("-").isdigit()):
        return False
    if text.startswith("-") or int(text) > TABLE_ID_MAX:
        raise UsageError(f"no table has the number {text}; name the table")
    return True


def verb_first(argv: list[str]) -> list[str]:
    """The arguments with --host, --certs and --user behind the verb, for commands that take one: people write them before it."""
    options: list[str] = []
    rest: list[str] = []
    words = iter(argv)
    for word in words:
        if word == "--":
            return [*rest, *options, word, *words]
        if word in ("--host", "--certs", "--user"):
            options += [word, *islice(words, 1)]
        elif word.startswith(("--host=", "--certs=", "--user=")):
            options.append(word)
        else:
            rest.append(word)
    return [*rest, *options]


def add_client_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of every command that talks to a running node."""
    parser.add_argument(
        "--host",
        default=DEFAULT_ADDRESS,
        metavar="HOST:PORT",
        help=f"a node of the cluster (default {DEFAULT_ADDRESS})",
    )
    parser.add_argument("--certs", type=Path, metavar="DIR", help="certificates; without, only loopback is dialed")
    parser.add_argument(
        "--user", default=DEFAULT_USER, help=f"whose certificate to present: client.USER.crt (default {DEFAULT_USER})"
    )
