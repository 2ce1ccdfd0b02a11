"""Everything the system may ask of the world, and nothing else.

Production code receives a `Runtime` (and, where it stores or replicates, an `Engine` and a `log.contract.OrderedLog`) and
reaches time, randomness, tasks, sockets, threads and files only through it. The real implementations are in `runtime/`,
`storage/rocks.py` and `log/`; the simulator's are in `sim/`. The same drivers, cores and RPC code run on both.

    clock      wall time (skewed, may jump), monotonic time, sleep
    rng        integers and ratios; seeded in simulation
    net        connections that carry frames in order, exactly once, until they are lost
    scope      the only way to start a task; a scope owns its tasks and ends them
    offload    work that would hold up the loop (a thread in production, inline in simulation)
    disk       ordered key/value engines: batches are atomic, nothing is durable before `flush`

The ordered log is the one part of the world with a contract elsewhere (`log/contract.py`): it speaks of ranges and positions,
which the runtime knows nothing of.

Probes and buggify sites are plain functions in `slackwater.hooks`, so that pure cores, which are
handed no runtime, can use them too.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from slackwater.runtime.access import Certificate

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


# --- time, chance, tasks -------------------------------------------------------------------------------------------


class Clock(Protocol):
    """Time as one node sees it."""

    def wall_ns(self) -> int:
        """Wall time since the Unix epoch: skewed, may jump. Only the hybrid clock reads it."""
        ...

    def monotonic_ns(self) -> int:
        """Time that never jumps: timeouts, leases, rates."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Suspend for about that long."""
        ...


class Rng(Protocol):
    """Chance: integers and ratios only, so that every draw can be recorded and replayed."""

    def below(self, bound: int) -> int:
        """An integer in [0, bound)."""
        ...

    def chance(self, numerator: int, denominator: int) -> bool:
        """True with probability numerator/denominator."""
        ...

    def bytes(self, count: int) -> bytes:
        """`count` unpredictable (in simulation: seeded) bytes, for identifiers."""
        ...


class TaskHandle(Protocol[T_co]):
    """A started task. Awaitable; in both worlds an `asyncio.Task`."""

    def cancel(self, msg: Any | None = None) -> bool: ...
    def done(self) -> bool: ...
    def __await__(self) -> Any: ...


class TaskScope(Protocol):
    """Owns tasks. The crash of one ends the scope; closing the scope cancels and awaits all, in order of birth."""

    name: str

    def spawn(self, work: Coroutine[Any, Any, T], *, name: str) -> TaskHandle[T]:
        """Start a task owned by this scope."""
        ...

    def start(self, work: Coroutine[Any, Any, None], *, name: str) -> TaskHandle[None] | None:
        """Run work up to where it first waits; from there on it is a task of this scope. None: it did not wait."""
        ...

    def child(self, name: str) -> TaskScope:
        """A scope that ends with this one."""
        ...

    async def close(self) -> None:
        """Cancel every task and wait until all have ended."""
        ...

    @property
    def failure(self) -> BaseException | None:
        """What the first crashed task raised, if any did."""
        ...


# --- network -------------------------------------------------------------------------------------------------------

Address = str
"""`host:port`. In simulation, `n1:7400`."""


class FrameHandler(Protocol):
    """Receives what a connection delivers. Called on the loop; must not block."""

    def frames(self, frames: list[bytes]) -> None:
        """Frames arrived, in order."""
        ...

    def closed(self, reason: str) -> None:
        """The connection ended; nothing more will be delivered. Called exactly once."""
        ...

    def writable(self) -> None:
        """The send buffer drained below its low-water mark after having been full."""
        ...


class Connection(Protocol):
    """An ordered pipe of frames to one peer: each frame once and in order, or the connection is lost."""

    @property
    def peer(self) -> str:
        """The name of the other end, for messages and logs."""
        ...

    @property
    def certificate(self) -> Certificate | None:
        """What the authority says of the other end; None where there are no certificates (loopback, one process)."""
        ...

    def send(self, frame: bytes) -> None:
        """Queue a frame. Never blocks; a no-op once closed."""
        ...

    def trust(self) -> None:
        """The peer has greeted and may stay: lift what strangers are limited by."""
        ...

    def hold(self, *, held: bool) -> None:
        """Stop reading from the peer, or go on; frames that are on their way already may still be delivered."""
        ...

    @property
    def congested(self) -> bool:
        """Whether the send buffer is over its high-water mark: stop sending until `writable`."""
        ...

    def close(self) -> None:
        """End the connection; the peer sees `closed`."""
        ...


class Listener(Protocol):
    """An open port."""

    @property
    def address(self) -> Address:
        """Where it listens (with the real port when 0 was asked for)."""
        ...

    async def close(self) -> None:
        """Stop accepting; accepted connections stay."""
        ...


class Net(Protocol):
    """Makes connections."""

    async def connect(self, address: Address, handler: Callable[[Connection], FrameHandler]) -> Connection:
        """Open a connection or raise `ConnectionLost`."""
        ...

    async def listen(self, address: Address, accept: Callable[[Connection], FrameHandler]) -> Listener:
        """Accept connections."""
        ...


# --- disk ----------------------------------------------------------------------------------------------------------


class Family(enum.IntEnum):
    """The column families of a store."""

    DATA = 0  # key ++ descending timestamp -> value | tombstone
    LOCK = 1  # key -> at most one intent
    LOCAL = 2  # range-local state


