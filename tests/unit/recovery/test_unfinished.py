"""A recovery that was killed, or whose disk was full: no node starts on what it left, and the same command can be given again."""

import pytest

from slackwater.cli import start
from slackwater.errors import UsageError
from slackwater.server.process import ENGINE, LOG_FILE, UNFINISHED
from slackwater.server.recovery.offline import begin, check_empty, finished, opened


def half(directory):
    """What a process leaves that is killed in the middle."""
    begin(directory)
    (directory / ENGINE).mkdir()
    (directory / ENGINE / "CURRENT").write_text("MANIFEST-1\n")
    (directory / LOG_FILE).write_bytes(b"half a log")


def test_an_unfinished_store_is_refused_by_all_but_the_command_that_began_it(tmp_path):
    into = tmp_path / "new"
    half(into)
    with pytest.raises(UsageError, match="is not whole; run `slackwater recover apply` into it again"):
        start.main(["--store", str(into), "--insecure", "--listen", "127.0.0.1:0"])
    with pytest.raises(UsageError, match="was not finished"), opened([into]):
        pass
    check_empty(into)
    begin(into)
    assert [path.name for path in into.iterdir()] == [UNFINISHED]
    finished(into)
    check_empty(into)


def test_what_is_not_of_an_unfinished_recovery_is_left_alone(tmp_path):
    into = tmp_path / "mine"
    into.mkdir()
    (into / "letters").write_text("dear")
    with pytest.raises(UsageError, match="is not empty; recover into a new directory"):
        check_empty(into)
    assert (into / "letters").read_text() == "dear"
