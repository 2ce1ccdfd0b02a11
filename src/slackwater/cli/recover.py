"""`slackwater recover`: make a consistent cluster again from the stores that survive, when the log or too many nodes are lost."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from slackwater.cli.calling import dialing
from slackwater.clock.timestamp import Timestamp, parse, seconds_between, show
from slackwater.codec.layout import show_key
from slackwater.errors import AccessDenied, SlackwaterError, UsageError
from slackwater.log import open_log
from slackwater.model.ids import RangeId
from slackwater.protocol.node.services import HELLO, HelloRequest
from slackwater.runtime.real import RealRuntime, run
from slackwater.runtime.tcp import is_loopback
from slackwater.server.arguments import DEFAULT_USER
from slackwater.server.process import ENGINE, LOG_FILE
from slackwater.server.recovery import build, make_plan
from slackwater.server.recovery.offline import begin, check_empty, finished, opened
from slackwater.server.recovery.plan import describe, system_lost
from slackwater.settings import Settings
from slackwater.storage.rocks import RocksDisk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slackwater.server.recovery import RebuiltStore, RecoveryPlan, Survivor

HELLO_S = 2.0
DESCRIPTION = """\
Make a consistent cluster again from the data directories that survive, when the log is lost, or so many nodes that some ranges
have no leaseholder and never will. For a cluster that lost a node and goes on, do nothing: it repairs itself.

  plan    reads the stores and says what a recovery would give: the newest timestamp T at which every table is complete, what is
          lost, and why. Changes nothing anywhere.
  apply   makes a new store at T in an empty directory. Start a node on it, and let new nodes with empty stores join.

What was committed after T is gone. The old stores are only read; keep them until the new cluster is well. The new cluster has
a name and a log of its own, so a node of the old one that comes back cannot mix with it.
"""
EXAMPLES = """\
examples:
  slackwater recover plan --store /data/n1 --store /data/n3
  slackwater recover apply --store /data/n1 --store /data/n3 --into /data/new
  slackwater start --store /data/new --listen 127.0.0.1:7401 --insecure
