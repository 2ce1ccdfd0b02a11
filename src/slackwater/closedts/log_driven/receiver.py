"""What followers learn from the side transport: the receiving side, lazy.

A message is kept as it comes, in tables per stream; no replica is touched. A replica that wants to know what is closed
asks, and gives the index it has applied:

    stream n1   groups {g1: 140}   members {r1: (lai 5, g1), r7: (lai 2, g1)}        closed_for(r1, applied=4)
    stream n3   groups {g4: 90}    members {r1: (lai 4, g4)}                            = 90; 140 waits for lai 5

A promise (lai, ts) may be used once the replica has applied `lai` (I-12), and stays true for ever. So the answer is the
highest ts over all promises ever made with lai <= applied, and the only art is to forget none that matters:

    1. Before a member is removed, changes its index or its group, or its stream starts anew, the promise it had is copied
       into the *record* of the range (`closedts.records`), if there is a replica here. An index that is not applied yet then
       never hides a promise that is usable (pitfall 9).
    2. Senders are not in order among each other: after two transfers a lower index may come later, with a higher or a
       lower timestamp (pitfall 10). Nothing here compares promises of different streams except by the rule above.
    3. The answer never moves back (I-09). After a crash a replica knows what it has applied,
       and is told the rest with the first message.

Streams are identified by node and incarnation. `attach` gives out a token, and only the newest token of a node may
speak: a zombie connection is told to go away. A gap in the numbers, another incarnation or a delta before the first full
message ends the stream; its tables stay in use until the next full message replaces them.

The twin that the tests hold it against keeps every promise in a list.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.closedts.records import Promise, Records
from slackwater.errors import InvariantViolation
from slackwater.hooks import probe

if TYPE_CHECKING:
    from slackwater.model.descriptors import LeaseAppliedIndex
    from slackwater.model.ids import NodeId, RangeId
    from slackwater.protocol.closedts.update import GroupId, Update

STREAMS_MAX = 1_024


class _Stream:
    """The tables of one sender."""

    __slots__ = ("groups", "incarnation", "members", "seq", "token")

    def __init__(self) -> None:
        self.token = 0
        self.incarnation = 0
        self.seq = 0
        """Of the last message; 0: a full one must come."""
        self.groups: dict[GroupId, Timestamp] = {}
        self.members: dict[RangeId, tuple[LeaseAppliedIndex, GroupId]] = {}

    def promise(self, range_id: RangeId) -> Promise | None:
        """What this sender's last word about a range is."""
        member = self.members.get(range_id)
        return None if member is None else Promise(member[0], self.groups[member[1]])


