"""Where something is: tiers from the widest to the narrowest, such as region, zone, rack. Pure.

region=eu,zone=a   and   region=eu,zone=b     share one tier: near, but not here
"""

from __future__ import annotations

from slackwater.errors import UsageError

Locality = tuple[tuple[str, str], ...]

TIERS_MAX = 8
TIER_BYTES_MAX = 64
"""Of a tier's name, and of its value."""


def locality_of(text: str) -> Locality:
    """`region=eu,zone=a`: tiers from the widest to the narrowest."""
    tiers = []
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        if not (name.strip() and equals and value.strip()):
            raise UsageError("write a locality as region=eu,zone=a, the widest tier first", locality=text)
        tiers.append((name.strip(), value.strip()))
    return check_locality(tuple(tiers))


def check_locality(locality: Locality) -> Locality:
    """A locality that may be kept: every node tells it to every client."""
    if len({name for name, _ in locality}) != len(locality):
        raise UsageError("each tier of a locality is named once", locality=str(locality)[:TIER_BYTES_MAX])
    if len(locality) > TIERS_MAX or any(len(text.encode()) > TIER_BYTES_MAX for tier in locality for text in tier):
        raise UsageError(f"a locality has at most {TIERS_MAX} tiers, with names and values of {TIER_BYTES_MAX} bytes")
    return locality


def shared(a: Locality, b: Locality) -> int:
    """How many leading tiers two localities have in common."""
    count = 0
    for mine, theirs in zip(a, b, strict=False):
        if mine != theirs:
            break
        count += 1
    return count