"""


def main(argv: list[str]) -> int:
    """Parse, read the stores, and plan or build."""
    options = _parser().parse_args(argv)
    told = partial(print, file=sys.stderr) if sys.stderr.isatty() and not options.json else lambda _: None
    with opened(options.store, force=options.force, progress=told) as survivors:
        if not options.force:
            run(_check_gone(survivors, options))
        at = parse(options.at, now=None) if options.at else None
        plan = make_plan(survivors, at=at)
        if options.what == "plan":
            print(msgspec.json.encode(as_json(plan)).decode() if options.json else in_words(plan))
            return 0
        built = run(_apply(plan, options, told))
    if options.json:
        print(msgspec.json.encode({**as_json(plan), **_made(built, options)}).decode())
    else:
        print(in_words(plan))
        print(
            f"\nmade cluster {built.identity.cluster_id} in {options.into}: n{built.identity.node_id}, {built.ranges} ranges, "
            f"{built.versions:,} versions\nstart it:  slackwater start --store {options.into} --log '{_log_url(options)}' "
            "--listen HOST:PORT …"
        )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="slackwater recover",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_subparsers(dest="what", required=True, metavar="{plan,apply}")
    plan = what.add_parser("plan", help="say what a recovery would give; change nothing")
    apply = what.add_parser("apply", help="make a new store at T in an empty directory")
    for one in (plan, apply):
        one.add_argument(
            "--store",
            type=Path,
            action="append",
            required=True,
            metavar="DIR",
            help="a surviving data directory; repeat",
        )
        one.add_argument("--at", default="", metavar="TIME", help="an older timestamp than the newest possible one")
        one.add_argument(
            "--force", action="store_true", help="go on although nodes of the old cluster answer, or a store is in use"
        )
        one.add_argument(
            "--certs", type=Path, metavar="DIR", help="certificates, to ask whether old nodes still answer"
        )
        one.add_argument("--user", default=DEFAULT_USER, help=f"whose certificate to present (default {DEFAULT_USER})")
        one.add_argument("--json", action="store_true", help="print a JSON object")
    apply.add_argument(
        "--into", type=Path, required=True, metavar="DIR", help="the new data directory; empty or missing"
    )
    apply.add_argument("--log", default="", metavar="URL", help="the new, empty log (default: a file in --into)")
    apply.add_argument("--cluster-id", default="", metavar="NAME", help="a name for the new cluster (default: random)")
    apply.add_argument("--accept-loss", action="store_true", help="go on although some keys are in none of the stores")
    return parser


async def _check_gone(survivors: Sequence[Survivor], options: argparse.Namespace) -> None:
    """Raise `UsageError` if a node of the old cluster answers where these stores say that it was."""
    cluster = survivors[0].identity.cluster_id
    addresses = sorted({a for s in survivors for a in s.addresses.values() if options.certs or is_loopback(a)})
    async with dialing(tuple(addresses), certs=options.certs, user=options.user) as dialer:
        for address in addresses:
            try:
                answers = (await dialer.call(address, HELLO, HelloRequest(), timeout=HELLO_S)).cluster_id == cluster
            except AccessDenied:
                answers = True
            except SlackwaterError:
                answers = False
            if answers:
                raise UsageError(
                    f"a node of cluster {cluster} answers at {address}; stop every node of it first, or say --force if that "
                    "is meant",
                    address=address,
                )


async def _apply(plan: RecoveryPlan, options: argparse.Namespace, told: Any) -> RebuiltStore:
    check_empty(options.into)
    begin(options.into)
    settings = Settings()
    runtime: RealRuntime
    runtime = RealRuntime(
        disk=RocksDisk(options.into, sleep=lambda s: runtime.clock.sleep(s), settings=settings), settings=settings
    )
    scope = runtime.scope("recover")
    try:
        log = await open_log(
            _log_url(options), clock=runtime.clock, rng=runtime.rng, scope=scope.child("log"), settings=settings
        )
        try:
            if await log.head(RangeId(1)):
                raise UsageError("this log already holds a cluster's entries; a recovered cluster needs an empty one")
            engine = runtime.disk.open(ENGINE)
            try:
                built = build(
                    plan,
                    engine,
                    cluster_id=options.cluster_id or runtime.rng.bytes(8).hex(),
                    log=log.identity(),
                    accept_loss=options.accept_loss,
                    progress=told,
                )
                await engine.flush()
            finally:
                engine.close()
            finished(options.into)
            return built
        finally:
            await log.close()
    finally:
        await scope.close()
        runtime.close()


def _log_url(options: argparse.Namespace) -> str:
    return options.log or f"sqlite://{(options.into / LOG_FILE).resolve()}"


def _made(built: RebuiltStore, options: argparse.Namespace) -> dict[str, Any]:
    made = built.identity
    return {
        "into": str(options.into),
        "new_cluster_id": made.cluster_id,
        "node_id": made.node_id,
        "log": _log_url(options),
        "ranges": built.ranges,
        "versions": built.versions,
    }


def as_json(plan: RecoveryPlan) -> dict[str, Any]:
    """A plan for machines."""
    return {
        "cluster_id": plan.survivors[0].identity.cluster_id,
        "stores": [{"store": s.name, "node_id": s.identity.node_id, "replicas": len(s.copies)} for s in plan.survivors],
        "at": plan.at,
        "at_time": show(plan.at),
        "behind_newest_s": _behind(plan.at, plan.newest),
        "limited_by": _limit(plan),
        "ranges": [
            {
                "start": show_key(p.start),
                "end": show_key(p.end),
                "from": p.copy.store if p.copy else None,
                "range_id": p.copy.state.descriptor.range_id if p.copy else None,
                "complete": p.complete if p.copy else None,
            }
            for p in plan.pieces
        ],
        "tables": {
            name: [[show_key(start), show_key(end)] for start, end in cuts] for name, cuts in plan.tables.items()
        },
        "lost": [[show_key(p.start), show_key(p.end)] for p in plan.lost],
        "recoverable": not system_lost(plan),
        "damaged": [{"store": c.store, "range_id": c.state.descriptor.range_id, "why": c.damage} for c in plan.damaged],
    }


def in_words(plan: RecoveryPlan) -> str:
    """A plan for people."""
    nodes = ", ".join(f"n{s.identity.node_id} ({s.name}, {len(s.copies)} replicas)" for s in plan.survivors)
    lines = [
        f"cluster     {plan.survivors[0].identity.cluster_id}",
        f"stores      {nodes}",
        f"T           {show(plan.at)}, {_behind(plan.at, plan.newest):.3f} s before the newest that any replica had closed",
    ]
    if limit := _limit(plan):
        lines.append(f"held by     {limit}")
    lines += [f"damaged     {copy.name()}: {copy.damage}" for copy in plan.damaged]
    lines += [f"lost        {describe(piece)}: in none of these stores" for piece in plan.lost]
    whole = [name for name, cuts in plan.tables.items() if not cuts]
    if whole:
        lines.append(f"complete    {', '.join(whole)}")
    for name, cuts in plan.tables.items():
        if cuts:
            keys = ", ".join(f"[{show_key(start)}, {show_key(end)})" for start, end in cuts)
            lines.append(f"table {name}: loses {keys}")
    if gone := system_lost(plan):
        lines.append(f"no cluster can be made: its own records {describe(gone[0])} are in none of these stores")
    elif plan.lost:
        lines.append("`recover apply` needs --accept-loss")
    return "\n".join(lines)


def _behind(at: Timestamp, newest: Timestamp) -> float:
    return max(0.0, seconds_between(at, newest))


def _limit(plan: RecoveryPlan) -> str:
    piece = plan.limited_by
    if piece is None or piece.copy is None:
        return ""
    if piece.held_by is not None:
        return f"{piece.copy.name()}: a transaction there began at {show(piece.held_by.start)}, and its outcome is not known"
    return f"{piece.copy.name()}, which is complete up to there"
