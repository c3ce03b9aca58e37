"""Output repeated on the agent's own: a reader may stall, at no cost to the agent but lines that are counted."""

import os
import re
import threading

import pytest

from torchyard_agent.telemetry import log_forwarder
from torchyard_agent.telemetry.log_forwarder import LogForwarder

LINE = "x" * 1000


@pytest.fixture
def pipe():
    """The stream to write to, and a function that begins to read: all that was read so far."""
    reading, writing = os.pipe()
    stream = os.fdopen(writing, "wb")
    seen = bytearray()

    def drain():
        while data := os.read(reading, 1 << 16):
            seen.extend(data)

    thread = threading.Thread(target=drain)

    def read():
        thread.start()
        return seen

    yield stream, read
    stream.close()
    if thread.ident:
        thread.join()
    os.close(reading)


def test_a_reader_that_stalls_costs_lines_and_neither_time_nor_memory(pipe, until, monkeypatch):
    monkeypatch.setattr(log_forwarder, "WAITING_BYTES", 200_000)
    stream, read = pipe
    one = LogForwarder(stream)
    for _ in range(100):
        one.say(3, [LINE] * 20)
    seen = read()

    def told():
        one.say(3, ["after"])
        return b"left out" in seen

    until(told)
    one.close()
    stream.flush()
    until(lambda: seen.endswith(b"after\n"))
    text = seen.decode()
    kept, left_out = text.count(LINE), sum(map(int, re.findall(r"\[agent\] (\d+) lines left out", text)))
    assert len(LINE) * kept < 200_000 + (1 << 16) + len(LINE) * 20
    assert kept + left_out >= 2000, "every line is there or counted"
    assert text.startswith(f"[rank 3] {LINE}\n")


def test_the_end_does_not_wait_for_a_reader_that_never_comes(pipe, monkeypatch):
    monkeypatch.setattr(log_forwarder, "_CLOSE_SECONDS", 0.05)
    stream, read = pipe
    one = LogForwarder(stream)
    one.say(0, [LINE] * 200)
    one.close()
    read()  # the writing thread ends


def test_text_of_any_kind_comes_out_as_utf_8(pipe, until):
    stream, read = pipe
    one = LogForwarder(stream)
    one.say(0, ["grün \ud800 終"])
    one.close()
    seen = read()
    until(lambda: seen == "[rank 0] grün ? 終\n".encode())
