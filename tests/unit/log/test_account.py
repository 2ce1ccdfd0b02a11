"""The judge of the kill tests must be able to convict."""

from __future__ import annotations

import pytest

from tests.integration.log_account import Account

WORDS = "? w/0/0\n+ w/0/0 5\n? w/0/1\n~ w/0/1\n? w/0/2\n- w/0/2\n? w/0/3\n+ w/0/3 9\n? w/0/4\n+ w/0"
GOOD = [(5, "w/0/0"), (7, "w/0/1"), (9, "w/0/3")]


@pytest.fixture
def account(tmp_path):
    (tmp_path / "words").write_text(WORDS)
    account = Account()
    account.add(tmp_path / "words")
    return account


@pytest.mark.parametrize(
    "entries",
    [
        GOOD,
        [(5, "w/0/0"), (9, "w/0/3")],  # the unknown one did not make it
        [*GOOD, (11, "w/0/1")],  # or twice
        [*GOOD, (11, "w/0/4")],  # killed before the answer: cut-off line
    ],
)
def test_acquits(account, entries):
    account.check(entries)


@pytest.mark.parametrize(
    ("entries", "charge"),
    [
        (GOOD[:2], "lost"),
        ([(5, "w/0/0"), (8, "w/0/3")], "lost"),
        ([*GOOD, (11, "w/0/0")], "duplicates"),
        ([*GOOD, (11, "w/0/2")], "refused"),
        ([*GOOD, (11, "w/0/9")], "nobody appended"),
        ([*GOOD, (9, "w/0/4")], "increase"),
    ],
)
def test_convicts(account, entries, charge):
    with pytest.raises(AssertionError, match=charge):
        account.check(entries)


def test_convicts_disorder(account):
    account.acked = {"w/0/0": 9, "w/0/3": 5}
    with pytest.raises(AssertionError, match="after a later append"):
        account.check([(5, "w/0/3"), (9, "w/0/0")])
