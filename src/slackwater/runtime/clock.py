"""The machine's clocks.

Wall time answers "what date is it" and may be set back by an operator or a time daemon; monotonic time answers "how
long since" and never jumps. Nothing above `runtime/` reads either one but through the `Clock` it was handed.
"""

from __future__ import annotations

import asyncio
import time


class RealClock:
    """`seam.Clock` on the operating system's clocks."""

    def wall_ns(self) -> int:
        """Nanoseconds since the Unix epoch; may jump."""
        return time.time_ns()

    def monotonic_ns(self) -> int:
        """Nanoseconds since some start; never jumps."""
        return time.monotonic_ns()

    async def sleep(self, seconds: float) -> None:
        """Suspend for at least that long."""
        await asyncio.sleep(seconds)
