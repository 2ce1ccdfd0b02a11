"""Spark with certificates: every process of a job shows one, and one of another authority is one clear error."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import slackwater
from slackwater.runtime.certs import create_ca, create_client, create_node, create_operator
from slackwater.runtime.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CLI = [sys.executable, "-m", "slackwater.cli.main"]


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A node under TLS, and the directory with the certificates `certs` and, of another authority, `other`."""
    directory = tmp_path_factory.mktemp("secure")
    for folder in ("certs", "other"):
        create_ca(directory / folder)
        create_operator(directory / folder, "root")
        create_client(directory / folder, "ann")
    create_node(directory / "certs", ["127.0.0.1"])
    here = f"127.0.0.1:{free_ports(1)[0]}"
    certs = ["--certs", str(directory / "certs")]
    command = [*CLI, "start", "--store", str(directory / "n1"), "--listen", here, "--http", "none", *certs]
    node = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert node.stderr is not None
        assert any(" listening " in line for line in node.stderr), f"it never listened: {node.wait()}"
        subprocess.run([*CLI, "init", "--host", here, *certs], check=True, capture_output=True)
        yield f"slackwater://{here}", directory
    finally:
        node.kill()
        node.communicate()


def test_every_process_of_a_job_shows_a_certificate(secure, spark):
    url, directory = secure
    options = {"endpoint": url, "certs": str(directory / "certs"), "user": "ann"}
    with slackwater.connect(url, certs=options["certs"], user="ann") as db:
        db.create_table("t", {"id": "int8"}, primary_key="id")
        spark.range(100).write.format("slackwater").options(**options).mode("append").save("t")
        assert db.scan("t").num_rows == 100
    read = spark.read.format("slackwater").options(**options).option("maxStaleness", "0s")
    assert read.option("numPartitions", 2).load("t").count() == 100

    async def again() -> int:
        async with slackwater.aconnect(url, certs=options["certs"], user="ann") as db:
            return (await db.scan("t")).num_rows

    assert asyncio.run(again()) == 100


def test_a_certificate_of_another_authority_is_one_clear_error(secure, spark):
    url, directory = secure
    reader = spark.read.format("slackwater").option("endpoint", url)
    with pytest.raises(Exception, match="its certificate cannot be trusted"):
        reader.option("certs", str(directory / "other")).load("t")
    with pytest.raises(Exception, match="requires one signed by its CA"):
        spark.read.format("slackwater").option("endpoint", url).load("t")
