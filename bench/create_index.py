"""CREATE INDEX beside 500 upserts a second, ours and PostgreSQL 18's: the first figures of `bench.schema`, alone."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from bench._load import disk
from bench.schema import create_index
from slackwater.runtime import run as run_main

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.harness import Figure


def run(*, quick: bool) -> Iterator[Figure]:
    """The figures, of a million rows or of 50 000."""
    directory = Path(tempfile.mkdtemp(prefix="slackwater-bench-", dir=disk()))
    try:
        yield from run_main(create_index(directory, rows=50_000 if quick else 1_000_000))
    finally:
        shutil.rmtree(directory)
