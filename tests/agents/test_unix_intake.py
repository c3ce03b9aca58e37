"""The intake on a Unix socket: who may come near it, whose place it takes, and what it leaves behind."""

import asyncio
import socket
import time

import pytest

from torchyard.agents.registry import AgentRegistry
from torchyard.agents.server import application, unix_intake


async def nobody(_token: str) -> str | None:
    return None


@pytest.fixture
async def app():
    return application(AgentRegistry(time.time, interval=5.0, on_news=lambda _uid: None), nobody)


async def test_a_socket_is_this_users_alone_wherever_it_is_and_goes_with_who_listens(app, tmp_path):
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    path = folder / "intake.sock"
    async with unix_intake(app, path) as url:
        assert len(str(path)) > 108
        assert url == f"unix:{path}"
        assert path.stat().st_mode & 0o777 == 0o600
    assert not path.exists()


async def test_the_next_operator_process_takes_the_place_of_a_socket_whose_listener_died(app, tmp_path):
    path = tmp_path / "intake.sock"
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))
    stale.close()
    async with unix_intake(app, path):
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 "), "who listens now answers"
        writer.close()
        await writer.wait_closed()


async def test_who_stops_listening_leaves_alone_what_has_taken_the_place_of_its_folder(app, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    async with unix_intake(app, folder / "intake.sock"):
        folder.rename(tmp_path / "old")
        folder.mkdir()
        (folder / "intake.sock").touch()
    assert (folder / "intake.sock").exists()
    assert not (tmp_path / "old" / "intake.sock").exists()


async def test_a_folder_that_takes_no_socket_is_an_error_at_once(app, tmp_path):
    (tmp_path / "intake.sock").mkdir()
    with pytest.raises(OSError, match="directory"):
        async with unix_intake(app, tmp_path / "intake.sock"):
            pass
