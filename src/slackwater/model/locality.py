"""Where something is: tiers from the widest to the narrowest, such as region, zone, rack. Pure.

region=eu,zone=a   and   region=eu,zone=b     share one tier: near, but not here
"""

from __future__ import annotations

from slackwater.errors import UsageError

Locality = tuple[tuple[str, str], ...]


def locality_of(text: str) -> Locality:
    """`region=eu,zone=a`: tiers from the widest to the narrowest."""
    tiers = []
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        if not (name.strip() and equals and value.strip()):
            raise UsageError("write a locality as region=eu,zone=a, the widest tier first", locality=text)
        tiers.append((name.strip(), value.strip()))
    if len({name for name, _ in tiers}) != len(tiers):
        raise UsageError("each tier of a locality is named once", locality=text)
    return tuple(tiers)


def shared(a: Locality, b: Locality) -> int:
    """How many leading tiers two localities have in common."""
    count = 0
    for mine, theirs in zip(a, b, strict=False):
        if mine != theirs:
            break
        count += 1
    return count
