"""A short siege in every test run: kept frames first, then a few thousand new ones."""

import asyncio
from argparse import Namespace

import pytest

from slackwater.runtime.rpc.method import StreamMethod
from tests.fuzz.__main__ import kept, main, verdict
from tests.fuzz.shapes import Shapes, Words, methods

pytestmark = [pytest.mark.integration]


def test_every_method_gets_bodies_that_decode_and_bodies_that_do_not():
    shapes = Shapes(1, Words(keys=[b"\x04k\x00\x01"], names=["t"], numbers=[1, 2], times=[1 << 60]))
    for method in methods().values():
        decoded = refused = 0
        for _ in range(200):
            try:
                method.decode_request(shapes.body(method))
                decoded += 1
            except Exception:
                refused += 1
        assert decoded, method
        assert refused or method.request_type.__struct_fields__ == (), method
    assert any(isinstance(method, StreamMethod) for method in methods().values())


def test_a_short_siege_breaks_nothing():
    assert kept()
    chosen = Namespace(seconds=15, quiet=1, frames=6000, seed=None, keep=None, rate=0, unpaced=False, nice=0)
    report = asyncio.run(main(chosen))
    assert verdict(report) == [], report
    assert report["frames"] >= 6000
    assert report["answered"] > 1000
