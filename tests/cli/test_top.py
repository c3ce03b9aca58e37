"""`torchyard top`: pictures of the screens in a small and a large terminal, and what its keys do.

`TORCHYARD_WRITE_GOLDEN=1 pytest tests/cli/test_top.py` writes the pictures again; read the difference, then commit.
"""

import asyncio
import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.cli.conftest import CommandLine
from tests.cli.test_reading import controlled, log
from tests.support.cli.recorded import FAILED, RUNNING, SUCCEEDED

from torchyard.api.resource import status_document
from torchyard.cli.top import job, source
from torchyard.cli.top.actions import Question
from torchyard.cli.top.app import ListScreen, Table, Top
from torchyard.cli.top.job import JobScreen, LogScreen
from torchyard.client.location import HERE
from torchyard.local.run import RunFolder, read_run

PICTURES = Path(__file__).parent / "pictures"
SMALL, LARGE = (80, 24), (160, 40)
NOW = 1_795_993_800.0
HOSTILE = "[bold red]x[/] [@click=app.quit]\x1b[31mevil\x1b]0;title\x07"


@pytest.fixture
def runs(torchyard: CommandLine, monkeypatch):
    monkeypatch.setenv("TORCHYARD_HOME", str(torchyard.home))
    for module in (source, job):
        monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: NOW))
    running = torchyard.record("llama", status_document(RUNNING.status))
    rows = [{"step": step, "loss": 4.0 / (1 + step / 10), "lr": 0.1} for step in range(200)]
    (running / "checkpoints").mkdir(exist_ok=True)
    (running / "checkpoints/metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    log(running, "llama-0-0", 0, "hello\n" + HOSTILE + "\n")
    torchyard.record("failed", status_document(FAILED.status))
    torchyard.record("done", status_document(SUCCEEDED.status))
    lock = controlled(running)
    yield running
    del lock


@pytest.fixture
def top(runs):
    return Top(source.Source(HERE))


def screen_text(app):
    """What the terminal shows, a line each."""
    strips = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in strips) + "\n"


async def shown(pilot, *words):
    """Wait until the screen shows all words; return its text."""
    text = ""
    try:
        async with asyncio.timeout(60):
            while not all(word in text for word in words):
                await pilot.pause(0.01)
                text = screen_text(pilot.app)
    except TimeoutError:
        raise AssertionError(f"not all of {words} in\n{text}") from None
    return text


async def hidden(pilot, condition):
    async with asyncio.timeout(60):
        while condition():
            await pilot.pause(0.01)


def compare(name, text):
    text = text.replace(os.environ["TORCHYARD_HOME"], "$TORCHYARD_HOME")
    path = PICTURES / f"{name}.txt"
    if os.environ.get("TORCHYARD_WRITE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("size", [SMALL, LARGE], ids="{0[0]}x{0[1]}".format)
async def test_list_and_job_in_a_small_and_a_large_terminal(top, size):
    where = f"{size[0]}x{size[1]}"
    async with top.run_test(size=size) as pilot:
        compare(f"list-{where}", await shown(pilot, "llama", "failed", "done", "q Quit"))
        await pilot.press("slash", *"llama", "enter", "enter")
        compare(f"job-{where}", await shown(pilot, "1 of 2", "progress", "esc Back"))


async def test_arrow_keys_choose_the_metric(top):
    async with top.run_test(size=SMALL) as pilot:
        await pilot.press("slash", *"llama", "enter", "enter")
        await shown(pilot, "loss  lowest")
        await pilot.press("right")
        assert "lr  lowest 0.1" in await shown(pilot, "2 of 2")


async def test_the_filter_chooses_and_escape_shows_all_again(top):
    async with top.run_test(size=SMALL) as pilot:
        await shown(pilot, "llama", "done")
        await pilot.press("slash", *"fail")
        await hidden(pilot, lambda: "llama" in screen_text(top))
        await pilot.press("escape")
        await shown(pilot, "llama", "done", "failed")


async def test_suspend_asks_and_only_yes_acts(top, runs):
    async with top.run_test(size=SMALL) as pilot:
        await shown(pilot, "llama")
        await pilot.press("slash", *"llama", "enter")
        for key, suspended in (("n", False), ("y", True)):
            await pilot.press("s")
            await shown(pilot, "Stop llama? It saves a checkpoint and stops.")
            assert isinstance(top.screen, Question)
            await pilot.press(key)
            await hidden(pilot, lambda: isinstance(top.screen, Question))
            await top.workers.wait_for_complete([each for each in top.screen.workers if each.group == "act"])
            assert bool(read_run(RunFolder(runs)).spec.suspend) is suspended


async def test_what_a_program_writes_is_no_markup_and_no_escape_sequence(top):
    async with top.run_test(size=SMALL) as pilot:
        await pilot.press("slash", *"llama", "enter", "l")
        text = await shown(pilot, "hello", "evil")
        assert isinstance(top.screen, LogScreen)
        assert "[bold red]x[/] [@click=app.quit]" in text
        assert "\x1b" not in text
        await pilot.press("escape")
        assert isinstance(top.screen, ListScreen)


async def test_the_cursor_stays_at_its_job_when_others_appear(top, torchyard):
    async with top.run_test(size=SMALL) as pilot:
        await shown(pilot, "llama", "failed", "done")
        table = top.screen.query_one(Table)
        table.move_cursor(row=top.screen._keys.index(("", "failed")))
        torchyard.record("another", status_document(SUCCEEDED.status))
        await shown(pilot, "another")
        assert top.screen.chosen == ("", "failed")


async def test_a_job_that_is_gone_says_so_and_the_view_goes_on(top, runs):
    async with top.run_test(size=SMALL) as pilot:
        top.push_screen(JobScreen(top.source, "nowhere"))
        await shown(pilot, "nowhere")


def test_without_a_terminal_it_names_ps(torchyard: CommandLine):
    done = torchyard("top")
    assert done.returncode == 1
    assert "torchyard ps" in done.stderr
