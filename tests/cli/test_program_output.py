"""The output of a program follows as it is written: whole lines, bounded, without control characters."""

import os
import threading
from pathlib import Path

import pytest

from torchyard.cli.views.program_output import READ_BYTES, OutputLine, OutputStream, ProgramOutput, several_ranks


def log(pods: Path, rank: int, text: str | bytes, pod: str = "job-0-0") -> Path:
    """Append to the log of a rank."""
    path = pods / pod / "logs" / f"rank-{rank}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(text.encode() if isinstance(text, str) else text)
    return path


def texts(lines: list[OutputLine]) -> list[str]:
    return [f"{line.rank} {line.text}" for line in lines]


def streamed(pods: Path, *, prefixed: bool = False, after: int = 0) -> bytes:
    """What a stream that is closed at once has written."""
    source, target = os.pipe()
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.extend(iter(lambda: os.read(source, 65536), b"")))
    reader.start()
    output = ProgramOutput(pods, "job", complete=True)
    for rank in range(after):
        log(pods, rank, f"hello from {rank}\n")
    OutputStream(output, target, prefixed=prefixed).close()
    os.close(target)
    reader.join()
    os.close(source)
    return b"".join(found)


def test_lines_come_whole_and_once(tmp_path) -> None:
    output = ProgramOutput(tmp_path, "job")
    log(tmp_path, 0, "one\ntw")
    log(tmp_path, 1, "other\n")
    assert texts(output.look()) == ["0 one", "1 other"]
    log(tmp_path, 0, "o\r\nthree")
    assert texts(output.look()) == ["0 two"]
    assert output.look() == []
    assert texts(output.look(last=True)) == ["0 three"], "nothing will end this line any more"
    assert texts(output.tail()) == ["0 one", "1 other", "0 two", "0 three"]


def test_what_an_earlier_round_wrote_is_context_and_not_news(tmp_path) -> None:
    log(tmp_path, 0, "".join(f"line {n}\n" for n in range(5000)))
    output = ProgramOutput(tmp_path, "job")
    assert output.look() == []
    assert output.tail()[-1].text == "line 4999"
    assert all(line.text.startswith("line ") for line in output.tail()), "no line is torn"


def test_a_flood_is_cut_and_says_how_much_is_missing(tmp_path) -> None:
    output = ProgramOutput(tmp_path, "job")
    log(tmp_path, 0, "x" * 99 + "\n")
    output.look()
    log(tmp_path, 0, ("x" * 99 + "\n") * 100_000 + "the end\n")
    lines = output.look()
    assert sum(len(line.text) + 1 for line in lines) <= READ_BYTES + 200
    assert lines[0].text == "[9.41 MiB of output left out; `torchyard logs job` has what is kept]"
    assert {line.text for line in lines[1:-1]} == {"x" * 99}
    assert lines[-1].text == "the end"


def test_a_flood_without_an_end_of_line_keeps_memory_bounded(tmp_path) -> None:
    output = ProgramOutput(tmp_path, "job")
    for _ in range(20):
        log(tmp_path, 0, "y" * 100_000)
        output.look()
    assert sum(len(line.text) for line in output.tail()) <= 20 * READ_BYTES
    assert max(len(line.text) for line in output.tail()) <= 2 * READ_BYTES


def test_a_program_cannot_steer_the_terminal(tmp_path) -> None:
    output = ProgramOutput(tmp_path, "job")
    log(tmp_path, 0, b"\x1b[2J\x1b[31mred\x1b[0m \xff\x07\n")
    assert texts(output.look()) == ["0 red \ufffd"]


def test_a_progress_bar_shows_what_it_shows_now(tmp_path) -> None:
    output = ProgramOutput(tmp_path, "job")
    log(tmp_path, 0, "epoch 1\n  0%\r 50%\r")
    assert texts(output.look()) == ["0 epoch 1"]
    assert texts(output.tail()) == ["0 epoch 1", "0  50%"]
    assert texts(output.bars(3600)) == ["0  50%"]
    log(tmp_path, 0, " 60%\r")
    output.look()
    assert output.bars(3600) == [], "a stream is not filled with every per cent"
    log(tmp_path, 0, "100%\n")
    assert texts(output.look()) == ["0 100%"]


