"""What a client asks about protected timestamps.

db.protect             keep history of tables, at one time or after it; protected, or `TooLate`
db.renew_protection    let one expire later
db.release             let one go
db.protections         all of them, with how much history they pin
"""

from __future__ import annotations

import msgspec

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.model.protection import Mode
from slackwater.runtime.access import CLIENTS
from slackwater.runtime.rpc.method import Method


class ProtectTables(msgspec.Struct, frozen=True):
    """Keep what tables, as they were named then, held at `ts`, or from then on."""

    tables: tuple[str, ...]
    ts: Timestamp
    mode: Mode
    expires_s: float = 0.0
    """Seconds from now; 0: never."""
    kind: str = "user"
    """`user`, `snapshot` or `spark`."""
    about: str = ""
    """Why, or who; for people."""


class RenewProtection(msgspec.Struct, frozen=True):
    """Let a protection expire so many seconds from now; 0: never."""

    id: bytes
    expires_s: float
    after: Timestamp = MIN
    """Of a protection of all that comes after a time: keep only what is live at this time or later. MIN: as it was."""


class ReleaseProtection(msgspec.Struct, frozen=True):
    """Let one go."""

    id: bytes


class ListProtections(msgspec.Struct, frozen=True):
    """Asks for all protections."""


class Protection(msgspec.Struct, frozen=True):
    """One protected timestamp, for people and programs."""

    id: str
    """32 hexadecimal digits."""
    timestamp: Timestamp
    mode: Mode
    kind: str
    about: str
    tables: tuple[str, ...]
    created: Timestamp
    expires: Timestamp = MIN
    """MIN: never."""
    user: str = ""
    pinned_bytes: int = 0
    """History in the ranges it covers that would be collected but for protections; 0 while it is younger than its ttl."""


class ProtectionsReply(msgspec.Struct, frozen=True):
    """Protections, oldest timestamp first."""

    protections: list[Protection]


PROTECT: Method[ProtectTables, ProtectionsReply] = Method(
    "db.protect", ProtectTables, ProtectionsReply, callers=CLIENTS
)
RENEW: Method[RenewProtection, ProtectionsReply] = Method(
    "db.renew_protection", RenewProtection, ProtectionsReply, callers=CLIENTS
)
RELEASE: Method[ReleaseProtection, ProtectionsReply] = Method(
    "db.release", ReleaseProtection, ProtectionsReply, callers=CLIENTS
)
PROTECTIONS: Method[ListProtections, ProtectionsReply] = Method(
    "db.protections", ListProtections, ProtectionsReply, callers=CLIENTS
)
