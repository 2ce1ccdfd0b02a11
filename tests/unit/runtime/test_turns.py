"""Connections with much to deliver take turns: one of them in each turn of the loop."""

import asyncio

from slackwater.runtime import run
from slackwater.runtime.turns import Turns


def test_one_connection_goes_on_in_each_turn_of_the_loop_and_none_is_passed_over():
    async def main():
        turns, heard, left = Turns(), [], {"a": 3, "b": 2, "c": 3}
        turn = 0

        def go_on(name):
            heard.append((turn, name))
            left[name] -= 1
            if left[name]:
                turns.join(lambda: go_on(name))

        for name in left:
            turns.join(lambda name=name: go_on(name))
        for turn in range(1, 12):  # noqa: B007 - read by `go_on`
            await asyncio.sleep(0)
        assert [name for _, name in heard] == ["a", "b", "c", "a", "b", "c", "a", "c"]
        at = [when for when, _ in heard]
        assert len(set(at)) == len(at), "two of them went on in one turn"
        turns.join(lambda: heard.append((0, "again")))
        await asyncio.sleep(0)
        assert heard[-1] == (0, "again")

    run(main())
