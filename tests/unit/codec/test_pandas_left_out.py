"""pyarrow decides about pandas when it is told to: never on a node, and before there is a loop in an application."""

from __future__ import annotations

import subprocess
import sys

import pytest

NODE = """
import sys
from slackwater.codec.arrow import leave_pandas_out
import slackwater.cli.start
assert "pandas" not in sys.modules, "importing the server imports pandas"
leave_pandas_out()
import pyarrow as pa
pa.array([1, 2])
assert "pandas" not in sys.modules
"""
APPLICATION = """
import sys
from slackwater.codec.arrow import settle_pandas
settle_pandas()
assert "pandas" in sys.modules
import pandas, pyarrow as pa
frame = pandas.DataFrame({"a": [1, 2]}, index=[7, 8])
assert pa.Table.from_pandas(frame, preserve_index=False).to_pydict() == {"a": [1, 2]}
assert pa.array(frame["a"]).to_pylist() == [1, 2]
"""


@pytest.mark.parametrize("program", [NODE, APPLICATION], ids=["node", "application"])
def test_who_has_pandas(program: str) -> None:
    pytest.importorskip("pandas")
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
