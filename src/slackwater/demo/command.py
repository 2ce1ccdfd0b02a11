"""`slackwater demo`: the arguments, the order of the steps, and the verdict.

start Spark in the background ─┐
three nodes, tables, rows      │
customers begin ───────────────┼─────────────────────────────────────────────────────────────┐
follower reads, closed lag, the freshest bulk read                                           │ they buy all
snapshots of several tables at one timestamp, and what independent reads would have given    │ the time
mirrors built from changes, a node killed with kill -9 meanwhile                             │
customers stop ──────────────────────────────────────────────────────────────────────────────┘
nothing lost? books balanced? every check held: exit 0
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import slackwater
from slackwater.demo import shop, steps
from slackwater.demo.picture import Sampler, draw
from slackwater.demo.processes import LocalCluster
from slackwater.demo.screen import DemoCheck, Screen
from slackwater.errors import UsageError
from slackwater.settings import Settings

if TYPE_CHECKING:
    from concurrent.futures import Future

    from pyspark.sql import SparkSession

    from slackwater.client import Database
    from slackwater.protocol.client.calls import ReplicaPlace

WARM_UP_PURCHASES = 200
WARM_UP_S_MAX = 30.0
STOP_S = 60.0
CUSTOMERS = 24
INTRODUCTION = (
    f"A purchase moves money from a wallet to a till and notes an order, in one transaction: "
    f"all of it is always {shop.MONEY:,}."
)
ONE_TIMESTAMP = "Tables are read in parts by parallel tasks, while customers buy. At one timestamp the books balance."
MIRRORS = "A copy is kept by changes alone. Where the changes are complete, the copy must equal the table, row by row."


def main(argv: list[str]) -> int:
    """Run the demo; 0 only if every check held."""
    options = _parser().parse_args(argv)
    if options.picture is not None and not options.picture.parent.is_dir():
        raise UsageError(f"there is no directory {options.picture.parent} for the picture; make it first")
    if options.dir is not None:
        options.dir.mkdir(parents=True, exist_ok=True)
        if any(options.dir.iterdir()):
            raise UsageError(f"{options.dir} is not empty; give a new directory")
    for number in (signal.SIGTERM, signal.SIGHUP):  # so that what was started is ended
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    if options.dir is not None:
        return _run(options, options.dir.resolve())
    with tempfile.TemporaryDirectory(prefix="slackwater-demo-", ignore_cleanup_errors=True) as directory:
        return _run(options, Path(directory))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="slackwater demo",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Run a small shop on three nodes in three processes and show, with figures, what finished times are\n"
        "good for: follower reads, fresh bulk reads, Spark snapshots that balance, mirrors that equal their\n"
        "tables, and a node killed with kill -9 in the middle of it all.",
        epilog="examples:\n  slackwater demo\n  slackwater demo --no-spark\n  slackwater demo --log nats\n"
        "  slackwater demo --dir ./demo --serve      leave it running and look around",
    )
    parser.add_argument("--log", choices=("sqlite", "nats"), default="sqlite", help="the ordered log (default sqlite)")
    parser.add_argument("--no-spark", action="store_true", help="leave Spark out; the client does its part")
    parser.add_argument("--serve", action="store_true", help="leave cluster and customers running until Ctrl-C")
    parser.add_argument("--dir", type=Path, help="keep stores and journals here (default: a temporary directory)")
    parser.add_argument("--picture", type=Path, metavar="FILE.svg", help="draw the closed-timestamp lag of every range")
    return parser


def _run(options: argparse.Namespace, directory: Path) -> int:
    screen = Screen()
    try:
        return _steps(screen, options, directory)
    except KeyboardInterrupt:
        screen.say("interrupted; everything that was started has ended")
        raise


def _steps(screen: Screen, options: argparse.Namespace, directory: Path) -> int:
    spark = None if options.no_spark else _start_spark(directory)
    with LocalCluster(directory, log=options.log) as cluster:
        screen.step(f"Three nodes in three regions, on a {options.log} log", INTRODUCTION)
        with screen.waiting("three processes start and find each other"):
            cluster.make()
        with slackwater.connect(cluster.url) as db:
            _open_shop(screen, db)
            with Sampler(db, shop.TABLES, lambda: screen.seconds) as sampler:
                checks = _show(options, screen, cluster, db, sampler, spark)
            if options.picture is not None:
                draw(sampler, options.picture, target_s=Settings()["closed_timestamp.target_duration"])
                screen.say(f"drew {options.picture}")
            screen.summary(checks)
            if options.serve:
                _serve(screen, cluster)
                with screen.waiting("stopping"):
                    cluster.end()
    return 0 if all(check.held for check in checks) else 1


def _start_spark(directory: Path) -> Future[SparkSession]:
    from slackwater.demo import spark_steps

    return spark_steps.start(directory)


def _open_shop(screen: Screen, db: Database) -> None:
    shop.create(db)
    began = time.monotonic()
    total = shop.WALLETS + shop.TILLS
    rows = shop.stock(db, lambda done: screen.progress(f"{done:,} of {total:,} rows"))
    took = time.monotonic() - began
    screen.clear()
    screen.say("; ".join(_place(place) for place in db.nodes()))
    screen.say(f"three tables, {rows:,} rows written in {took:.1f} s ({rows / took:,.0f} rows a second)")


def _place(node: ReplicaPlace) -> str:
    return f"n{node.node} at {node.address} in " + ",".join(f"{key}={value}" for key, value in node.locality)


def _show(
    options: argparse.Namespace,
    screen: Screen,
    cluster: LocalCluster,
    db: Database,
    sampler: Sampler,
    spark: Future[SparkSession] | None,
) -> list[DemoCheck]:
    acks = cluster.directory / "acks"
    acks.touch()
    command = [sys.executable, "-P", "-m", "slackwater.demo.shop", cluster.url, "--acks", str(acks)]
    customers = cluster.spawn("customers", *command, "--customers", str(CUSTOMERS))
    began = time.monotonic()
    stage = steps.Stage(screen, cluster, db, sampler, customers, acks)
    screen.say(f"{CUSTOMERS} customers buy from now on, each as fast as they can, until the end")
    with screen.waiting("the shop gets busy"):
        _wait_for_purchases(acks)
    checks: list[DemoCheck] = []
    screen.step(
        "A follower read beside a leaseholder read",
        "The same rows at the same age: any replica may serve a time that is finished, so the nearest one does.",
    )
    with screen.waiting("reading"):
        checks += steps.follower_reads(stage)
    screen.step(
        "How far every range is closed",
        "Up to its closed timestamp nothing will ever be written again; up to the resolved one nothing is undecided either.",
    )
    checks += steps.closed_lag(stage)
    screen.step(
        "The freshest bulk read: close the present, read it from followers",
        "No reader has to wait for the lag: the present can be closed on demand, and then followers serve that, too.",
    )
    with screen.waiting("closing and reading"):
        checks += steps.fresh_bulk_read(stage)
    if spark is None:
        checks += _without_spark(stage)
    else:
        checks += _with_spark(stage, spark)
    screen.step("After all of it: is anything lost?")
    with screen.waiting("the customers finish what they began"):
        _stop(stage)
        checks += steps.nothing_lost(stage, seconds=time.monotonic() - began)
    return checks


def _wait_for_purchases(acks: Path) -> None:
    """Return once the shop is busy; the first purchases take the longest."""
    deadline = time.monotonic() + WARM_UP_S_MAX
    while len(shop.read_acks(acks)[0]) < WARM_UP_PURCHASES and time.monotonic() < deadline:
        time.sleep(0.2)


def _without_spark(stage: steps.Stage) -> list[DemoCheck]:
    stage.screen.step("Four readers in parallel, one timestamp", ONE_TIMESTAMP)
    with stage.screen.waiting("reading"):
        checks = steps.parallel_snapshot(stage)
        steps.independent_reads(stage)
    stage.screen.step("Mirrors built from changes, while a node dies", MIRRORS)
    return checks + steps.mirror_by_changes(stage)


def _with_spark(stage: steps.Stage, started: Future[SparkSession]) -> list[DemoCheck]:
    from slackwater.demo import spark_steps

    stage.screen.step("Spark: tables at one timestamp", ONE_TIMESTAMP)
    with stage.screen.waiting("Spark starts"):
        spark = started.result()
    try:
        checks = spark_steps.snapshots(stage, spark)
        stage.screen.step("Spark streams mirror two tables, while a node dies", MIRRORS)
        return checks + spark_steps.mirror_by_streams(stage, spark, stage.cluster.directory / "checkpoints")
    finally:
        spark.stop()


def _stop(stage: steps.Stage) -> None:
    """The customers finish what they began."""
    stage.customers.send_signal(signal.SIGTERM)
    stage.customers.wait(STOP_S)
    stage.cluster.forget(stage.customers)


def _serve(screen: Screen, cluster: LocalCluster) -> None:
    """Keep the cluster and new customers until Ctrl-C is pressed."""
    acks = cluster.directory / "acks"
    url = cluster.url
    command = [
        sys.executable,
        "-P",
        "-m",
        "slackwater.demo.shop",
        url,
        "--acks",
        str(acks),
        "--seed",
        str(time.time_ns()),
    ]
    cluster.spawn("customers", *command)
    screen.step("Serving until Ctrl-C", "The three nodes stay, and new customers buy. In another terminal:")
    screen.say(f".venv/bin/slackwater ranges --host {cluster.addresses[0]}       (also: status, frontier)")
    screen.say(f".venv/bin/slackwater changefeed orders --host {cluster.addresses[0]} --into ./orders")
    screen.say(
        f""".venv/bin/python -c 'import slackwater; print(slackwater.connect("{url}").scan("orders", limit=5))'"""
    )
    screen.say(f"journals and stores: {cluster.directory}")
    with suppress(KeyboardInterrupt):
        signal.pause()
