"""Without a terminal there is one line a change, and progress now and then."""

import io
import time

import msgspec
import pytest
from tests.support.cli.recorded import EVENTS, FAILED, NOW, RUNNING, SUCCEEDED, job

from torchyard.api.status import State
from torchyard.cli.views.snapshot import PlainView, Snapshot
from torchyard.local.run import Event


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


def lines(*pictures: Snapshot) -> list[str]:
    view = PlainView(stream := io.StringIO(), every=10)
    for picture in pictures:
        view.show(picture)
    return stream.getvalue().splitlines()


def at_step(step: int, **more: float) -> object:
    progress = msgspec.structs.replace(RUNNING.status.progress, step=step, **more)
    return msgspec.structs.replace(RUNNING, status=msgspec.structs.replace(RUNNING.status, progress=progress))


def test_progress_is_one_line_in_a_fixed_form() -> None:
    assert lines(Snapshot(RUNNING, NOW)) == [
        "07:00:00 Running round 2 step 120/1000 12% loss 1.930 3.1 steps/s eta 4m10s: Round 2 is training."
    ]


def test_an_epoch_is_said_where_it_is_known() -> None:
    (said,) = lines(Snapshot(at_step(120, epoch=1.44), NOW))  # type: ignore[arg-type]
    assert " 12% epoch 1.4 loss " in said


def test_nothing_new_is_nothing_said() -> None:
    assert len(lines(*[Snapshot(RUNNING, NOW + second) for second in range(60)])) == 1


def test_progress_is_said_every_so_often_and_not_more() -> None:
    said = lines(*[Snapshot(at_step(120 + second), NOW + second) for second in range(31)])  # type: ignore[arg-type]
    assert [line.split()[0] for line in said] == ["07:00:00", "07:00:10", "07:00:20", "07:00:30"]


def test_every_change_of_state_is_said_at_once() -> None:
    said = lines(Snapshot(job("Pending"), NOW), Snapshot(RUNNING, NOW + 1), Snapshot(SUCCEEDED, NOW + 2))
    assert [line.split()[1] for line in said] == ["Pending", "Running", "Succeeded"]


def test_a_warning_is_said_once_and_its_control_characters_are_gone() -> None:
    said = lines(Snapshot(RUNNING, NOW, events=EVENTS), Snapshot(FAILED, NOW + 1, events=EVENTS))
    assert [line for line in said if "Warning" in line] == [
        "06:57:00 Warning WorkerFailed: Rank 1 on cvrp-0-1 was killed (exit 137)."
    ]


@pytest.mark.parametrize("flags", ["", " -n team"])
def test_commands_in_messages_name_the_job_and_where_it_is(flags: str) -> None:
    event = Event(time="2026-11-21T06:57:00Z", type="Warning", reason="WorkerFailed", message="x; see `torchyard logs`")
    status = msgspec.structs.replace(RUNNING.status, message="no step; `torchyard stacks` shows where the ranks are")
    said = lines(Snapshot(msgspec.structs.replace(RUNNING, status=status), NOW, events=(event,), flags=flags))
    assert f"x; see `torchyard logs cvrp{flags}`" in said[0]
    assert f"no step; `torchyard stacks cvrp{flags}` shows where the ranks are" in said[1]


def test_how_a_job_failed_is_left_to_the_lines_after_the_view() -> None:
    event = Event(time="2026-11-21T07:00:00Z", type="Warning", reason="NoProgress", message=FAILED.status.message)
    said = lines(Snapshot(FAILED, NOW, events=[event]))
    assert len(said) == 1
    assert FAILED.status.message not in said[0]


def test_a_failure_is_said_once_by_its_event() -> None:
    event = Event(time="2026-11-21T07:00:00Z", type="Warning", reason="X", message="Round 1 ended: it broke; fix it")
    status = msgspec.structs.replace(RUNNING.status, state=State("Recovering"), reason="X", message="it broke; fix it")
    said = lines(Snapshot(msgspec.structs.replace(RUNNING, status=status), NOW, events=[event]))
    assert [line.count("it broke") for line in said] == [1, 0]


def test_a_message_that_changes_while_nothing_moves_is_said_with_the_next_line() -> None:
    old = msgspec.structs.replace(RUNNING.status, message="the last step was made more than 1m ago")
    late = msgspec.structs.replace(RUNNING, status=old)
    said = lines(Snapshot(RUNNING, NOW), *(Snapshot(late, NOW + second) for second in range(1, 40)))
    assert [line.endswith("more than 1m ago") for line in said] == [False, True]
