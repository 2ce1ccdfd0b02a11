"""The commands people type, against real processes: what they print, what they refuse, and with which exit status."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

import slackwater
from slackwater.cli.main import COMMANDS, main
from tests.integration.cluster import free_ports

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("cluster")]
READY_S = 60.0


class Shell:
    """Runs `slackwater …` in a directory of its own."""

    def __init__(self, directory) -> None:
        self.directory = directory
        self.processes: list[subprocess.Popen] = []

    def __call__(self, *words: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "slackwater.cli.main", *words]
        return subprocess.run(command, cwd=self.directory, capture_output=True, text=True, timeout=READY_S, check=False)

    def inside(self, *words: str) -> subprocess.CompletedProcess:
        """The same in this process, which is quicker: for commands that end by themselves."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.chdir(self.directory), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main(list(words))
        return subprocess.CompletedProcess(words, status, out.getvalue(), err.getvalue())

    def start(self, *words: str) -> subprocess.Popen:
        """`slackwater start …` in the background; returns once it listens."""
        command = [sys.executable, "-m", "slackwater.cli.main", "start", *words]
        process = subprocess.Popen(command, cwd=self.directory, stderr=subprocess.PIPE, text=True)
        self.processes.append(process)
        for line in process.stderr:
            if " listening " in line:
                return process
        raise AssertionError(f"it never listened; exit status {process.wait()}")

    def init(self, address: str, *words: str) -> str:
        """Make a cluster; returns its name."""
        done = self.inside("init", "--host", address, "--json", "--no-wait", *words)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["cluster_id"]

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
            process.stderr.close()


@pytest.fixture
def shell(tmp_path):
    shell = Shell(tmp_path)
    yield shell
    shell.end()


def address() -> str:
    return f"127.0.0.1:{free_ports(1)[0]}"


def refused(done: subprocess.CompletedProcess, *texts: str) -> None:
    """Exit status 1 and one line that says why."""
    assert done.returncode == 1, done
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    for text in texts:
        assert text in lines[0]


def test_a_node_from_its_first_start_to_its_second(shell):
    here = address()
    node = shell.start("--store", "n1", "--listen", here, "--insecure", "--locality", "zone=a", "--pid-file", "pid")
    assert (shell.directory / "pid").read_text().strip() == str(node.pid)
    refused(shell.inside("kv", "get", "a", "--host", here), "no cluster yet")
    name = shell.init(here, "--cluster-id", "trial")
    assert name == "trial"
    refused(shell.inside("init", "--host", here), "already belongs to a cluster")

    assert shell("kv", "put", "greeting", "hello", "--host", here).returncode == 0
    assert shell.inside("kv", "get", "greeting", "--host", here).stdout == "hello\n"
    assert shell.inside("kv", "get", "nothing", "--host", here).returncode == 1
    rows = shell.inside("kv", "scan", "--json", "--host", here).stdout.splitlines()
    assert [json.loads(row) for row in rows] == [{"key": "greeting", "value": "hello"}]

    (row,) = json.loads(shell.inside("status", "--json", "--host", here).stdout)
    assert (row["node"], row["address"], row["state"], row["locality"]) == (1, here, "live", "zone=a")
    ranges = json.loads(shell.inside("ranges", "--json", "--host", here).stdout)
    assert [r["range_id"] for r in ranges] == [1, 2, 3]
    assert ranges[2]["leaseholder"] == 1
    assert ranges[2]["copies"][0]["live_keys"] == 1
    assert "n1" in shell.inside("status", "--host", here).stdout
    assert "r3" in shell.inside("ranges", "--host", here).stdout
    frontier = json.loads(shell.inside("frontier", "--json", "--host", here).stdout)
    assert [r["range_id"] for r in frontier["replicas"]] == [1, 2, 3]
    assert (frontier["replicas"][2]["leads"], frontier["replicas"][2]["policy"]) == (True, "lag")
    assert frontier["unreachable"] == []
    listed = shell.inside("frontier", "--host", here, "--from", "a", "--to", "b").stdout
    assert "held back by" in listed
    assert "leads" in listed
    assert shell.inside("frontier", "--host", here, "--table", "4711").stdout.count("\n") == 2
    assert shell.inside("frontier", "--host", here, "--from", "b", "--to", "a").returncode != 0

    node.send_signal(signal.SIGTERM)
    assert node.wait(READY_S) == 0
    assert not (shell.directory / "pid").exists()
    shell.start("--store", "n1", "--listen", here, "--insecure")
    assert shell.inside("kv", "get", "greeting", "--host", here).stdout == "hello\n"
    assert shell.inside("kv", "delete", "greeting", "--host", here).returncode == 0
    assert shell.inside("kv", "get", "greeting", "--host", here).returncode == 1


