"""Logs of the ranks: bounded whatever a program writes, and its last words kept."""

import os
import re

import pytest

from torchyard_agent.telemetry.logs import RankLog, bound_stderr
from torchyard_agent.telemetry.patterns import Patterns


def test_a_rank_log_keeps_last_lines_bounded_survives_rotation_and_starts_where_the_round_starts(tmp_path, monkeypatch):
    path = tmp_path / "rank-0.log"
    path.write_bytes("of the round before 🏖️\n".encode())
    log = RankLog(tmp_path, 0)
    with path.open("ab") as file:
        for number in range(500):
            file.write(b"progress\r" * 5 + b"line %d " % number + b"x" * 3000 + b"\n")
    log.finish()
    assert len(log.lines) == 200
    assert log.lines[-1].startswith("line 499 ")
    assert max(map(len, log.lines)) <= 1000
    assert sum(len(line) + 1 for line in log.last(20, 4096)) <= 4096
    monkeypatch.setattr("torchyard_agent.telemetry.logs.ROTATE_BYTES", 10)
    with path.open("ab") as file:
        file.write(b"last words\n")
        file.flush()
        assert log.follow() == ["last words"]
        monkeypatch.undo()
        file.write(b"after the cut")
        file.flush()
        log.finish()
    assert log.lines[-1] == "after the cut"
    assert path.read_bytes() == b"after the cut"


LOSS = Patterns([re.compile(r"loss=(?P<loss>[\d.]+)")])
MEBIBYTE = 1 << 20


def test_the_last_lines_of_a_flooded_log_are_kept_and_reading_is_bounded(tmp_path):
    log, path = RankLog(tmp_path, 0), tmp_path / "rank-0.log"
    path.write_bytes(b"loss=1\n" * MEBIBYTE + b"." * (3 * MEBIBYTE) + b"\nRuntimeError: why it ended")
    assert log.finish()[-1] == "RuntimeError: why it ended"
    assert log.lines[-1] == "RuntimeError: why it ended"
    assert log.follow() == []


def test_a_log_written_faster_than_it_is_read_is_truncated_and_skipped_lines_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr("torchyard_agent.telemetry.logs.ROTATE_BYTES", 3 * MEBIBYTE)
    log, path = RankLog(tmp_path, 0), tmp_path / "rank-0.log"
    with path.open("ab", buffering=0) as file:
        for number in range(8):
            file.write((b"x" * 1023 + b"\n") * 2048 + b"%d\n" % number)
            lines = log.follow()
            assert path.stat().st_size <= 3 * MEBIBYTE
        assert path.with_suffix(".log.1").stat().st_size <= 3 * MEBIBYTE
        assert lines[-1] == "7"
        assert "bytes skipped] " in lines[0]


@pytest.mark.parametrize(("written", "left"), [(b"short\n", b"short\n"), (b"x" * 11, b"")])
def test_standard_error_is_cut_where_it_is_a_file_and_long(tmp_path, written, left):
    path = tmp_path / "pod.log"
    with path.open("ab", buffering=0) as file:
        file.write(written)
        bound_stderr(file.fileno(), most=10)
        assert path.read_bytes() == left
        file.write(b"goes on\n")
    assert path.read_bytes() == left + b"goes on\n"


def test_standard_error_that_is_read_is_left_alone():
    reader, writer = os.pipe()
    os.write(writer, b"x" * 11)
    bound_stderr(writer, most=10)
    assert os.read(reader, 100) == b"x" * 11
    os.close(reader)
    bound_stderr(writer, most=10)
    os.close(writer)
    bound_stderr(writer, most=10)


# What each kind of program writes, in pieces as they arrive; what a pattern finds; what is kept as evidence.
OUTPUTS = {
    "CR LF line ends": ([b"step=1 loss=3\r\nstep=2 loss=2\r", b"\nlast words\r\n"], [3, 2], "last words"),
    "tqdm": ([b"\r 10% loss=3\r 20% loss=2", b"\r 30% loss=1"], [3, 2, 1], " 30% loss=1"),
    "tqdm that closes": ([b"\r 50% loss=3\r100% loss=2\n", b"done\n"], [3, 2], "done"),
    "Keras of old: backspaces": ([b"1/2 loss=3\b\b\b\b", b"\b\b\b\b\b2/2 loss=2\n"], [3, 2], "2/2 loss=2"),
    "Keras: a carriage return at the end": ([b"1/2 loss=3\r", b"2/2 loss=2\r", b"\n"], [3, 2], "2/2 loss=2"),
    "colours between name and value": ([b"\x1b[32mloss\x1b[0m=\x1b[1;31m3\x1b[0m \x1b[K\n"], [3], "loss=3 "),
    "rich, which moves the cursor": ([b"\x1b[2K\x1b[1Aloss=3\r\x1b[2Kloss=2\n"], [3, 2], "loss=2"),
    "a link of a terminal": ([b"\x1b]8;;https://x\x1b\\loss=3\x1b]8;;\x07\n"], [3], "loss=3"),
    "a line in two pieces": ([b"lo", b"ss=3", b"1\n"], [31], "loss=31"),
    "no end of line": ([b"loss=3"], [3], "loss=3"),
    "many lines at once": ([b"loss=3\nloss=2\nloss=1\n"], [3, 2, 1], "loss=1"),
}


@pytest.mark.parametrize(("pieces", "losses", "last"), OUTPUTS.values(), ids=OUTPUTS)
def test_every_update_of_a_metric_is_found_and_evidence_reads_as_on_a_terminal(tmp_path, pieces, losses, last):
    log, path = RankLog(tmp_path, 0, LOSS), tmp_path / "rank-0.log"
    found = []
    for piece in pieces:
        with path.open("ab") as file:
            file.write(piece)
        log.follow()
        found += log.matches
    log.finish()
    found += log.matches
    assert [match["loss"] for match in found] == losses
    assert log.lines[-1] == last


def test_a_progress_bar_is_followed_before_it_closes(tmp_path):
    log, path = RankLog(tmp_path, 0, LOSS), tmp_path / "rank-0.log"
    path.write_bytes(b"".join(b"\r%5d/20000 loss=%d.5 |#####" % (step, step) for step in range(20_000)))
    assert log.follow() == []
    assert [match["loss"] for match in log.matches] == [step + 0.5 for step in range(19_999)]
