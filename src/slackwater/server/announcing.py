"""Where a node is: telling the others, and learning where they are.

    greet those who were given or are known ─► find range 1 ─► this process has the node's record ─► publish, greet, refresh

Nothing is told before this process has its node's liveness record: it may run from a copy of another process's store, whose
place it would take in every address book. Until then it only looks for nodes that know range 1, where the record is.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from slackwater.errors import SlackwaterError
from slackwater.runtime.sync import timeout

if TYPE_CHECKING:
    from slackwater.server.member import Member

PAUSE_S = 0.5
REFRESH_S = 10.0


async def keep_addresses(member: Member) -> None:
    """Keep the address book up to date for as long as the node lives."""
    book, liveness = member.book, member.liveness
    await book.greet_all()
    while not liveness.registered.is_set():
        with suppress(TimeoutError):
            async with timeout(PAUSE_S):
                await liveness.registered.wait()
        if not liveness.registered.is_set():
            await book.greet_all()
    book.own = member.descriptor
    book.learn([member.descriptor])
    await book.greet_all()
    published = False
    while True:
        book.missed.clear()
        try:
            if not published:
                await book.publish(member.system, member.descriptor)
                published = True
            await book.refresh(member.system)
            await book.keep(member.engine)
            await book.greet_next()
        except SlackwaterError:
            await member.runtime.clock.sleep(PAUSE_S)
            await book.greet_all()
            continue
        with suppress(TimeoutError):
            async with timeout(REFRESH_S):
                await book.missed.wait()
        await member.runtime.clock.sleep(PAUSE_S)
