"""I-32: all logs are one log. One state machine, run against memory, SQLite and NATS.

It keeps a model of what it was told: payloads that were acknowledged (with their position), payloads whose fate is
unknown, payloads that must never appear. Every payload is unique, so a read can be checked to the letter: everything
acknowledged after `after`, in strictly increasing positions, at the position that was acknowledged, the same for every
reader and every time; nothing that was refused; nothing twice unless its fate was unknown. Or `LogTrimmed`, and that
only if something that was asked for was trimmed.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from slackwater.errors import AppendUnknown, EntryTooLarge, LogError, LogTrimmed, SlackwaterError, UsageError
from slackwater.log import LogFault, MemoryLog, check_identity, open_log
from slackwater.log.contract import OrderedLog
from slackwater.model.ids import Position, RangeId
from slackwater.runtime.clock import RealClock
from slackwater.runtime.rng import RealRng
from slackwater.runtime.tasks import Scope
from slackwater.settings import Settings

HANDLES_MAX = 3
TAILS_MAX = 6
RANGES = [RangeId(1), RangeId(2)]
READ_SECONDS = 30  # only to fail instead of hanging
TIGHT = {"log.tail_buffer_bytes_max": 4096, "log.entry_bytes_max": 4096, "log.repair_interval": 0.05}

ranges = st.sampled_from(RANGES)
counts = st.integers(1, 4)
picks = st.integers(0, 1 << 30)


class Told:
    """What the machine was told about one range."""

    def __init__(self) -> None:
        self.acked: dict[bytes, int] = {}
        self.unknown: set[bytes] = set()
        self.refused: set[bytes] = set()
        self.seen: dict[int, bytes] = {}
        self.trimmed_upto = 0

    def may_be_trimmed(self, after: int) -> bool:
        """Whether something after `after` may have been removed."""
        known = [*self.acked.values(), *self.seen]
        return any(after < p <= self.trimmed_upto for p in known) or (after < self.trimmed_upto and bool(self.unknown))

    def check(self, after: int, entries: list[tuple[int, bytes]], upto: int) -> None:
        """A complete read of (after, upto]."""
        positions = [p for p, _ in entries]
        assert positions == sorted(set(positions)), "L-3: positions increase strictly"
        assert all(p > after for p in positions)
        found = dict(entries)
        for position, payload in entries:
            assert payload not in self.refused, "L-2: a refused append appeared"
            assert self.acked.get(payload, position) == position or payload in self.unknown
            assert payload in self.acked or payload in self.unknown, "an entry nobody appended"
            assert self.seen.setdefault(position, payload) == payload, "L-1: one order for all"
        copies: dict[bytes, int] = {}
        for payload in self.seen.values():
            copies[payload] = copies.get(payload, 0) + 1
        assert all(n == 1 or payload in self.unknown for payload, n in copies.items()), "a duplicate of a known append"
        for payload, position in self.acked.items():
            assert not after < position <= upto or found.get(position) == payload, (
                "L-1/L-4: an acknowledged entry is missing"
            )
        for position in self.seen:
            assert not after < position <= upto or position in found, "L-4: a gap"


class LogMachine(RuleBasedStateMachine):
    """The machine; a backend says how to open a handle and how to lose an acknowledgement."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.scope = Scope("conformance")
        self.settings = Settings(TIGHT)
        self.handles: list[OrderedLog] = []
        self.tails: list[list] = []  # [handle, range, after, iterator]
        self.told = {r: Told() for r in RANGES}
        self.heads = dict.fromkeys(RANGES, 0)
        self.serial = 0
        self.set_up()

    # --- what a backend provides ---

    def set_up(self) -> None:
        raise NotImplementedError

    async def open(self) -> OrderedLog:
        raise NotImplementedError

    def clean_up(self) -> None:
        raise NotImplementedError

    async def append_and_lose(self, handle: OrderedLog, range_id: RangeId, payloads: list[bytes], how: int) -> None:
        """Append in such a way that nobody knows what happened."""
        task = asyncio.ensure_future(handle.append(range_id, payloads))
        for _ in range(how % 8):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    # --- helpers ---

    def run_(self, work):
        return self.runner.run(asyncio.wait_for(work, READ_SECONDS)) if asyncio.iscoroutine(work) else work

    def payloads(self, count: int, big: bool = False) -> list[bytes]:
        self.serial += count
        pad = b"." * (2000 if big else 3)
        return [b"%d%s" % (self.serial - i, pad) for i in range(count)]

    def handle(self, pick: int) -> OrderedLog:
        return self.handles[pick % len(self.handles)]

    def learn(self, range_id: RangeId, payloads: list[bytes], outcome: object, *, before: int = 0) -> None:
        told = self.told[range_id]
        if isinstance(outcome, int):
            assert outcome > 0
            told.acked[payloads[-1]] = outcome
            if len(payloads) > 1:  # the positions of the others are not told; a read will pin them
                told.acked |= {p: told.acked.get(p, 0) for p in payloads[:-1]}
                self.pin(range_id, payloads, after=before, last=outcome)
        elif isinstance(outcome, AppendUnknown | asyncio.CancelledError):
            told.unknown |= set(payloads)
        else:
            assert isinstance(outcome, SlackwaterError), outcome
            told.refused |= set(payloads)

    def pin(self, range_id: RangeId, payloads: list[bytes], *, after: int, last: int) -> None:
        """Read an append of several payloads back, to learn the positions of all."""
        told = self.told[range_id]
        tail = self.handles[0].tail(range_id, after=Position(after))
        found: list[tuple[int, bytes]] = []
        while not found or found[-1][0] < last:
            found += self.run_(_next(tail))
        self.run_(tail.aclose())
        own = [(p, payload) for p, payload in found if payload in payloads]
        assert [payload for _, payload in own] == payloads, "an append keeps its order"
        assert own[-1][0] == last
        told.acked |= {payload: p for p, payload in own}

    # --- rules ---

    @initialize()
    def first_handles(self) -> None:
        self.handles += [self.run_(self.open()), self.run_(self.open())]
        self.identity = self.handles[0].identity()
        for pick in (0, 1):
            self.follow(pick=pick, range_id=RANGES[0])

    @precondition(lambda self: len(self.handles) < HANDLES_MAX)
    @rule()
    def open_another(self) -> None:
        handle = self.run_(self.open())
        assert isinstance(handle, OrderedLog)
        check_identity(handle, self.identity)
        self.handles.append(handle)

    @rule(pick=picks, range_id=ranges, count=counts, big=st.booleans())
    def append(self, pick: int, range_id: RangeId, count: int, big: bool) -> None:
        payloads = self.payloads(count, big)
        before = self.run_(self.handle(pick).head(range_id))
        position = self.run_(self.handle(pick).append(range_id, payloads))
        assert position > before, "L-3: positions never restart, trimmed or not"
        self.learn(range_id, payloads, position, before=before)

    @rule(plan=st.lists(st.tuples(picks, ranges), min_size=2, max_size=12))
    def append_at_once(self, plan: list[tuple[int, RangeId]]) -> None:
        work = [(self.handle(pick), range_id, self.payloads(1)) for pick, range_id in plan]

        async def all_of_them() -> list:
            return await asyncio.gather(*(h.append(r, p) for h, r, p in work))

        last: dict[tuple[int, RangeId], int] = {}
        for (handle, range_id, payloads), position in zip(work, self.run_(all_of_them()), strict=True):
            assert position > last.get((id(handle), range_id), 0), "appends of one handle keep their order"
            last[id(handle), range_id] = position
            self.learn(range_id, payloads, position)
        for entry in list(self.tails):  # entries of several handles, interleaved: every tail sees all of them
            self.advance(self.tails.index(entry))

    @rule(pick=picks, range_id=ranges, count=counts, how=picks)
    def append_with_lost_ack(self, pick: int, range_id: RangeId, count: int, how: int) -> None:
        payloads = self.payloads(count)
        self.told[range_id].unknown |= set(payloads)
        self.run_(self.append_and_lose(self.handle(pick), range_id, payloads, how))

    @rule(pick=picks, range_id=ranges)
    def append_what_is_refused(self, pick: int, range_id: RangeId) -> None:
        big = b"%d" % self.serial + b"!" * 5000
        self.told[range_id].refused.add(big)
        with pytest.raises(EntryTooLarge):
            self.run_(self.handle(pick).append(range_id, [b"fits", big]))
        self.told[range_id].refused.add(b"fits")
        with pytest.raises(UsageError):
            self.run_(self.handle(pick).append(range_id, []))

    @rule(pick=picks, range_id=ranges, from_=picks)
    def read_from_anywhere(self, pick: int, range_id: RangeId, from_: int) -> None:
        told = self.told[range_id]
        spots = [0, *told.seen, *told.acked.values(), *[p - 1 for p in told.seen]]
        self.read(self.handle(pick), range_id, spots[from_ % len(spots)])

    def read(self, handle: OrderedLog, range_id: RangeId, after: int) -> None:
        told = self.told[range_id]
        upto = self.run_(handle.head(range_id))
        tail = handle.tail(range_id, after=Position(after))
        found: list[tuple[int, bytes]] = []
        try:
            while upto > (found[-1][0] if found else after):
                found += self.run_(_next(tail))
        except LogTrimmed:
            assert told.may_be_trimmed(after), "LogTrimmed, but nothing that was asked for is gone"
        else:
            told.check(after, found, upto)
        finally:
            self.run_(tail.aclose())

    # Whether a tail ends by a trim depends on what its thread had read by then, so the number of tails is no precondition:
    # Hypothesis takes draws that differ between two runs of one example for a failure.

    @rule(pick=picks, range_id=ranges)
    def follow(self, pick: int, range_id: RangeId) -> None:
        if len(self.tails) >= TAILS_MAX:
            return
        told = self.told[range_id]
        after = max([0, *told.seen])
        handle = self.handle(pick)
        self.tails.append([handle, range_id, after, handle.tail(range_id, after=Position(after))])

    @rule(pick=picks)
    def advance(self, pick: int) -> None:
        if not self.tails:
            return
        entry = self.tails[pick % len(self.tails)]
        handle, range_id, after, tail = entry
        upto = self.run_(handle.head(range_id))
        found: list[tuple[int, bytes]] = []
        try:
            while upto > (found[-1][0] if found else after):
                found += self.run_(_next(tail))
        except LogTrimmed:
            assert self.told[range_id].may_be_trimmed(after)
            self.tails.remove(entry)
            self.run_(tail.aclose())
            return
        if found:
            self.told[range_id].check(after, found, upto)
            entry[2] = found[-1][0]

    @rule(pick=picks)
    def give_up_waiting(self, pick: int) -> None:
        """A cancelled wait loses nothing."""
        if not self.tails:
            return
        tail = self.tails[pick % len(self.tails)]

        async def wait_a_little() -> list:
            task = asyncio.ensure_future(tail[3].__anext__())
            for _ in range(pick % 5):
                await asyncio.sleep(0)
            task.cancel()
            return await asyncio.gather(task, return_exceptions=True)

        (outcome,) = self.run_(wait_a_little())
        if isinstance(outcome, list):  # it was faster
            self.told[tail[1]].check(tail[2], [(e.position, e.payload) for e in outcome], outcome[-1].position)
            tail[2] = outcome[-1].position
        elif isinstance(outcome, LogTrimmed):
            assert self.told[tail[1]].may_be_trimmed(tail[2])
            self.tails.remove(tail)

    @rule(pick=picks, range_id=ranges, at=st.one_of(st.just(0), picks), then_append=st.booleans())
    def trim(self, pick: int, range_id: RangeId, at: int, then_append: bool) -> None:
        told = self.told[range_id]
        known = sorted({*told.seen, *told.acked.values()}, reverse=True)  # small picks trim much
        spots = [*known, self.heads[range_id] + 5, 1, 0]
        upto = spots[at % len(spots)]
        told.trimmed_upto = max(told.trimmed_upto, upto)
        self.run_(self.handle(pick).trim(range_id, upto=Position(upto)))
        self.run_(self.handle(pick).trim(range_id, upto=Position(upto)))  # idempotent
        for after in (0, upto):  # all or LogTrimmed, and nobody who needs nothing of it is concerned
            self.read(self.handle(pick), range_id, after)
        if then_append:  # positions go on, even if nothing is left
            self.append(pick=pick, range_id=range_id, count=1, big=False)

    @rule(pick=picks, range_id=ranges)
    def head(self, pick: int, range_id: RangeId) -> None:
        head = self.run_(self.handle(pick).head(range_id))
        told = self.told[range_id]
        assert head >= self.heads[range_id], "a head never moves back"
        assert head >= max([0, *told.acked.values()]), "the head is the newest ever"
        if not told.unknown:
            assert head == max([0, *told.acked.values()])
        self.heads[range_id] = head

    @rule(pick=picks, plan=st.lists(st.tuples(ranges, counts), max_size=4))
    def restart(self, pick: int, plan: list[tuple[RangeId, int]]) -> None:
        """Close a handle with appends under way: each gets an answer, and the answer holds."""
        handle = self.handle(pick)
        work = [(range_id, self.payloads(1)) for range_id, _ in plan]

        async def close_under_way() -> list:
            tasks = [asyncio.ensure_future(handle.append(r, p)) for r, p in work]
            for _ in range(pick % 4):
                await asyncio.sleep(0)
            await handle.close()
            return await asyncio.gather(*tasks, return_exceptions=True)

        outcomes = self.run_(close_under_way())
        for tail in [t for t in self.tails if t[0] is handle]:
            self.tails.remove(tail)
            with pytest.raises(LogError):
                self.run_(_next(tail[3]))
        with pytest.raises(LogError):
            self.run_(handle.append(RANGES[0], [b"closed"]))
        self.handles[self.handles.index(handle)] = self.run_(self.open())
        for (range_id, payloads), outcome in zip(work, outcomes, strict=True):
            self.learn(range_id, payloads, outcome)

    @invariant()
    def identity_holds(self) -> None:
        for handle in self.handles:
            assert handle.identity() == self.identity, "L-6"

    def teardown(self) -> None:
        for *_, tail in self.tails:
            self.run_(tail.aclose())
        for handle in self.handles:
            self.run_(handle.close())
        self.run_(self.scope.close())
        self.clean_up()
        self.runner.close()