class Receiver:
    """All streams that reach one node, and the records of its replicas."""

    def __init__(self, records: Records | None = None) -> None:
        self._streams: dict[NodeId, _Stream] = {}
        self.records = Records() if records is None else records
        self._tokens = 0

    # --- replicas ----------------------------------------------------------------------------------------------------

    def closed_for(self, range_id: RangeId, applied: LeaseAppliedIndex) -> Timestamp:
        """What the side transport has closed for a replica that has applied that far. MIN for a replica not watched."""
        record = self.records.get(range_id)
        if record is None:
            return MIN
        best, index = record.use(applied), applied
        for stream in self._streams.values():
            member = stream.members.get(range_id)
            if member is None:
                continue
            lai, group = member
            ts = stream.groups[group]
            if ts <= best:
                continue
            if lai <= applied:
                best, index = ts, lai
            else:
                probe("closedts.update_ahead_of_applied")
        if index > applied or best < record.served:
            raise InvariantViolation("I-12", {"range": range_id, "lai": index, "applied": applied, "closed": best})
        record.served = best
        return best

    def waiting_for(self, range_id: RangeId, applied: LeaseAppliedIndex) -> Promise | None:
        """The lowest index that would make more usable, for explanations."""
        record = self.records.get(range_id)
        promises = [] if record is None else list(record.steps)
        promises += [p for s in self._streams.values() if (p := s.promise(range_id)) is not None]
        return min((p for p in promises if p.lai > applied and (record is None or p.ts > record.served)), default=None)

    # --- streams -----------------------------------------------------------------------------------------------------

    def attach(self, node: NodeId) -> int:
        """A connection to `node` begins; every older one of the same node is a zombie from now on."""
        stream = self._streams.get(node)
        if stream is None:
            if len(self._streams) >= STREAMS_MAX:
                self._evict()
            stream = self._streams[node] = _Stream()
        self._tokens += 1
        assert stream.token < self._tokens, "connections are numbered once: an older one is told from the newest"
        stream.token, stream.seq = self._tokens, 0
        assert stream.token == self._tokens, "the newest connection of a sender is the one that counts"
        return self._tokens

    def detach(self, node: NodeId, token: int) -> None:
        """The connection ended. What it said stays true."""
        stream = self._streams.get(node)
        if stream is not None and stream.token == token:
            stream.token = 0

    def receive(self, token: int, update: Update) -> bool:
        """Take a message; False: end this connection and attach again."""
        stream = self._streams.get(update.sender)
        if stream is None or stream.token != token:
            probe("closedts.zombie_stream")
            return False
        if update.full:
            self._keep_all(stream)
            stream.members = {r: (lai, group) for r, lai, group in update.members}
            stream.groups = dict(update.groups)
        elif (
            stream.seq == 0
            or update.seq != stream.seq + 1
            or update.incarnation != stream.incarnation
            or _abandons(stream, update)
        ):
            probe("closedts.stream_gap")
            stream.token = stream.seq = 0
            return False
        else:
            self._delta(stream, update)
        assert stream.token == token, "only the newest connection changes the tables"
        stream.incarnation, stream.seq = update.incarnation, update.seq
        return True

    def _delta(self, stream: _Stream, update: Update) -> None:
        assert update.seq == stream.seq + 1, "a delta goes on from the message before it: no promise is left out"
        assert update.incarnation == stream.incarnation, "a delta is of the life whose full message came before it"
        for range_id in update.removed:
            self._keep(stream, range_id)
            stream.members.pop(range_id, None)
        for range_id, lai, group in update.members:
            self._keep(stream, range_id)
            stream.members[range_id] = (lai, group)
        stream.groups = dict(update.groups)

    def _keep(self, stream: _Stream, range_id: RangeId) -> None:
        """Copy a promise before the message under way replaces it."""
        record = self.records.get(range_id)
        if record is not None and (promise := stream.promise(range_id)) is not None:
            record.keep(promise)

    def _keep_all(self, stream: _Stream) -> None:
        for range_id in self.records if len(self.records) < len(stream.members) else stream.members:
            self._keep(stream, range_id)

    def _evict(self) -> None:
        """Forget a sender that is gone, keeping what it promised to replicas here."""
        idle = [node for node, stream in self._streams.items() if not stream.token]
        if idle:
            self._keep_all(self._streams.pop(idle[0]))

    # --- looking -----------------------------------------------------------------------------------------------------

    def dropped(self, range_id: RangeId) -> int:
        """Promises given up because too many waited for their index."""
        record = self.records.get(range_id)
        return 0 if record is None else record.dropped

    def status(self, range_id: RangeId, applied: LeaseAppliedIndex) -> str:
        """One line for logs and scripts."""
        closed = self.closed_for(range_id, applied)
        waiting = self.waiting_for(range_id, applied)
        pending = f" pending=({waiting.ts} @lai {waiting.lai})" if waiting else ""
        return f"r{range_id} applied={applied} closed={closed}{pending}"


def _abandons(stream: _Stream, update: Update) -> bool:
    """Whether a delta ends a group that would still have members: no sound sender does."""
    gone = stream.groups.keys() - {group for group, _ in update.groups}
    if not gone:
        return False
    named = {*update.removed, *(range_id for range_id, _, _ in update.members)}
    return any(group in gone and range_id not in named for range_id, (_, group) in stream.members.items())
