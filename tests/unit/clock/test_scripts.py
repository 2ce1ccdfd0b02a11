import pytest

from slackwater.clock import HybridClock, OffsetMonitor, PeerOffset, Timestamp, parse, show
from slackwater.clock.timestamp import parse_seconds
from tests.golden import check, scripts


class ClockRunner:
    """Verbs of `tests/scripts/clock`."""

    def __init__(self) -> None:
        self.wall_us = 0
        self.clock = HybridClock(lambda: self.wall_us * 1_000, max_offset_s=0.5)
        self.monitor = OffsetMonitor(max_offset_s=0.5)

    def do_parse(self, *words: str, now: str | None = None) -> str:
        ts = parse(" ".join(words), now=None if now is None else parse(now))
        return f"{ts} {show(ts)}"

    def do_show(self, ts: str) -> str:
        return show(Timestamp(int(ts)))

    def do_wall(self, text: str) -> None:
        self.wall_us = parse(text) >> 10

    def do_pass(self, text: str) -> None:
        self.wall_us += round(parse_seconds(text) * 1_000_000)

    def do_restart(self, floor: str) -> None:
        self.clock = HybridClock(lambda: self.wall_us * 1_000, max_offset_s=0.5, floor=parse(floor))

    def do_now(self) -> str:
        return show(self.clock.now())

    def do_hear(self, text: str) -> str:
        self.clock.update(parse(text))
        return f"last {show(self.clock.peek())}"

    def do_measure(self, peer: str, offset: str, error: str) -> None:
        us = round(parse_seconds(offset) * 1_000_000)
        self.monitor.record(peer, PeerOffset(us, round(parse_seconds(error) * 1_000_000), self.wall_us * 1_000))

    def do_check(self) -> str:
        self.monitor.check(self.wall_us * 1_000)
        return "serving"


@pytest.mark.parametrize("path", scripts("clock"), ids=lambda p: p.stem)
def test_script(path):
    check(path, ClockRunner())
