"""Certificates of a running node: renewed, revoked and about to end, and what its journal says of those it refused."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import sys
import time
import urllib.request

import pytest

from slackwater.runtime.certs import create_client, create_node, revoke
from tests.integration.test_commands import READY_S, Shell, address, refused

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("cluster")]


class Node:
    """A process of `slackwater start --certs`, with its journal in a file."""

    def __init__(self, shell: Shell, *words: str) -> None:
        self.address, self.http = address(), address()
        self.certs = shell.directory / "certs"
        self._shell = shell
        self.journal = shell.directory / "journal"
        command = [sys.executable, "-m", "slackwater.cli.main", "start", "--store", "n1", "--listen", self.address]
        with self.journal.open("ab") as out:
            self.process = subprocess.Popen(
                [*command, "--certs", "certs", "--http", self.http, *words], cwd=shell.directory, stderr=out, stdout=out
            )
        self.said("listening")

    def said(self, text: str) -> str:
        """The first line of the journal with this text, once there is one."""
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            for line in self.journal.read_text().splitlines():
                if text in line:
                    return line
            assert self.process.poll() is None, self.journal.read_text()
            time.sleep(0.05)
        raise AssertionError(f"it never said {text!r}:\n{self.journal.read_text()}")

    def get(self, path: str, user: str = "root") -> str:
        context = ssl.create_default_context(cafile=str(self.certs / "ca.crt"))
        context.load_cert_chain(self.certs / f"client.{user}.crt", self.certs / f"client.{user}.key")
        with urllib.request.urlopen(f"https://{self.http}{path}", context=context, timeout=10) as answer:
            return answer.read().decode()

    def shown(self) -> bytes:
        """The certificate that it shows to a new connection."""
        context = ssl.create_default_context(cafile=str(self.certs / "ca.crt"))
        context.load_cert_chain(self.certs / "client.root.crt", self.certs / "client.root.key")
        host, _, port = self.address.partition(":")
        with (
            socket.create_connection((host, int(port)), timeout=10) as raw,
            context.wrap_socket(raw, server_hostname=host) as tls,
        ):
            return tls.getpeercert(binary_form=True)

    def run(self, *words: str, user: str = "root") -> subprocess.CompletedProcess:
        return self._shell.inside(*words, "--host", self.address, "--certs", "certs", "--user", user)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def shell(tmp_path):
    shell = Shell(tmp_path)
    for words in (("create-ca",), ("create-node", "127.0.0.1"), ("create-operator", "root"), ("create-client", "ann")):
        assert shell.inside("cert", words[0], "--certs", "certs", *words[1:]).returncode == 0
    return shell


def test_a_running_node_takes_new_certificates_and_lists(shell):
    node = Node(shell, "--set", "tls.reload_interval=0.2")
    try:
        shell.init(node.address, "--certs", "certs")
        before = node.shown()
        create_node(node.certs, ["127.0.0.1"], days=10, replace=True)
        node.said("certificates.loaded")  # by itself
        assert node.shown() != before
        node.said("certificates.expiring")
        (warning,) = json.loads(node.get("/health"))["warnings"]
        assert "ends in 9 days" in warning
        assert warning in node.run("status").stdout

        refused(node.run("settings", "show", user="ann"), "operators")
        node.said("admin.settings is for operators, not for client 'ann'")
        metrics = node.get("/metrics", user="ann")
        assert 'slackwater_rpc_refused_total{reason="AccessDenied"} 1' in metrics
        assert 'slackwater_certificate_left_seconds{certificate="node"} 8' in metrics

        assert shell.inside("cert", "revoke", "--certs", "certs", "certs/client.ann.crt").stdout == "certs/ca.crl\n"
        node.said("revoked=1")
        with pytest.raises(OSError, match=r"revoked|alert|reset|EOF|closed"):
            node.get("/health", user="ann")
        assert node.run("settings", "show", user="ann").returncode == 1
        assert node.run("settings", "show").returncode == 0
        create_client(node.certs, "ann", replace=True)
        assert json.loads(node.get("/health", user="ann"))["ready"]
    finally:
        node.end()


def test_sighup_loads_certificates_at_once_and_bad_ones_change_nothing(shell):
    node = Node(shell, "--set", "tls.reload_interval=3600")
    try:
        shell.init(node.address, "--certs", "certs")
        before = node.shown()
        shutil.copy2(node.certs / "node.key", node.certs / "kept.key")
        (node.certs / "node.key").write_text("no key")
        os.kill(node.process.pid, signal.SIGHUP)
        node.said("certificates.unusable")
        assert node.shown() == before
        assert "cannot be used" in json.loads(node.get("/health"))["warnings"][0]
        assert "slackwater_certificates_unusable 1" in node.get("/metrics")
        shutil.copy2(node.certs / "kept.key", node.certs / "node.key")
        create_node(node.certs, ["127.0.0.1"], replace=True)
        revoke(node.certs, ["abc123"])
        os.kill(node.process.pid, signal.SIGHUP)
        node.said("certificates.loaded revoked=1")
        assert node.shown() != before
        assert node.run("status").returncode == 0
    finally:
        node.end()


def test_what_a_node_writes_is_for_its_owner_only(shell):
    node = Node(shell)
    try:
        shell.init(node.address, "--certs", "certs")
        assert node.run("kv", "put", "a", "1").returncode == 0
        store = shell.directory / "n1"
        assert stat.S_IMODE(store.stat().st_mode) == 0o700
        for path in [*store.rglob("*"), *node.certs.glob("*.key")]:
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
        assert stat.S_IMODE(node.certs.stat().st_mode) == 0o700
    finally:
        node.end()
    store.chmod(0o755)
    again = Node(shell)
    try:
        again.said("chmod 700")
    finally:
        again.end()
