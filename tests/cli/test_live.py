"""The live view shows recorded states truthfully, at every width, and gives the terminal back."""

import io
import re

import pytest
from rich.console import Console
from tests.support.cli.recorded import EVENTS, FAILED, LOSSES, NOW, PENDING, RANKS, RUNNING, SUCCEEDED, job

from torchyard.cli.live import LiveView, render
from torchyard.cli.picture import Picture
from torchyard.cli.ranks import Rank

WHOLE = Picture(RUNNING, NOW, RANKS, LOSSES, EVENTS)


def drawn(picture: Picture, width: int = 100, height: int = 40) -> str:
    console = Console(width=width, height=height, record=True, file=io.StringIO(), force_terminal=True)
    console.print(render(picture, width, height))
    return console.export_text()


def test_a_running_job_shows_all_that_matters() -> None:
    text = drawn(WHOLE)
    for part in (
        "cvrp", "Running", "round 2", "age 4m10s", "restarts 1", "nodes 2/2",
        "12%", "step 120/1000", "3.100 step/s", "ETA 4m10s",
        "loss 3", "1.800", "step 0", "step 120",
        "cost 5.210", "costNearest 5.620", "gapPercent -7.300",
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


@pytest.mark.parametrize("height", [16, 20, 24, 40])
def test_the_view_fits_the_height_of_the_terminal(height: int) -> None:
    assert len(drawn(WHOLE, 100, height).splitlines()) <= height


@pytest.mark.parametrize("recorded", [PENDING, FAILED, SUCCEEDED, job(""), job("Starting")])
def test_states_without_progress_say_why(recorded: object) -> None:
    text = drawn(Picture(recorded, NOW))  # type: ignore[arg-type]
    status = recorded.status  # type: ignore[attr-defined]
    assert (status.state or "Pending") in text
    assert status.message.split(":")[0] in text


def test_of_many_ranks_those_behind_are_shown() -> None:
    ranks = tuple(Rank(r, f"p-{r}", f"local-{r}", "step", 100 - r, r, NOW) for r in range(64))
    text = drawn(WHOLE._replace(ranks=ranks))
    assert "p-63" in text
    assert "p-3 " not in text
    assert "and 56 more ranks" in text


def test_no_color_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    console = Console(width=100, height=40, file=(stream := io.StringIO()), force_terminal=True)
    console.print(render(WHOLE, 100, 40))
    assert not re.search(r"\x1b\[[0-9;]*(3[0-7]|9[0-7]|38|48)[;m]", stream.getvalue())


def test_what_was_shown_last_stays_on_the_screen_and_the_cursor_comes_back() -> None:
    console = Console(width=80, height=30, file=(stream := io.StringIO()), force_terminal=True)
    view = LiveView(console)
    view.show(WHOLE)
    view.close(Picture(SUCCEEDED, NOW, RANKS, LOSSES, EVENTS))
    assert "Succeeded" in stream.getvalue()
    assert stream.getvalue().rindex("\x1b[?25h") > stream.getvalue().rindex("Succeeded")