def test_what_start_refuses(shell):
    here, there = address(), address()
    insecure = ("--listen", there, "--insecure")
    shell.start("--store", "n1", "--listen", here, "--insecure")
    shell.init(here)
    refused(shell.inside("start", "--store", "n1", *insecure), "already open")
    refused(shell.inside("start", "--store", "n2", "--listen", here, "--insecure"), "cannot listen", "in use")
    refused(shell.inside("start", "--store", "n2", "--listen", "0.0.0.0:0", "--insecure"), "loopback")
    refused(shell.inside("start", "--store", "n2", "--listen", there), "--certs")
    refused(shell.inside("start", "--store", "n2", "--listen", "nowhere", "--insecure"), "host:port")
    refused(shell.inside("start", "--store", "n2", "--certs", "missing", "--listen", there), "slackwater cert")
    refused(shell.inside("start", "--store", "n2", *insecure, "--log", "paper:"), "log URL")
    refused(shell.inside("start", "--store", "n2", *insecure, "--set", "lease.durations=3"), "lease.duration")
    refused(shell.inside("start", "--store", "n2", *insecure, "--set", "lease.duration=3000"), "between")
    refused(shell.inside("start", "--store", "n2", *insecure, "--locality", "eu"), "region=eu")
    (shell.directory / "file").write_text("no directory")
    refused(
        shell.inside("start", "--store", "file", *insecure), "cannot be used as a data directory", "name a directory"
    )
    refused(shell.inside("start", "--store", "n2", *insecure, "--log", "sqlite:file"), "file is no log", "of its own")
    refused(shell.inside("nats", "--dir", "file"), "file: File exists; name a directory")
    refused(shell.inside("status", "--host", there), "cannot connect")
    assert shell("kv", "put", "a", "1", "--host", here).returncode == 0, "nobody disturbed the one that runs"


def test_stores_logs_and_clusters_are_not_mixed_up(shell):
    one, two, other = address(), address(), address()
    shell.start("--store", "n1", "--listen", one, "--insecure", "--log", "sqlite:one.db")
    shell.init(one)
    second = shell.start("--store", "n2", "--listen", two, "--insecure", "--log", "sqlite:one.db", "--join", one)
    wait_for(shell, one, nodes=2)
    second.send_signal(signal.SIGTERM)
    assert second.wait(READY_S) == 0
    shell.start("--store", "o1", "--listen", other, "--insecure", "--log", "sqlite:other.db")
    shell.init(other)

    again = ("start", "--store", "n2", "--listen", two, "--insecure")
    refused(shell(*again, "--log", "sqlite:other.db"), "not the log that the store was built on")
    wrong = shell(*again, "--log", "sqlite:one.db", "--join", other)
    assert (wrong.returncode, "another cluster" in wrong.stderr) == (1, True), wrong.stderr
    joining = shell(
        "start", "--store", "n3", "--listen", address(), "--insecure", "--join", one, "--log", "sqlite:3.db"
    )
    assert (joining.returncode, "uses another log than this cluster" in joining.stderr) == (1, True), joining.stderr
    fresh = shell.start("--store", "n4", "--listen", address(), "--insecure", "--log", "sqlite:one.db")
    assert fresh.poll() is None
    (shell.directory / "moved").mkdir()

    # The same log under another spelling of its path is the same log.
    path = os.path.relpath(shell.directory / "one.db", shell.directory / "moved")
    shell.start("--store", "n2", "--listen", two, "--insecure", "--log", f"sqlite:moved/{path}", "--join", one)
    wait_for(shell, one, nodes=2)


