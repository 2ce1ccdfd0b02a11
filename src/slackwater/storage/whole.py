"""The end of a stream is proven, never assumed (I-34).

An iterator ends in two ways that look alike: nothing follows, or what follows could not be read. rocksdict's `items()` and
`keys()` do not tell them apart (0.3.29: a damaged block simply ends them). So a cursor that is about to say *this was all*
looks once more, behind the last key it gave, through an iterator that has a status:

    given   a b c d |                      look behind d
                    | nothing, status ok   the end
                    | status: corruption   DamageError
                    | e                    DamageError: the stream was short, e was there all along

That is one seek for each stream, whatever its length. A block that comes out full proves nothing and needs no proof.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.errors import DamageError
from slackwater.hooks import probe

if TYPE_CHECKING:
    from collections.abc import Callable


def prove_end(look: Callable[[], bytes | None]) -> None:
    """Raise `DamageError` unless nothing follows a stream that has ended.

    `look` seeks behind the last key given: it raises when that cannot be read, and answers the key it finds, or None.
    """
    beyond = look()
    if beyond is not None:
        probe("storage.short_stream")
        raise DamageError(
            "a stream ended before its last key; the disk gave less than it holds", rule="I-34", next_key=beyond
        )