def test_a_log_that_begins_again_is_read_from_its_start(tmp_path) -> None:
    output = ProgramOutput(tmp_path, "job")
    path = log(tmp_path, 0, "a long first line\n")
    output.look()
    path.write_text("cut\n")
    assert texts(output.look()) == ["0 cut"]
    fresh = path.with_name("fresh")
    fresh.write_text("a new pod of the same name\n")
    fresh.replace(path)
    assert texts(output.look()) == ["0 a new pod of the same name"]
    log(tmp_path, 0, "another round\n", pod="job-1-0")
    assert texts(output.look()) == ["0 another round"]


@pytest.mark.parametrize("lost", [False, True], ids=["read to its end", "not read to its end"])
def test_of_a_log_that_is_turned_over_a_stream_says_what_is_missing(tmp_path, lost) -> None:
    output = ProgramOutput(tmp_path, "job", complete=True)
    path = log(tmp_path, 0, "one\ntwo\n")
    assert texts(output.look()) == ["0 one", "0 two"]
    log(tmp_path, 0, "thr")
    assert texts(output.look()) == []
    path.with_suffix(".log.1").write_text("one\ntwo\nthr" + "ee\nfour\nf" * lost)  # as the agent does
    path.write_text("ive\n" if lost else "ee\n")
    missing = (
        "0 [output that was written faster than it could be copied is left out; `torchyard logs job` has what is kept]"
    )
    assert texts(output.look()) == ([missing, "0 ive"] if lost else ["0 three"])


@pytest.mark.parametrize(
    ("prefixed", "ranks", "written"),
    [
        (False, 1, b"hello from 0\n"),
        (True, 1, b"[rank 0] hello from 0\n"),
        (False, 2, b"[rank 0] hello from 0\n[rank 1] hello from 1\n"),
    ],
    ids=["one rank", "one of several", "two that were not expected"],
)
def test_a_stream_names_ranks_where_there_are_several(tmp_path, prefixed, ranks, written) -> None:
    log(tmp_path, 0, "of an earlier round\n")
    assert streamed(tmp_path, prefixed=prefixed, after=ranks) == written


def test_a_reader_that_went_away_ends_the_stream_and_nothing_else(tmp_path) -> None:
    source, target = os.pipe()
    os.close(source)
    output = ProgramOutput(tmp_path, "job", complete=True)
    log(tmp_path, 0, "not read\n")
    OutputStream(output, target, prefixed=False).close()
    os.close(target)


def test_a_reader_that_stalls_gets_all_of_it_in_the_end(tmp_path) -> None:
    source, target = os.pipe()
    os.set_blocking(target, False)
    output = ProgramOutput(tmp_path, "job", complete=True)
    lines = (f"line {n} of many\n" for n in range(20_000))  # more than a pipe holds, and than a view shows at once
    text = "".join(lines) + "x" * 3 * READ_BYTES + "\nthe end\n"
    log(tmp_path, 0, text)
    stream = OutputStream(output, target, prefixed=False)
    closing = threading.Thread(target=lambda: (stream.close(), os.close(target)))
    closing.start()
    found = b"".join(iter(lambda: os.read(source, 65536), b""))
    closing.join()
    os.close(source)
    assert found.decode() == text


@pytest.mark.parametrize(
    ("spec", "several"),
    [
        ({}, False),
        ({"nodes": 2}, True),
        ({"procsPerNode": 2}, True),
        ({"gpusPerNode": 8}, True),
        ({"gpusPerNode": 8, "procsPerNode": 1}, False),
    ],
)
def test_how_many_ranks_write_is_known_from_the_job(spec, several) -> None:
    from torchyard.api.resource import read_job

    job = read_job({"metadata": {"name": "job"}, "spec": {"script": "pass", **spec}})
    assert several_ranks(job.spec) is several