def test_a_log_with_another_clusters_entries_makes_no_new_cluster(shell):
    one, two = address(), address()
    shell.start("--store", "n1", "--listen", one, "--insecure", "--log", "sqlite:log.db")
    shell.init(one)
    assert shell.inside("kv", "put", "a", "1", "--host", one).returncode == 0
    shell.start("--store", "n2", "--listen", two, "--insecure", "--log", "sqlite:log.db")
    refused(shell.inside("init", "--host", two), "already holds a cluster's entries")


def test_three_nodes_under_tls(shell):
    certs = ("--certs", "certs")
    assert shell.inside("cert", "create-ca", *certs).returncode == 0
    assert shell.inside("cert", "create-node", *certs, "127.0.0.1").returncode == 0
    assert shell.inside("cert", "create-operator", *certs, "root").returncode == 0
    refused(shell.inside("cert", "create-ca", *certs), "not overwritten")
    addresses = [address() for _ in range(3)]
    for n, here in enumerate(addresses):
        shell.start(
            "--store", f"n{n}", "--listen", here, *certs, "--log", "sqlite:log.db", "--join", ",".join(addresses)
        )
    shell.init(addresses[0], *certs)
    wait_for(shell, addresses[0], *certs, nodes=3)
    assert shell.inside("kv", "put", "a", "1", "--host", addresses[1], *certs).returncode == 0
    assert shell.inside("kv", "get", "a", "--host", addresses[2], *certs).stdout == "1\n"
    assert shell.inside("kv", "get", "a", "--host", addresses[2]).returncode == 1, "no certificate, no answer"
    assert shell.inside("cert", "create-client", *certs, "ann").returncode == 0
    for words in (
        ("drain",),
        ("decommission", "3"),
        ("kv", "get", "a"),
        ("settings", "show"),
        ("settings", "set", "range.max_bytes", "1e9"),
        ("zone", "show"),
        ("zone", "set", "--rest", "--policy", "off"),
        ("status",),
        ("ranges",),
        ("init",),
    ):
        done = shell.inside(*words, "--host", addresses[0], *certs, "--user", "ann")
        refused(done, "operators, not for client 'ann'", "create-operator")
    with slackwater.connect(f"slackwater://{addresses[1]}", certs=shell.directory / "certs", user="root") as db:
        db.create_table("orders", {"id": "int8"}, primary_key="id")
        mine = db.protect("orders", at=db.now())
    done = shell.inside("release", mine.id, "--host", addresses[1], *certs, "--user", "ann")
    refused(done, "belongs to the operators; its owner or an operator may change it")
    assert shell.inside("release", mine.id, "--host", addresses[1], *certs).returncode == 0
    changed = shell.inside("settings", "set", "range.max_bytes", "1e9", "--host", addresses[1], *certs)
    assert changed.stdout == "range.max_bytes = 1e+09 bytes\n", changed
    assert shell.inside("zone", "set", "--rest", "--replicas", "3", "--host", addresses[1], *certs).returncode == 0
    drained = shell.inside("drain", "--host", addresses[0], *certs, "--json")
    assert json.loads(drained.stdout)["node_id"] == 1
    refused(shell.inside("decommission", "9", "--host", addresses[0], *certs), "no node n9")
    assert shell.inside("kv", "get", "a", "--host", addresses[2], *certs, "--user", "eve").returncode == 1


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """A node of a cluster with one table, for commands that must change nothing."""
    shell = Shell(tmp_path_factory.mktemp("running"))
    here = address()
    try:
        shell.start("--store", "n1", "--listen", here, "--insecure")
        shell.init(here)
        (shell.directory / "n1.txt").touch()
        with slackwater.connect(f"slackwater://{here}") as db:
            db.create_table("orders", {"id": "int8"}, primary_key="id")
        yield shell, here
    finally:
        shell.end()


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("frontier --table nope", "there is no table 'nope'; tables: orders"),
        ("frontier --table 99999999999999999999", "no table has the number"),
        ("frontier --table orders --from a", "either --table or --from and --to"),
        ("frontier --from b --to a", "--from comes before --to"),
        ("decommission x", "name a node by its number"),
        ("decommission 99999999999999999999", "name a node by its number"),
        ("decommission 9", "no node n9; `slackwater status` lists the nodes"),
        ("jobs cancel 99", "there is no job 99; `slackwater jobs list` shows those that are kept"),
        ("changefeed orders --into n1.txt", "cannot be made a directory"),
        ("kv get nothing", "there is no key 'nothing'"),
        ("kv get a --at 2200-01-01", "the future cannot be read"),
        ("kv get a --at yesterday", "cannot read 'yesterday' as a timestamp"),
        ("kv get a --at -5x", "cannot read '-5x' as a duration"),
        ("kv scan --limit -1", "--limit is a number of rows, at least 1"),
        ("kv scan --from b --to a", "--from comes before --to"),
        ("zone set --policy lead", "name one zone"),
        ("zone set orders", "say what to set"),
        ("zone set nope --policy lead", "there is no table 'nope'"),
        ("zone set -4 --policy lead", "no table has the number -4"),
        ("zone set --from a --policy lead", "needs both --from and --to"),
        ("zone set --from b --to a --policy lead", "--from comes before --to"),
        ("zone set --rest --policy lag --duration-ms -5", "a duration of 1 to"),
        ("zone set --rest --replicas 99", "a range has 1 to"),
        ("zone unset orders", "has no configuration of its own"),
        ("zone set orders --gc-ttl soon", "cannot read 'soon' as a duration"),
        ("zone set orders --gc-ttl 10ms", "history is kept from 1 second to 366 days"),
        ("protect nope --at -0s", "there is no table 'nope'"),
        ("protect orders --at 2200-01-01", "future"),
        ("protect orders --after -1d", "did not exist yet"),
        ("protect orders --at then", "cannot read 'then'"),
        ("protect orders --at -0s --expires 400d", "expires within 366 days"),
        ("release 12", "at least 4 digits"),
        ("release 1234", "no protection has an id that begins with '1234'"),
        ("release 00112233445566778899aabbccddeeff", "no protection has this id"),
        ("changefeed nope --into out", "there is no table 'nope'"),
        ("changefeed orders orders --into out", "a table is named twice"),
        ("changefeed orders --into out --resolved 0s", "from 1ms to 1d"),
        ("changefeed orders --into out --resolved x", "cannot read 'x' as a duration"),
        ("changefeed orders --into out --cursor soon", "cannot read 'soon'"),
        ("changefeed orders --into out --cursor 2200-01-01", "is in the future"),
        ("changefeed orders --into out --cursor -1h --until -2h", "is before the start of the feed"),
        ("changefeed orders --into n1/log.db/x", "Not a directory"),
        ("init", "already belongs to a cluster"),
    ],
)
def test_what_commands_refuse(running, command, said):
    shell, here = running
    before = shell.inside("zone", "show", "--host", here).stdout
    refused(shell.inside(*command.split(), "--host", here), said)
    assert shell.inside("zone", "show", "--host", here).stdout == before
    assert not (shell.directory / "out").exists(), "nothing is left of a feed that cannot be"


