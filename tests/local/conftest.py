"""Runs in a home of their own; waiting on what can be seen, never for a time."""

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from torchyard.cluster.local.folder import RunFolder
from torchyard.cluster.local.process import carrying


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory) -> Path:
    """The agent zipapp is built once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def home(tmp_path, shared_cache, monkeypatch) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    (home / "cache").symlink_to(shared_cache)
    monkeypatch.setenv("TORCHYARD_HOME", str(home))
    return home


@pytest.fixture
def folder(home) -> Iterator[RunFolder]:
    """A run, none of whose processes may be left when the test is over."""
    folder = RunFolder(home / "runs" / "demo")
    yield folder
    left = [one for one in carrying("TORCHYARD_CHECKPOINT_DIR", str(folder.checkpoints)) if one.alive()]
    for process in left:
        process.kill(signal.SIGKILL)
    assert not left, "the test left processes behind"


@pytest.fixture
def until():
    async def wait(condition: Callable[[], Any], seconds: float = 30.0, what: str = "") -> Any:
        deadline = time.monotonic() + seconds
        while not (seen := condition()):
            assert time.monotonic() < deadline, f"not within {seconds} s: {what or condition}"
            await asyncio.sleep(0.02)
        return seen

    return wait
