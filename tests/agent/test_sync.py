"""What the agent reports after a command: its outcome, never the state before it."""

import pytest
from tests.support.agents.small_intake import Intake

from torchyard_agent.control.sync import Sync


@pytest.fixture
def intake():
    one = Intake(interval=5.0)
    yield one
    one.close()


@pytest.fixture
def sync(tmp_path, intake, until):
    """Return the connection of an agent that has received `run` and has not executed it yet."""
    (tmp_path / "token").write_text("pod-0")
    one = Sync(intake.url, tmp_path / "token", None, "instance", lambda: None)
    one.publish({"state": "ready"}, obeyed=0, urgent=True)
    one.start()
    until(lambda: one.revision)
    one.publish({"state": "ready"}, obeyed=one.revision, urgent=False)
    intake.tell("pod-0", "run", round=1)
    until(lambda: one.pending_command()[0]["verb"] == "run")
    yield one
    one.close()


def test_the_request_after_a_command_reports_its_result(sync, intake):
    """Else its `ready` of before could be taken for one that has the round behind it."""
    with intake.changed:  # what must not come has the time to
        intake.changed.wait_for(lambda: intake.state("pod-0")["revision"] == sync.revision, 0.5)
    sync.publish({"state": "running"}, obeyed=sync.revision, urgent=True)
    intake.wait_for("pod-0", lambda state: state["revision"] == sync.revision)
    assert {each["state"] for each in intake.requests["pod-0"] if each["revision"] == sync.revision} == {"running"}


def test_an_agent_that_executes_a_slow_command_keeps_reporting(sync, intake):
    before = intake.state("pod-0")["sequence"]
    said = intake.wait_for("pod-0", lambda state: state["sequence"] > before)
    assert (said["state"], said["revision"] < sync.revision) == ("ready", True)
