"""The digests that a replica computed of its own state, at points of the log that all replicas share.

A `ComputeChecksum` command names a point; each replica digests the state right there and keeps the result until a caller
compares (the consistency queue). The snapshot is taken in the step that applied the command, the work is done off the loop.
Each digest comes with whether the content is what the replica's own statistics say. A replica that cannot be read has no
digest: it does not vote, and is quarantined (I-34).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.errors import StorageError
from slackwater.replica.snapshot import examine

if TYPE_CHECKING:
    from slackwater.protocol.node.snapshots import Examination
    from slackwater.replica.driver.context import ReplicaContext
    from slackwater.replica.state import RangeState
    from slackwater.runtime.seam import EngineSnapshot, TaskScope

CHECKSUMS_KEPT_MAX = 16


class Checksums:
    """The newest digests of one replica."""

    def __init__(self, context: ReplicaContext, scope: TaskScope) -> None:
        self._context = context
        self._scope = scope
        self._found: dict[bytes, Examination] = {}

    def get(self, checksum_id: bytes) -> Examination | None:
        """What was found at a point; None when it is not there, or not yet."""
        return self._found.get(checksum_id)

    def compute(self, checksum_id: bytes, state: RangeState) -> None:
        """Digest this very state, soon."""
        work = self._later(checksum_id, self._context.engine.snapshot(once=True), state)
        self._scope.spawn(work, name=f"digest {checksum_id.hex()}")

    async def _later(self, checksum_id: bytes, frozen: EngineSnapshot, state: RangeState) -> None:
        try:
            found = await self._context.runtime.offload(examine, frozen, state)
        except StorageError as error:
            self._context.hooks.read_failed(state.descriptor.range_id, error)
            return
        finally:
            frozen.close()
        if len(self._found) >= CHECKSUMS_KEPT_MAX:
            self._found.pop(next(iter(self._found)))
        self._found[checksum_id] = found
        assert len(self._found) <= CHECKSUMS_KEPT_MAX, "results are bounded"