def test_history_is_kept_as_long_as_people_say(running):
    shell, here = running
    where = ("--host", here)
    assert "history is kept for the gc ttl" in shell.inside("protections", *where).stdout
    assert shell.inside("zone", "set", "orders", "--gc-ttl", "10m", *where).returncode == 0
    shown = shell.inside("zone", "show", "orders", *where).stdout.splitlines()
    assert [line.split() for line in shown[:2]] == [
        ["gc", "ttl", "600", "s", "from", "this", "zone"],
        ["policy", "lag", "from", "default"],
    ]
    assert shell.inside("zone", "show", *where).stdout.startswith("table orders  gc ttl: 600 s")
    assert [row["table"] for row in json.loads(shell.inside("zone", "show", "--json", *where).stdout)] == ["orders"]
    as_json = json.loads(shell.inside("zone", "show", "--system", "--json", *where).stdout)
    assert as_json["gc_ttl_s"] == {"value": 14400.0, "source": "default"}
    told = shell.inside("protect", "orders", "--at", "-0s", "--reason", "an audit", "--expires", "2d", *where)
    assert told.stdout.startswith("orders protected at "), told
    made = told.stdout.split()[-1]
    (listed,) = shell.inside("protections", *where).stdout.splitlines()
    assert listed.startswith(made)
    assert all(word in listed for word in ("orders", "0 B pinned", "user (an audit)", "expires in 48h"))
    (as_json,) = json.loads(shell.inside("protections", "--json", *where).stdout)
    assert (as_json["mode"], as_json["tables"]) == ("at", ["orders"])
    assert shell.inside("release", made[:6], *where).stdout == f"released {made}\n"
    refused(shell.inside("release", made, *where), "no protection has this id")
    refused(shell.inside("release", "", *where), "at least 4 digits of the id, not ''")
    told = shell.inside("zone", "unset", "orders", *where)
    assert told.stdout == "table orders has no configuration of its own any more\n"


