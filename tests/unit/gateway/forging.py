"""What tests of forged requests share: a client of one gateway, and what it is told."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from slackwater.errors import InvariantViolation, SlackwaterError

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from tests.unit.server.cluster import Cluster

FAST = {"jobs__poll_interval": 0.05, "jobs__retry_pause_min": 0.01, "catalog__poll_interval": 0.05}
SECONDS = float(os.environ.get("SLACKWATER_FORGED", "0"))


class ForgingClient:
    """One client of one gateway, and how often it was told what."""

    def __init__(self, cluster: Cluster) -> None:
        self.node = cluster.nodes[0]
        self.told: dict[str, int] = {}

    async def told_of(self, call: Awaitable[Any]) -> Any:
        """The answer; None after an error of the tree, and any other error is a defect."""
        try:
            answer = await call
        except InvariantViolation:
            raise
        except (SlackwaterError, TimeoutError) as error:
            self.told[type(error).__name__] = self.told.get(type(error).__name__, 0) + 1
            return None
        self.told["done"] = self.told.get("done", 0) + 1
        return answer
