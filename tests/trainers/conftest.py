from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.trainers.gangs import ForkServer, Yard


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    server = ForkServer()
    yield server
    server.close()


@pytest.fixture
def yard(fork_server: ForkServer, tmp_path: Path) -> Yard:
    return Yard(fork_server, tmp_path)


@pytest.fixture
def calm(fork_server: ForkServer, tmp_path: Path) -> Yard:
    """Folders of a second run, which nothing disturbs."""
    (tmp_path / "calm").mkdir()
    return Yard(fork_server, tmp_path / "calm")