def test_what_commands_refuse_without_a_node(shell):
    for command in ("status", "ranges", "frontier", "drain", "init --wait 0", "kv get a", "changefeed t --into x"):
        refused(shell.inside(*command.split(), "--host", address()), "no process listens there; is the node running?")
        refused(shell.inside(*command.split(), "--host", "here"), "is not an address; write host:port")
        refused(shell.inside(*command.split(), "--host", "db.example:7400"), "with")
    refused(shell.inside("settings", "nope"), "no setting has 'nope' in its name")
    refused(shell.inside("bench", "nope"), "there is no benchmark nope")
    refused(shell.inside("demo", "--picture", "no/where.svg"), "no directory no")
    refused(
        shell.inside("cert", "create-node", "--certs", "certs", "localhost"),
        "ca.key is missing; run `slackwater cert create-ca` first",
    )
    done = shell.inside("strat")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "did you mean start" in done.stderr


def test_a_node_that_is_still_starting_is_waited_for(shell):
    here = address()
    command = [sys.executable, "-m", "slackwater.cli.main", "init", "--host", here, "--wait", str(READY_S)]
    waiting = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    shell.start("--store", "n1", "--listen", here, "--insecure")
    said, _ = waiting.communicate(timeout=READY_S)
    assert (waiting.returncode, "its first node is n1" in said) == (0, True), said


def test_intervals_are_read_as_the_help_shows_them(running):
    shell, here = running
    assert shell.inside("kv", "put", "then", "1", "--host", here).returncode == 0
    done = shell.inside(
        "changefeed", "orders", "--into", "hour", "--cursor", "-0s", "--until", "-0s", "--json", "--host", here
    )
    assert json.loads(done.stdout)["ended"], done.stderr
    refused(shell.inside("kv", "get", "then", "--at", "-1h", "--host", here), "there is no key 'then'")


def test_certificates_that_do_not_fit(shell):
    for folder in ("certs", "other"):
        assert shell.inside("cert", "create-ca", "--certs", folder).returncode == 0
        assert shell.inside("cert", "create-node", "--certs", folder, "localhost").returncode == 0
        assert shell.inside("cert", "create-operator", "--certs", folder, "root").returncode == 0
    port = free_ports(1)[0]
    here = f"localhost:{port}"
    shell.start("--store", "n1", "--listen", f"127.0.0.1:{port}", "--advertise", here, "--certs", "certs")
    refused(shell.inside("status", "--host", here, "--certs", "other"), "its certificate cannot be trusted")
    refused(shell.inside("status", "--host", f"127.0.0.1:{port}", "--certs", "certs"), "is not for this address")
    refused(shell.inside("status", "--host", here, "--certs", "certs", "--user", "eve"), "client.eve.crt is missing")
    refused(shell.inside("status", "--host", here), "requires one signed by its CA")
    for name in ("client.root.crt", "client.root.key"):  # the right authority, and a certificate of another one
        (shell.directory / "certs" / name).write_bytes((shell.directory / "other" / name).read_bytes())
    refused(shell.inside("status", "--host", here, "--certs", "certs"), "signed by its CA")
    plain = address()
    shell.start("--store", "n2", "--listen", plain, "--insecure")
    refused(shell.inside("status", "--host", plain, "--certs", "other"), "if the node runs with --insecure")


