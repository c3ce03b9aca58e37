"""What a zygote imports after it became ready, and whether it can still be forked afterwards."""

import json
import os
import socket
import subprocess
import sys

import pytest
from tests.support.waiting import DEADLINE, alive, until

pytestmark = pytest.mark.e2e

THREADS = "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"
ROUND = {"spec": "/no/such/round.json"}


class Served:
    """A zygote, and the agent's end of its socket."""

    def __init__(self, folder):
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(DEADLINE)
        code = "from torchyard_agent.workers import zygote; zygote.main()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, str(theirs.fileno()), str(os.getpid())],
            pass_fds=[theirs.fileno()],
            env={**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"},
        )
        theirs.close()
        self.lines = self.socket.makefile()

    def message(self, kind):
        """Read messages until there is one of this kind; return its value."""
        return next(message[kind] for message in map(json.loads, self.lines) if kind in message)

    def ask(self, *requests):
        self.socket.sendall(b"".join(json.dumps(request).encode() + b"\n" for request in requests))

    def close(self):
        self.lines.close()
        self.socket.close()
        self.process.wait()


@pytest.fixture
def zygote(tmp_path):
    made = []

    def start():
        made.append(Served(tmp_path))
        assert made[-1].message("ready")
        return made[-1]

    yield start
    for each in made:
        each.close()


def test_it_can_be_forked_after_a_later_import(zygote):
    one = zygote()
    one.ask({"import": "torch._dynamo"}, ROUND)
    launcher = one.message("started")
    assert one.message("ended") == launcher  # its round is in no file
    assert not alive(launcher)


@pytest.mark.parametrize(("source", "serves"), [(THREADS, False), ("raise OSError", True)], ids=["threads", "broken"])
def test_a_module_that_starts_threads_ends_it_at_the_next_request_and_a_broken_one_does_not(
    zygote, tmp_path, source, serves
):
    (tmp_path / "late.py").write_text(source)
    one = zygote()
    one.ask({"import": "late"}, {"import": "late"}, ROUND)
    if serves:
        assert one.message("started")
        return
    assert one.message("failed") == "2 threads after importing torch and late"
    until(lambda: one.process.poll() == 0)
