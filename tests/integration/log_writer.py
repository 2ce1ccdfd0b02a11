"""A process that appends to a log as fast as it is acknowledged, and tells what it was told.

    python -m tests.integration.log_writer URL RANGE NAME CONCURRENCY

Each of CONCURRENCY appenders writes payloads `NAME/appender/n` with n = 0, 1, 2 ... Before an append it prints
`? payload`, after it `+ payload position` (acknowledged), `~ payload` (unknown) or `- payload` (refused). A line that
is cut off by SIGKILL is the same as no line.
"""

from __future__ import annotations

import asyncio
import sys

from slackwater.errors import AppendUnknown, SlackwaterError
from slackwater.log import open_log
from slackwater.model.ids import RangeId
from slackwater.runtime.clock import RealClock
from slackwater.runtime.real import run
from slackwater.runtime.rng import RealRng
from slackwater.runtime.tasks import Scope
from slackwater.settings import Settings

SETTINGS = {"log.append_timeout": 3.0}


async def main(url: str, range_id: RangeId, name: str, concurrency: int) -> None:
    scope = Scope("writer")
    log = await open_log(url, clock=RealClock(), rng=RealRng(), scope=scope, settings=Settings(SETTINGS))

    async def appender(which: int) -> None:
        for n in range(1 << 30):
            payload = f"{name}/{which}/{n}"
            say(f"? {payload}")
            try:
                position = await log.append(range_id, [payload.encode()])
            except AppendUnknown:
                say(f"~ {payload}")
            except SlackwaterError:
                say(f"- {payload}")
                await asyncio.sleep(0.01)
            else:
                say(f"+ {payload} {position}")

    await asyncio.gather(*(appender(which) for which in range(concurrency)))


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    run(main(sys.argv[1], RangeId(int(sys.argv[2])), sys.argv[3], int(sys.argv[4])))