class EngineBatch(Protocol):
    """Writes that become visible, and durable, together."""

    def put(self, family: Family, key: bytes, value: bytes) -> None: ...
    def delete(self, family: Family, key: bytes) -> None: ...
    def delete_range(self, family: Family, start: bytes, end: bytes) -> None:
        """Delete every key with start <= key < end."""
        ...

    def put_many(self, family: Family, keys: Sequence[bytes], values: Sequence[bytes]) -> None: ...
    def delete_many(self, family: Family, keys: Sequence[bytes]) -> None: ...
    def __len__(self) -> int: ...


class Cursor(Protocol):
    """A position in one family. Yields blocks, not rows: `chunk` is the hot path."""

    def seek(self, key: bytes) -> None:
        """Move to the first key >= key (forward) or the last key <= key (reverse), inside the bounds."""
        ...

    def chunk(self, limit: int) -> tuple[list[bytes], list[bytes]]:
        """Up to `limit` keys and their values from here on; advances; empty lists at the end."""
        ...

    def keys(self, limit: int) -> list[bytes]:
        """Like `chunk`, without the values: for a walk that wants few of them, and gets those by `multi_get`."""
        ...


class Reader(Protocol):
    """A readable state: the engine itself or a snapshot of it."""

    def get(self, family: Family, key: bytes) -> bytes | None: ...
    def multi_get(self, family: Family, keys: Sequence[bytes]) -> list[bytes | None]: ...
    def cursor(self, family: Family, *, start: bytes, end: bytes, reverse: bool = False) -> Cursor:
        """A cursor over start <= key < end, placed at the first (or, reversed, last) key."""
        ...

    def first(self, family: Family, *, start: bytes, end: bytes) -> tuple[bytes, bytes] | None:
        """The first pair with start <= key < end: what a cursor would give first, without one where that is cheaper."""
        ...


class EngineSnapshot(Reader, Protocol):
    """A frozen state of an engine. Close it: it pins files."""

    def close(self) -> None: ...
    def __enter__(self) -> EngineSnapshot: ...
    def __exit__(self, *exc: object) -> None: ...


class FileSink(Protocol):
    """A file in the making: invisible until it is finished. Used on one thread at a time, not on the loop's."""

    def write(self, data: bytes) -> None: ...
    def finish(self) -> None:
        """Make everything written durable, and the file visible, in this order."""
        ...

    def abandon(self) -> None:
        """Leave nothing behind. Does nothing once the file is finished."""
        ...


class StoredFile(Protocol):
    """A finished file, open for reading for as long as it is referred to; any thread may read."""

    size: int

    def read(self, at: int, size: int) -> bytes:
        """The bytes from `at` on, as many as there are; `StorageError` when the disk refuses."""
        ...


class Files(Protocol):
    """Files beside an engine that never change, for what is derived from it. They may go at any time (they are copies)."""

    guard: AbstractContextManager[Any]
    """Held while readers on several threads change what they share about these files."""

    def names(self) -> list[str]: ...
    def create(self, name: str) -> FileSink: ...
    def open(self, name: str) -> StoredFile:
        """`StorageError` when there is none of this name."""
        ...

    def remove(self, name: str) -> None:
        """Delete a file, if it is there; who has opened it reads on."""
        ...


class Engine(Reader, Protocol):
    """An ordered key/value store with three families. Atomic batches; durable only up to the last `flush`.

    After a crash the engine holds a *prefix* of the batches written, at least up to the last flush that returned:
    never half a batch, never one family ahead of another.
    """

    files: Files

    def batch(self) -> EngineBatch: ...
    def write(self, batch: EngineBatch) -> None:
        """Apply atomically. Visible at once; not yet durable."""
        ...

    def snapshot(self, *, once: bool = False) -> EngineSnapshot:
        """The present state, frozen. `once`: much of it is walked once, and takes no place in caches."""
        ...

    async def flush(self) -> None:
        """Return once everything written before the call is durable."""
        ...

    async def checkpoint(self, directory: Path) -> None:
        """Write a complete, openable copy of the present state (hard links where possible)."""
        ...

    def ingest(self, family: Family, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Add many sorted, unique pairs at once, bypassing the memtable. Durable on return."""
        ...

    def compact(self, family: Family, start: bytes, end: bytes) -> None:
        """Write the files of a span anew without what was deleted, so that its space comes back. Long: call it off the loop."""
        ...

    def note_damage(self, reason: str) -> None:
        """Remember, over a restart, that stored bytes are damaged: the next start copies what is whole to a new engine."""
        ...

    def approximate_bytes(self, family: Family, start: bytes, end: bytes) -> int: ...
    def status(self) -> str: ...
    def close(self) -> None: ...


class Disk(Protocol):
    """Where a node keeps its engines."""

    def open(self, name: str) -> Engine:
        """Open or create the engine called `name`."""
        ...


# --- all together --------------------------------------------------------------------------------------------------


class Runtime(Protocol):
    """The door to the world, one per node."""

    clock: Clock
    rng: Rng
    net: Net
    disk: Disk

    def scope(self, name: str) -> TaskScope:
        """A root task scope."""
        ...

    async def offload(self, work: Callable[..., T], *args: Any) -> T:
        """Run blocking or long work off the loop and wait for it."""
        ...
