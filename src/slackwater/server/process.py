"""One node as a process: from an empty or existing directory to a serving node, and back, whatever ends it.

    open store ─► open log ─► check that they belong together ─► listen ─► serve ─► signal ─► stop ─► close

    DIR/engine    RocksDB; its own lock keeps a second process out; rebuilt first if it met damage (`rebuild.py`)
    DIR/log.db    the log, unless --log names another

What is refused is refused before anything is served, by one line and exit status 1: a directory that is in use or is
none, a log that is not the store's or lacks what it has applied, a port that is taken, a store whose cluster is not that of
the nodes it should join.

Signals. SIGTERM and SIGINT stop gracefully: leases are left, what was applied becomes durable, the next start is quick.
A second one ends the process at once, which loses nothing either: the log has everything that was acknowledged.
SIGHUP loads the certificates again. SIGUSR1 writes the state of every replica to the journal.
"""

from __future__ import annotations

import gc
import os
import signal
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import msgspec

from slackwater.errors import DamageError, ProtocolError, SlackwaterError, UsageError
from slackwater.log import open_log
from slackwater.runtime.door import raise_descriptors_max
from slackwater.runtime.http import HttpServer
from slackwater.runtime.real import RealRuntime
from slackwater.runtime.sync import Future, get_running_loop
from slackwater.runtime.tasks import waiting_tasks
from slackwater.server.arguments import http_tls, node_credentials, node_net
from slackwater.server.doors import Doors
from slackwater.server.health import answer
from slackwater.server.identity import check_log, read_identity
from slackwater.server.journal import Format, Journal, Level
from slackwater.server.node import Node
from slackwater.server.rebuild import rebuild_if_damaged
from slackwater.server.watch import JournalWatch
from slackwater.storage.rocks import RocksDisk

if TYPE_CHECKING:
    from slackwater.log.contract import OrderedLog
    from slackwater.runtime.credentials import Credentials
    from slackwater.runtime.seam import Engine, TaskScope
    from slackwater.settings import Settings

ENGINE = "engine"
UNFINISHED = "recovery-not-finished"
"""In a directory in which `slackwater recover apply` was making a store when it ended."""
LOG_FILE = "log.db"
EXIT_AT_ONCE = 130
PRIVATE_MODE = 0o700
OTHERS = 0o077
"""The bits of a mode that are about others than the owner."""


class StartOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What `slackwater start` was told."""

    store: Path
    listen: str
    advertise: str = ""
    join: tuple[str, ...] = ()
    log_url: str = ""
    locality: tuple[tuple[str, str], ...] = ()
    certs: Path | None = None
    insecure: bool = False
    pid_file: Path | None = None
    http: str = ""
    http_asked: bool = False
    log_format: Format = Format.TEXT
    log_level: Level = Level.INFO


async def serve(options: StartOptions, settings: Settings) -> int:
    """Run a node until a signal or a failure ends it; returns the exit status."""
    with suppress(DamageError):  # met while the node began, and noted in the store
        return await _serve(options, settings)
    # What is whole is copied now, not at the next start. The error is gone, and with it the frames that kept iterators of
    # the damaged engine; RocksDB gives a directory's lock back only with the last of them.
    gc.collect()
    return await _serve(options, settings)


async def _serve(options: StartOptions, settings: Settings) -> int:
    raise_descriptors_max()
    os.umask(OTHERS)  # whatever this process writes, store and log and pages of both, is for its owner
    credentials = node_credentials(options.certs)
    net = node_net(settings, credentials=credentials, insecure=options.insecure, listen=options.listen)
    runtime: RealRuntime
    runtime = RealRuntime(
        disk=RocksDisk(options.store, sleep=lambda s: runtime.clock.sleep(s), settings=settings),
        net=net,
        settings=settings,
    )
    journal = Journal(runtime.clock, form=options.log_format, level=options.log_level)
    check_directory(options.store)
    not_rebuilt = await rebuild_if_damaged(options.store, ENGINE, runtime.disk, journal)
    engine = runtime.disk.open(ENGINE)
    ended: Future[int] = get_running_loop().create_future()
    get_running_loop().set_exception_handler(lambda _, context: tell_crash(journal, context))
    scope = runtime.scope("node", on_failure=lambda error: _failed(error, ended, journal))
    try:
        log = await open_log(
            log_url(options),
            clock=runtime.clock,
            rng=runtime.rng,
            scope=scope.child("log"),
            settings=settings,
            place=_place(engine, options),
        )
        try:
            return await _run(options, settings, runtime, engine, log, scope, ended, journal, credentials)
        finally:
            await log.close()
    except DamageError as error:
        engine.note_damage(error.message)
        if not_rebuilt:
            raise DamageError(not_rebuilt, reason=error.message) from None
        raise
    finally:
        await scope.close()
        engine.close()
        runtime.close()


def _place(engine: Engine, options: StartOptions) -> int:
    """A number by which nodes differ: the node's, or before it has one, its address."""
    identity = read_identity(engine)
    return crc32((options.advertise or options.listen).encode()) if identity is None else int(identity.node_id)