def test_a_second_signal_does_not_wait(shell):
    here = address()
    node = shell.start("--store", "n1", "--listen", here, "--insecure")
    shell.init(here)
    os.kill(node.pid, signal.SIGSTOP)  # both signals arrive before the first is served
    node.send_signal(signal.SIGTERM)
    node.send_signal(signal.SIGINT)
    os.kill(node.pid, signal.SIGCONT)
    assert node.wait(READY_S) in (0, 130)


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_teaches(shell, command, capsys):
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    said = capsys.readouterr().out
    assert ended.value.code == 0
    assert command == "sim" or "example" in said
    assert f"slackwater {command}" in said


def test_the_help_lists_every_command_once(capsys):
    assert main(["--help"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert sorted(listed) == sorted(COMMANDS)


def wait_for(shell: Shell, host: str, *words: str, nodes: int) -> None:
    """Until so many nodes are live, as one of them says."""
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        done = shell.inside("status", "--json", "--host", host, *words)
        rows = json.loads(done.stdout) if done.returncode == 0 else []
        if sum(row["state"] == "live" and row["answers"] for row in rows) == nodes:
            return
        time.sleep(0.1)
    raise AssertionError(f"{nodes} nodes were wanted: {done.stdout}{done.stderr}")


def test_a_log_that_lacks_what_the_store_has_applied_is_refused(shell):
    """Today's mistake: an older backup of the log is put back. The store's positions would come to mean other entries."""
    here, words = address(), ("--store", "n1", "--log", "sqlite:log.db", "--insecure")

    def put(key: str) -> None:
        assert shell.inside("kv", "put", key, "v", "--host", here).returncode == 0

    def stop(node: subprocess.Popen) -> None:
        node.send_signal(signal.SIGTERM)
        assert node.wait(READY_S) == 0

    node = shell.start(*words, "--listen", here)
    shell.init(here)
    put("a")
    stop(node)
    log = shell.directory / "log.db"
    backup = log.read_bytes()
    node = shell.start(*words, "--listen", here)
    put("b")
    stop(node)
    for leftover in shell.directory.glob("log.db-*"):
        leftover.unlink()
    log.write_bytes(backup)
    refused(shell("start", *words, "--listen", here), "ends before what this store has applied", "applied=", "head=")


def test_a_second_process_from_a_copied_store_is_fenced(shell):
    here, there = address(), address()
    words = ("--log", "sqlite:log.db", "--insecure", "--join", here)
    node = shell.start("--store", "n1", "--listen", here, *words)
    shell.init(here)
    node.send_signal(signal.SIGTERM)
    assert node.wait(READY_S) == 0
    shutil.copytree(shell.directory / "n1", shell.directory / "copy")
    shell.start("--store", "n1", "--listen", here, *words)
    assert shell.inside("kv", "put", "a", "1", "--host", here).returncode == 0
    copy = shell("start", "--store", "copy", "--listen", there, *words)
    assert copy.returncode == 1
    assert "NodeFenced: n1 " in copy.stderr
    assert "another copy of this store" in copy.stderr
    assert shell.inside("kv", "put", "a", "2", "--host", here).returncode == 0, "the node goes on undisturbed"
    (row,) = json.loads(shell.inside("status", "--json", "--host", here).stdout)
    assert (row["address"], row["state"]) == (here, "live")
