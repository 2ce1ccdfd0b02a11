"""pyarrow must not import pandas behind our back: run in a process of its own, since modules are for life."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
import slackwater.model.arrow
import pyarrow as pa
pa.array([1, 2]); pa.table({"a": [1]})
assert "pandas" not in sys.modules, "imported by a conversion"
import pandas
frame = pandas.DataFrame({"a": [1, 2], "b": ["x", None]})
assert pa.Table.from_pandas(frame, preserve_index=False).num_rows == 2
assert list(pa.table({"a": [1]}).to_pandas()["a"]) == [1]
print("fine")
"""


def test_conversions_do_not_import_pandas_and_frames_still_work() -> None:
    pytest.importorskip("pandas")
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "fine", done.stderr
