import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from gangs import ForkServer, Yard

# A busy machine is no defect of the code under test.
hypothesis.settings.register_profile("trainers", deadline=None)
hypothesis.settings.load_profile("trainers")


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