async def _next(tail) -> list[tuple[int, bytes]]:
    return [(e.position, e.payload) for e in await tail.__anext__()]


class MemoryMachine(LogMachine):
    def set_up(self) -> None:
        self.log = MemoryLog("conformance", rng=RealRng())

    async def open(self) -> OrderedLog:
        return self.log.handle(settings=self.settings)

    async def append_and_lose(self, handle: OrderedLog, range_id: RangeId, payloads: list[bytes], how: int) -> None:
        handle.arm(list(LogFault)[how % len(LogFault)])
        with pytest.raises(AppendUnknown):
            await handle.append(range_id, payloads)

    @rule()
    def late_appends_arrive(self) -> None:
        self.log.release()

    def clean_up(self) -> None:
        pass


class SqliteMachine(LogMachine):
    def set_up(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="slackwater-log-"))

    async def open(self) -> OrderedLog:
        url = f"sqlite://{self.directory / 'log.db'}"
        return await open_log(url, clock=RealClock(), rng=RealRng(), scope=self.scope, settings=self.settings)

    def clean_up(self) -> None:
        assert not list((self.directory / "log.db.bells").iterdir()), "closed handles take their bells down"
        shutil.rmtree(self.directory)


class NatsMachine(LogMachine):
    servers = None
    streams = 0

    def set_up(self) -> None:
        type(self).streams += 1
        self.url = self.servers.url(stream=f"conformance{self.streams}")

    async def open(self) -> OrderedLog:
        return await open_log(self.url, clock=RealClock(), rng=RealRng(), scope=self.scope, settings=self.settings)

    def clean_up(self) -> None:
        pass


def _settings(examples: int, steps: int) -> settings:
    quiet = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    return settings(max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=quiet)


class TestMemoryLog(MemoryMachine.TestCase):
    settings = _settings(60, 30)


class TestSqliteLog(SqliteMachine.TestCase):
    settings = _settings(30, 30)


class TestNatsLog(NatsMachine.TestCase):
    settings = _settings(25, 30)

    @classmethod
    def setUpClass(cls) -> None:
        nats_server = pytest.importorskip("slackwater.log.nats_server")
        cls.directory = Path(tempfile.mkdtemp(prefix="slackwater-nats-"))
        NatsMachine.servers = nats_server.LocalNats(cls.directory, servers=1, clock=RealClock())
        asyncio.run(NatsMachine.servers.start())

    @classmethod
    def tearDownClass(cls) -> None:
        NatsMachine.servers.stop()
        shutil.rmtree(cls.directory)
