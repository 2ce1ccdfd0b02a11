"""The parts of the demo that need no cluster: its books, its acknowledgements, its picture."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from slackwater.demo import command, shop
from slackwater.demo.picture import LagSample, svg
from slackwater.demo.screen import DemoCheck, Screen
from slackwater.demo.shop import MONEY, TILL_START, TILLS, Books
from slackwater.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


def test_books_balance_only_if_money_and_orders_agree() -> None:
    tills = TILLS * TILL_START
    assert Books(wallets=MONEY - tills - 5, tills=tills + 5, orders=5, number=1).balanced
    assert Books(wallets=MONEY - tills, tills=tills + 5, orders=5, number=1).off == 5
    assert not Books(wallets=MONEY - tills - 5, tills=tills + 5, orders=4, number=1).balanced, "an order is missing"


def test_counting_tables_gives_their_sums() -> None:
    balances = pa.table({"balance": [1, 2, 3]})
    books = shop.count(balances, balances, pa.table({"amount": pa.array([], pa.int64())}))
    assert (books.wallets, books.tills, books.orders, books.number) == (6, 6, 0, 0)


def test_a_line_that_is_still_being_written_is_not_read(tmp_path: Path) -> None:
    acks = tmp_path / "acks"
    acks.write_text("A 1 10\nM 2 20\nA 3 3")
    assert shop.read_acks(acks) == ({1: 10}, {2: 20})


def test_the_picture_is_well_formed_and_has_a_line_a_range() -> None:
    samples = [LagSample(at / 2, range_id, 3.0 + at % 2) for at in range(20) for range_id in (3, 4)]
    root = ET.fromstring(svg(samples, [(4.0, "kill -9 n2")], target_s=3.0))
    lines = root.findall("{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 2
    assert all(len(line.attrib["points"].split()) == 20 for line in lines)
    assert ET.fromstring(svg([], [], target_s=3.0)) is not None, "nothing sampled is no error"


def test_the_verdict_counts_what_did_not_hold(capsys: pytest.CaptureFixture[str]) -> None:
    Screen().summary([DemoCheck("one", held=True, figure="1"), DemoCheck("two", held=False, figure="0")])
    assert "1 of 2 checks did NOT hold" in capsys.readouterr().out


def test_a_directory_that_is_not_empty_is_refused_and_one_for_the_picture_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(UsageError, match="not empty"):
        command.main(["--dir", str(tmp_path)])
    with pytest.raises(UsageError, match="no directory"):
        command.main(["--picture", str(tmp_path / "nowhere" / "lag.svg")])
