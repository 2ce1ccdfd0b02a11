"""The machine's clocks.

Wall time answers "what date is it" and may be set back by an operator or a time daemon; monotonic time answers "how
long since" and never jumps. Nothing above `runtime/` reads either one but through the `Clock` it was handed.
"""

from __future__ import annotations

import asyncio
import time


class RealClock:
    """`seam.Clock` on the operating system's clocks."""

    # The functions themselves, without a layer of our own around them: a request reads the clocks some fifteen times.
    wall_ns = staticmethod(time.time_ns)
    """Nanoseconds since the Unix epoch; may jump."""
    monotonic_ns = staticmethod(time.monotonic_ns)
    """Nanoseconds since some start; never jumps."""

    async def sleep(self, seconds: float) -> None:
        """Suspend for at least that long."""
        await asyncio.sleep(seconds)
