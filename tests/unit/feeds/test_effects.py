"""What an applied batch says, beside reading it key by key."""

from __future__ import annotations

import pytest

from slackwater.clock.timestamp import Timestamp
from slackwater.codec.layout import kv, split_version, versioned
from slackwater.feeds.effects import read_effects
from slackwater.protocol.feeds.events import Changes
from slackwater.runtime.seam import Family
from slackwater.storage.batch import WriteBatch

HIGHEST = (1 << 63) - 1

CASES: dict[str, list[tuple[bytes, int, bytes | None]]] = {
    "nothing": [],
    "one": [(b"k", 5, b"v")],
    "one transaction's": [(b"k", 5, b"v"), (b"longer", 5, b"w"), (b"", 5, b"x")],
    "several": [(b"k", 5, b"v"), (b"m", 6, b"w"), (b"k", 7, b"x"), (b"n", HIGHEST, b"y"), (b"o", 0, b"z")],
    "deletions": [(b"k", 5, b""), (b"m", 6, b"w"), (b"n", 7, b"")],
    "garbage only": [(b"k", 5, None), (b"m", 6, None)],
    "garbage among it": [(b"k", 5, None), (b"m", 6, b"w"), (b"n", 7, b""), (b"o", 8, None)],
}


@pytest.mark.parametrize("name", CASES)
def test_versions_are_read_off_a_batch(name: str) -> None:
    batch = WriteBatch()
    for key, ts, value in CASES[name]:
        batch.writes[Family.DATA][versioned(kv(key), Timestamp(ts))] = value
    rows = [(*split_version(stored), value) for stored, value in batch.writes[Family.DATA].items() if value is not None]
    expected = Changes([key for key, _, _ in rows], [ts for _, ts, _ in rows], [value for _, _, value in rows])
    changes, locked, unlocked, cleared = read_effects(batch)
    assert changes == expected
    assert (locked, unlocked, cleared) == ([], [], [])
