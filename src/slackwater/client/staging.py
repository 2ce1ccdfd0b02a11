"""Writing one commit from many processes: each stages its part, one of them publishes all parts (`protocol.client.staging`).

    part = db.staging("orders", "upsert")        in every process, on rows of its own
    part.add(batch); part.add(batch); ref = part.finish()
    db.publish("orders", [ref, …], "upsert", app=("nightly", 7))        in one process, as often as it likes
    db.drop_staged([ref, …])                                            instead; harmless afterwards

A commit has a bound on its rows (`staging.rows_max`). Tasks that say to which job they belong are told when all of them together
are over it.

References are plain data and may be sent between processes. `publish` is safe to repeat: if its answer is lost it asks
again, under the same name, and is told what happened.
"""

from __future__ import annotations

from operator import add
from typing import TYPE_CHECKING, Any

from slackwater.client.gateways import Resend, lost
from slackwater.client.generated import with_generated
from slackwater.client.inputs import Input, duplicate_keys
from slackwater.clock.timestamp import us_of
from slackwater.codec.rows import check_sizes
from slackwater.errors import AmbiguousResult, DeadlineExceeded, UsageError
from slackwater.protocol.client.calls import WriteKind
from slackwater.protocol.client.staging import (
    CALL_BYTES_MAX,
    CHUNK_BYTES_MAX,
    DROP_PARTS,
    PUBLISH,
    STAGE,
    Chunk,
    DropParts,
    PartRef,
    Publish,
    StageChunks,
    StagedKind,
    encode_chunk,
    part_id,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from slackwater.client.gateways import Gateways
    from slackwater.codec.rows import RowCodec
    from slackwater.model.schema import TableSchema
    from slackwater.protocol.client.staging import Published, StagingJob
    from slackwater.runtime.retry import RetryBudget

PUBLISH_TIMEOUT_S = 600.0
"""For a publish whose caller set no timeout: it writes all rows of a job."""
ROWS_PER_PIECE = 16_384


def staged_kind(operation: str) -> StagedKind:
    """What an operation's name means."""
    try:
        return StagedKind(operation)
    except ValueError:
        known = ", ".join(kind.value for kind in StagedKind)
        raise UsageError(f"there is no operation {operation!r}; there are {known}") from None


class AsyncPart:
    """One part on its way into the cluster."""

    def __init__(self, gateways: Gateways, codec: RowCodec, kind: StagedKind, job: StagingJob | None = None) -> None:
        self._gateways = gateways
        self._codec = codec
        self._job = job
        self._kind = WriteKind.DELETE if kind is StagedKind.DELETE else WriteKind.UPSERT
        self._part = part_id(us_of(gateways.clock.now()), gateways.runtime.rng.bytes(8))
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._sent = 0
        self._rows = 0

    async def add(self, rows: Any) -> None:
        """Stage rows: an Arrow batch or table, a DataFrame, dicts."""
        given = Input(self._codec, with_generated(self._gateways, self._codec, rows, self._kind), self._kind)
        for keys, values in given.pieces(ROWS_PER_PIECE):
            if any(map(bytes.__eq__, keys, keys[1:])):
                raise duplicate_keys(self._codec)
            check_sizes(self._codec.schema.name, keys, values, limit=self._gateways.row_bytes_max)
            for chunk in cut(keys, values):
                encoded = encode_chunk(chunk)
                self._rows += len(chunk.keys)
                self._waiting.append(encoded)
                self._waiting_bytes += len(encoded)
                if self._waiting_bytes >= CALL_BYTES_MAX:
                    await self._send()

    async def finish(self) -> PartRef:
        """Everything is in the cluster; what to publish."""
        await self._send()
        return PartRef(self._part, self._sent, self._rows, b"" if self._job is None else self._job.job)

    async def _send(self) -> None:
        chunks, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if chunks:
            table = self._codec.schema.name
            request = StageChunks(self._part, self._sent, chunks, self._rows, self._job, table)
            await self._gateways.call(STAGE, request, deadline=self._gateways.deadline(), resend=Resend.ALWAYS)
            self._sent += len(chunks)


def cut(keys: list[bytes], values: list[bytes]) -> Iterator[Chunk]:
    """Sorted rows in chunks of at most `CHUNK_BYTES_MAX`; a row is never divided, and a larger one is alone in its chunk."""
    sizes = map(len, keys) if not values else map(add, map(len, keys), map(len, values))
    low, size = 0, 0
    for at, row in enumerate(sizes):
        if size + row > CHUNK_BYTES_MAX and at > low:
            yield Chunk(keys[low:at], values[low:at])
            low, size = at, 0
        size += row
    if keys:
        yield Chunk(keys[low:], values[low:])


async def publish(
    gateways: Gateways,
    schema: TableSchema,
    parts: Sequence[PartRef],
    kind: StagedKind,
    app: tuple[str, int] | None,
    *,
    deadline: RetryBudget,
    owner: str = "",
    keep: Sequence[str] = (),
) -> Published:
    """Make staged rows visible, once; without a name of its own the job gets one for this call.

    A version of `app` at or below its newest is a success that does nothing, unless `owner`, the name of the
    job that counts the versions, is not the one that counted them before: then it is refused.
    """
    name, version = app or (new_job(gateways), 0)
    request = Publish(
        schema.table_id,
        schema.version,
        kind,
        list(parts),
        name,
        version,
        lasting=app is not None,
        owner=owner,
        keep=[schema.column(column).id for column in keep],
    )
    while True:
        try:
            return await gateways.call(PUBLISH, request, deadline=deadline, resend=Resend.ALWAYS)
        except AmbiguousResult:
            if not deadline.spend() or deadline.passed:
                raise
            await deadline.back_off()
        except DeadlineExceeded as error:
            if not lost(error):
                raise
            raise AmbiguousResult(
                f"the rows may or may not have been published: {error.message}; publish again under the same name"
            ) from error


def new_job(gateways: Gateways) -> str:
    """A name that is used once; it begins with the time, as all names of jobs do."""
    return part_id(us_of(gateways.clock.now()), gateways.runtime.rng.bytes(8)).hex()


async def drop_staged(gateways: Gateways, parts: Sequence[PartRef]) -> None:
    """Forget parts; what was published from them stays."""
    if parts:
        request = DropParts(list(dict.fromkeys(ref.name for ref in parts)))
        await gateways.call(DROP_PARTS, request, deadline=gateways.deadline(), resend=Resend.ALWAYS)
