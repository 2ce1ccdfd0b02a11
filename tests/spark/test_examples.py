"""The examples of docs/spark.md run, and print what the page says."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import slackwater
from tests.test_examples import ROOT, run_page

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def test_the_examples_of_the_page_run(spark: SparkSession, url: str, tmp_path: Path) -> None:
    columns = {"id": "int8", "balance": "int8 not null"}
    with slackwater.connect(url) as db:
        for table, rows, balance in [("doc_accounts", 600, 100), ("doc_vaults", 400, 100)]:
            db.create_table(table, columns, primary_key=["id"])
            db.upsert(table, [{"id": n, "balance": balance} for n in range(rows)])
        db.create_table("doc_notes", {"id": "int8", "note": "text", "stars": "int8"}, primary_key=["id"])
        db.upsert("doc_notes", [{"id": 1, "note": "old", "stars": 5}])
        closed = db.close_now(["doc_accounts", "doc_vaults"])
        while db.resolved(["doc_accounts", "doc_vaults"]) < closed:
            time.sleep(0.05)  # the nearest replicas hear of it a moment later
    assert run_page(ROOT / "docs" / "spark.md", {"url": url, "checkpoint": str(tmp_path)}) > 20
