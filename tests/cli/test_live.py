"""The live view shows recorded states truthfully, at every width, and gives the terminal back."""

import io
import re

import msgspec
import pytest
from rich.console import Console
from tests.support.cli.recorded import EVENTS, FAILED, LOSSES, NOW, PENDING, RANKS, RUNNING, SUCCEEDED, job

from torchyard.cli.views.live import LiveView, render
from torchyard.cli.views.program_output import OutputLine
from torchyard.cli.views.snapshot import Snapshot
from torchyard.client.ranks import Rank, Reported, ranks_of
from torchyard.reconcile.observed import RankReport

WHOLE = Snapshot(RUNNING, NOW, RANKS, LOSSES, EVENTS)


def drawn(picture: Snapshot, width: int = 100, height: int = 40) -> str:
    console = Console(width=width, height=height, record=True, file=io.StringIO(), force_terminal=True)
    console.print(render(picture, width, height))
    return console.export_text()


def test_a_running_job_shows_all_that_matters() -> None:
    text = drawn(WHOLE)
    for part in (
        "cvrp", "Running", "round 2", "age 4m10s", "restarts 1", "nodes 2/2",
        "12%", "step 120/1000", "3.1 steps/s", "ETA 4m10s",
        "loss 3", "1.800", "step 0", "step 120",
        "cost 5.210", "costSavings 5.620", "gapSavingsPercent -7.3 %",
        "rank", "cvrp-0-1", "local-1", "118", "45s ago",
        "RoundOpened", "WorkerFailed",
    ):  # fmt: skip
        assert part in text, part
    assert any("\u2800" < character <= "\u28ff" for character in text), "the curve is drawn"


def test_foreign_text_cannot_clear_the_screen() -> None:
    assert "\x1b[2J" not in drawn(WHOLE)
    console = Console(width=100, height=40, file=(stream := io.StringIO()), force_terminal=True)
    console.print(render(WHOLE, 100, 40))
    assert "\x1b[2J" not in stream.getvalue()


@pytest.mark.parametrize("width", [24, 40, 60, 80, 100, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    assert max(map(len, drawn(WHOLE, width).splitlines())) <= width


def crowded() -> Snapshot:
    """Everything there can be, and much of it."""
    metrics = {f"metric{n}OfALongName": n / 7 for n in range(40)} | RUNNING.status.metrics
    status = msgspec.structs.replace(RUNNING.status, metrics=metrics, message="a long message " * 40)
    return Snapshot(
        msgspec.structs.replace(RUNNING, status=status),
        NOW,
        tuple(Rank(r, f"p-{r}", f"local-{r}", "step", 100 - r, r, NOW) for r in range(64)),
        LOSSES,
        EVENTS * 20,
        "saving and stopping",
        [OutputLine(r % 4, f"line {r} \t" + "x" * 300) for r in range(200)],
    )


@pytest.mark.parametrize("height", [7, 10, 16, 20, 24, 40, 100])
@pytest.mark.parametrize("width", [30, 80, 200])
@pytest.mark.parametrize("picture", [WHOLE, crowded()], ids=["usual", "crowded"])
def test_the_view_leaves_a_row_for_the_cursor(picture: Snapshot, width: int, height: int) -> None:
    """A view of more rows than the terminal has would be drawn a second time when it is closed."""
    lines = drawn(picture, width, height).splitlines()
    assert len(lines) <= height - 1
    assert max(map(len, lines)) <= width


def test_a_large_terminal_is_used() -> None:
    small, large = drawn(crowded(), 80, 24), drawn(crowded(), 200, 60)
    assert len(large.splitlines()) >= 55
    assert len(re.findall("line [0-9]+", large)) > len(re.findall("line [0-9]+", small)) >= 2
    assert large.count("RoundOpened") > small.count("RoundOpened") >= 1


def test_the_headline_metric_is_first_and_diagnostics_are_last() -> None:
    metrics = {"advantage": 1e-8, "memoryPeakBytes": 5e8, "trainCost": 5.0} | RUNNING.status.metrics
    job = msgspec.structs.replace(RUNNING, status=msgspec.structs.replace(RUNNING.status, metrics=metrics))
    (line,) = [line for line in drawn(Snapshot(job, NOW), 80, 24).splitlines() if "costSavings" in line]
    assert re.findall("[A-Za-z]+", line)[:4] == ["cost", "gapSavingsPercent", "costSavings", "trainCost"]


def test_the_last_lines_of_the_program_are_shown_with_their_rank() -> None:
    lines = [OutputLine(0, f"step {n}") for n in range(50)] + [OutputLine(1, "the newest")]
    text = drawn(WHOLE._replace(output=lines), 80, 24)
    assert "[rank 0] step 49" in text
    assert "[rank 1] the newest" in text
    assert "[rank 0] step 10 " not in text


def test_a_rank_that_reported_earlier_is_not_called_behind() -> None:
    def report(rank: int, step: int, time: float) -> Reported:
        return Reported(
            "p", "n", RankReport(round=1, rank=rank, step=step, time=time, throughput={"stepsPerSecond": 50})
        )

    ranks = ranks_of([report(0, 100, NOW), report(1, 60, NOW - 0.9), report(2, 20, NOW)])
    assert [rank.lag for rank in ranks] == [0, 0, 29]


@pytest.mark.parametrize("recorded", [PENDING, FAILED, SUCCEEDED, job(""), job("Starting")])
def test_states_without_progress_name_the_cause(recorded: object) -> None:
    text = drawn(Snapshot(recorded, NOW))  # type: ignore[arg-type]
    status = recorded.status  # type: ignore[attr-defined]
    assert (status.state or "Pending") in text
    assert status.message.split(":")[0] in text


def test_of_many_ranks_those_behind_are_shown() -> None:
    ranks = tuple(Rank(r, f"p-{r}", f"local-{r}", "step", 100 - r, r, NOW) for r in range(64))
    text = drawn(WHOLE._replace(ranks=ranks))
    assert "p-63" in text
    assert "p-3 " not in text
    assert "and 49 more ranks" in text


def test_no_color_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    console = Console(width=100, height=40, file=(stream := io.StringIO()), force_terminal=True)
    console.print(render(WHOLE, 100, 40))
    assert not re.search(r"\x1b\[[0-9;]*(3[0-7]|9[0-7]|38|48)[;m]", stream.getvalue())


def test_what_was_shown_last_stays_on_the_screen_and_the_cursor_comes_back() -> None:
    console = Console(width=80, height=30, file=(stream := io.StringIO()), force_terminal=True)
    view = LiveView(console, render)
    view.show(WHOLE)
    view.close(Snapshot(SUCCEEDED, NOW, RANKS, LOSSES, EVENTS))
    assert "Succeeded" in stream.getvalue()
    assert stream.getvalue().rindex("\x1b[?25h") > stream.getvalue().rindex("Succeeded")
