"""What tests of a node behind certificates share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from slackwater.runtime.certs import create_ca, create_client, create_node, create_operator

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of one authority: a node on loopback, the operator root, and the clients ann and bob."""
    directory = tmp_path_factory.mktemp("certs")
    create_ca(directory)
    create_node(directory, ["127.0.0.1"])
    create_operator(directory, "root")
    create_client(directory, "ann")
    create_client(directory, "bob")
    return directory
