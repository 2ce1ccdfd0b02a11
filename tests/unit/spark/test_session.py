"""Settings of a session: where sockets between Python and a local JVM lie."""

from __future__ import annotations

import stat
import tempfile
from importlib import import_module
from pathlib import Path

import pytest

session = import_module("slackwater.spark.session")  # the package has a function of this name

DIRECTORY = "spark.python.unix.domain.socket.dir"
ENABLED = "spark.python.unix.domain.socket.enabled"


@pytest.fixture(autouse=True)
def _afresh() -> None:
    session._socket_files.cache_clear()


def test_a_local_session_has_its_sockets_in_a_directory_of_its_user() -> None:
    settings = session._settings(master="local[2]", remote=None, config={})
    assert settings[ENABLED] == "true"
    assert stat.S_IMODE(Path(settings[DIRECTORY]).stat().st_mode) == 0o700
    assert session._settings(master="local[2]", remote=None, config={})[DIRECTORY] == settings[DIRECTORY], (
        "one directory"
    )


def test_a_path_that_is_too_long_for_a_socket_is_left_to_tcp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("d" * 80)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    assert ENABLED not in session._settings(master="local[2]", remote=None, config={})


@pytest.mark.parametrize(("master", "remote"), [("spark://host:7077", None), ("local[2]", "sc://host:15002")])
def test_a_session_elsewhere_keeps_tcp(master: str, remote: str | None) -> None:
    assert ENABLED not in session._settings(master=master, remote=remote, config={})


def test_a_caller_may_choose_tcp() -> None:
    assert session._settings(master="local", remote=None, config={ENABLED: False})[ENABLED] == "false"