def check_directory(store: Path) -> None:
    """Say in one line what is wrong with a data directory."""
    try:
        store.mkdir(mode=PRIVATE_MODE, parents=True, exist_ok=True)
        next(store.iterdir(), None)
    except OSError as error:
        raise UsageError(
            f"{store} cannot be used as a data directory: {error.strerror}; name a directory that is there or can be made"
        ) from None
    if not os.access(store, os.R_OK | os.W_OK | os.X_OK):
        raise UsageError(
            f"{store} cannot be used as a data directory: permission denied; let this user read and write it, or name another"
        )


def log_url(options: StartOptions) -> str:
    """The log that was asked for, or the file beside the engine."""
    return options.log_url or f"sqlite://{(options.store / LOG_FILE).resolve()}"


def open_store(store: Path, runtime: RealRuntime) -> Engine:
    """The engine in a data directory, or one line about what is wrong with the directory."""
    check_directory(store)
    return runtime.disk.open(ENGINE)


async def _run(
    options: StartOptions,
    settings: Settings,
    runtime: RealRuntime,
    engine: Engine,
    log: OrderedLog,
    scope: TaskScope,
    ended: Future[int],
    journal: Journal,
    credentials: Credentials | None,
) -> int:
    identity = read_identity(engine)
    if identity is not None:
        check_log(identity, log.identity())
    node = Node(
        runtime=runtime,
        scope=scope.child("serve"),
        engine=engine,
        log=log,
        address=options.advertise or options.listen,
        settings=settings,
        join=options.join,
        locality=options.locality,
    )
    node.credentials = credentials
    doors = Doors(node, journal, credentials)
    _catch_signals(ended, journal, node, doors)
    web = HttpServer(lambda path: answer(node, path), tls=http_tls(credentials=credentials, listen=options.http))
    await node.start(listen=options.listen)
    http = await _open_http(web, options, journal)
    with _pid_file(options.pid_file):
        journal.info(
            "listening",
            address=node.address,
            store=options.store,
            log="/".join(log.identity()[:2]),
            pid=os.getpid(),
            http=http or "none",
            cluster=node.identity.cluster_id or "none",
        )
        if identity is None and not options.join:
            journal.info("waiting", hint=f"make a cluster: slackwater init --host {node.address}")
        if identity is not None:
            scope.spawn(_check_cluster(node, options.join), name="check cluster")
        scope.spawn(JournalWatch(node, journal).run(), name="watch")
        scope.spawn(doors.run(), name="doors")
        if options.store.stat().st_mode & OTHERS:
            journal.warn("store.open", store=options.store, hint=f"others may read it; run chmod 700 {options.store}")
        try:
            status = await ended
        finally:
            await web.close()
        journal.info("stopping", node=f"n{node.node_id}", status=status)
        if status == 0:
            await node.stop()
    journal.info("stopped", node=f"n{node.node_id}", status=status)
    return status


async def _open_http(web: HttpServer, options: StartOptions, journal: Journal) -> str:
    """Serve /metrics and /health. A taken port matters only if it was asked for; the default gives way."""
    if not options.http:
        return ""
    try:
        return await web.listen(options.http)
    except UsageError as error:
        if options.http_asked:
            raise
        journal.warn("http", error=error, hint="name a free port with --http HOST:PORT")
        return ""


async def _check_cluster(node: Node, join: tuple[str, ...]) -> None:
    """End the process if the nodes it should meet prove to be of another cluster: the store or the addresses are wrong."""
    for address in join:
        try:
            await node.book.greet(address)
        except ProtocolError as error:
            if "theirs" in error.facts and error.facts["theirs"] != error.facts.get("ours"):
                raise
        except SlackwaterError:
            continue


def _catch_signals(ended: Future[int], journal: Journal, node: Node, doors: Doors) -> None:
    loop = get_running_loop()

    def asked(number: signal.Signals) -> None:
        if ended.done():
            journal.warn("killed", signal=number.name)
            os._exit(EXIT_AT_ONCE)
        journal.info("signal", signal=number.name)
        ended.set_result(0)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked, number)
    loop.add_signal_handler(signal.SIGHUP, doors.reload)
    loop.add_signal_handler(signal.SIGUSR1, _tell_state, journal, node)


def _tell_state(journal: Journal, node: Node) -> None:
    for line in node.status().splitlines():
        journal.info("state", line=line)
    for line in waiting_tasks():
        journal.info("task", line=line)


def _failed(error: BaseException, ended: Future[int], journal: Journal) -> None:
    """A task crashed and took the node with it."""
    journal.error("failed", error=f"{type(error).__name__}: {error}")
    if not isinstance(error, SlackwaterError):
        _tell_trace(journal, error)
    if not ended.done():
        ended.set_result(1)


def tell_crash(journal: Journal, context: dict[str, Any]) -> None:
    """Something crashed that the node goes on without: a queue, a handler, a range."""
    error = context.get("exception")
    journal.error("crashed", what=context.get("message", "?"), error=f"{type(error).__name__}: {error}")
    if isinstance(error, BaseException):
        _tell_trace(journal, error)


def _tell_trace(journal: Journal, error: BaseException) -> None:
    for line in traceback.format_exception(error):
        for part in line.rstrip().splitlines():
            journal.error("trace", line=part)


class _pid_file:  # noqa: N801 - reads as a statement
    """The process id in a file for as long as the block runs."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def __enter__(self) -> None:
        if self._path is not None:
            self._path.write_text(f"{os.getpid()}\n")

    def __exit__(self, *exc: object) -> None:
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink()
