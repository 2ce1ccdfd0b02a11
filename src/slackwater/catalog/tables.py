"""Every known descriptor of every table, by id, by name, and by time. Pure.

    learn(descriptor)          in any order, any number of times
    complete_upto(ts)          everything committed at or below `ts` has been learned

Names are found among the versions that hold at the time asked for: a table that was dropped is found by a read
before the drop, and a name used twice means the table that had it then. Tables of the system (`model.system_tables`) are
known from the beginning, at every time.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.errors import invariant
from slackwater.model.system_tables import is_system, system_descriptors
from slackwater.model.tables import TableDescriptor, TableHistory

if TYPE_CHECKING:
    from collections.abc import Iterable

TABLES_MAX = 100_000
"""Tables of one cluster, dropped ones included: all of them are in every node's memory."""


class Tables:
    """A cache of the catalog that is complete up to `upto`."""

    def __init__(self) -> None:
        self._by_id: dict[int, TableHistory] = {}
        self._ids_by_name: dict[str, list[int]] = {}
        self._with_gone: dict[int, TableHistory] = {}
        self.upto = MIN
        self.learn(system_descriptors())

    def learn(self, descriptors: Iterable[TableDescriptor]) -> None:
        """Take descriptors, known or new."""
        met: dict[int, dict[int, TableDescriptor]] = {}
        for descriptor in descriptors:
            table_id = descriptor.table_id
            assert descriptor.modified > MIN or is_system(table_id), "a version has the time of its commit"
            if table_id not in met:
                known = self._by_id.get(table_id)
                met[table_id] = {} if known is None else {v.version: v for v in known.versions}
            same = met[table_id].setdefault(descriptor.version, descriptor)
            # a version is written once: every node learns the same
            invariant(same == descriptor, "A-descriptor", table=descriptor.name, version=descriptor.version)
        for table_id, by_version in met.items():
            known = self._by_id.get(table_id)
            if known is None or len(by_version) > len(known.versions):
                self._put(table_id, tuple(by_version[number] for number in sorted(by_version)))

    def _put(self, table_id: int, versions: tuple[TableDescriptor, ...]) -> None:
        assert all(a.modified <= b.modified for a, b in pairwise(versions)), "later versions are of later times (I-29)"
        assert len({v.table_id for v in versions}) == 1, "a history is of one table"
        for name in dict.fromkeys(version.name for version in versions):
            ids = self._ids_by_name.setdefault(name, [])
            if table_id not in ids:
                ids.append(table_id)
        history = self._by_id[table_id] = TableHistory(versions)
        if history.latest.dropped or history.gone_indexes:
            self._with_gone[table_id] = history

    def complete_upto(self, ts: Timestamp) -> None:
        """Everything committed at or below `ts` has been learned."""
        self.upto = Timestamp(max(self.upto, ts))
        assert self.upto >= ts, "what is known only grows"

    def by_id(self, table_id: int) -> TableHistory | None:
        """A table's versions."""
        return self._by_id.get(table_id)

    def by_name(self, name: str, *, at: Timestamp | None = None) -> TableHistory | None:
        """The table that has this name now, or had it at a time."""
        for table_id in reversed(self._ids_by_name.get(name, [])):
            history = self._by_id[table_id]
            held = history.latest if at is None else history.at(at)
            if held is not None and not held.dropped and held.name == name:
                return history
        return None

    def names(self, *, at: Timestamp | None = None) -> list[TableHistory]:
        """Every table of users that exists now, or existed at a time, by name."""
        found = []
        for table_id, history in self._by_id.items():
            if is_system(table_id):
                continue
            held = history.latest if at is None else history.at(at)
            if held is not None and not held.dropped:
                found.append(history)
        return sorted(found, key=lambda h: h.latest.name)

    def with_gone(self, first: int, last: int) -> list[TableHistory]:
        """Tables with ids from `first` to `last` that were dropped, or have had indexes which are gone."""
        if last - first < len(self._with_gone):
            return [self._with_gone[table_id] for table_id in range(first, last + 1) if table_id in self._with_gone]
        return [history for table_id, history in self._with_gone.items() if first <= table_id <= last]

    def __len__(self) -> int:
        return len(self._by_id)

    def status(self) -> str:
        """One line for logs and scripts."""
        return f"catalog tables={len(self._by_id)} upto={self.upto}"
