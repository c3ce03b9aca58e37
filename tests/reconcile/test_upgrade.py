"""An operator that takes over from the previous version: it reads the facts that were only in the reason then.

`recorded_statuses.json` holds statuses as the version before `rendezvous.released` and its neighbours wrote them.
"""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.support.reconcile.world import START, World

from torchyard.api.reasons import Kind, Reason
from torchyard.api.resource import read_status, status_document
from torchyard.reconcile.actions import CommandAgent, CreatePod, DeletePod, EmitEvent
from torchyard.reconcile.gang import pause_end
from torchyard.reconcile.transitions import exit_code

RECORDED = json.loads((Path(__file__).parent / "recorded_statuses.json").read_text(encoding="utf-8"))
# (released, silent, delayed), stalled, exit code
FACTS = {
    "Running, Training": ((False, False, False), False, None),
    "Running, StandingStill": ((False, False, False), True, None),
    "Running, AgentSilent": ((False, True, False), None, None),
    "Pending, GangIncomplete": ((True, False, False), None, None),
    "Recovering, InsufficientGPU": ((False, False, True), None, None),
    "Failed, ConfigurationInvalid": ((False, False, False), None, 64),
    "Failed, NoProgress": ((False, False, False), None, 1),
}


def without_facts(document):
    """The document as the previous version would have written it."""
    meet = {key: value for key, value in document["rendezvous"].items() if key not in {"released", "silent", "delayed"}}
    progress = {key: value for key, value in document["progress"].items() if key != "stalled"}
    return {key: value for key, value in document.items() if key != "exitCode"} | {
        "rendezvous": meet,
        "progress": progress,
    }


@pytest.mark.parametrize("name", FACTS)
def test_a_recorded_status_keeps_what_its_reason_implied(name):
    status = read_status(RECORDED[name])
    meet = status.rendezvous
    assert ((meet.released, meet.silent, meet.delayed), status.progress.stalled, status.exit_code) == FACTS[name]
    assert read_status(status_document(status)) == status
    assert exit_code(status) == (status.exit_code or 1)


@pytest.mark.parametrize("name", [name for name in FACTS if name.startswith("Running")])
def test_a_running_job_is_continued_in_its_round(name):
    recorded = read_status(RECORDED[name])
    world = World(len(recorded.rendezvous.members)).to_running()
    world.job = replace(
        world.job,
        status=replace(
            recorded,
            rendezvous=replace(recorded.rendezvous, members=list(world.status.rendezvous.members)),
            observed_generation=world.status.observed_generation,
        ),
    )
    world.now += 5
    world.restart_operator()
    plans = world.settle()
    done = [action for each in plans for action in each.actions]
    assert not [each for each in done if isinstance(each, CreatePod | DeletePod | EmitEvent)]
    assert {(each.verb, each.round) for each in done if isinstance(each, CommandAgent)} == {("run", 1)}
    assert (world.status.state, world.status.round, world.status.restarts.total) == ("Running", 1, 0)


def test_a_released_gang_stays_released_until_its_pause_has_ended():
    world = World(2)
    world.job = replace(world.job, status=read_status(RECORDED["Pending, GangIncomplete"]))
    end = pause_end(world.view(), world.status)
    assert end is not None
    assert end > START
    assert not [each for plan in world.settle() for each in plan.actions if isinstance(each, CreatePod)]
    world.now = end
    assert [each for plan in world.settle() for each in plan.actions if isinstance(each, CreatePod)]


def test_a_job_that_trains_loses_nothing_with_the_new_facts():
    world = World(2).to_running()
    document = json.loads(json.dumps(status_document(world.status)))
    assert read_status(without_facts(document)) == world.status


def test_a_reason_of_a_later_version_is_kept_and_has_no_properties():
    attempt = {"round": 1, "reason": "LaterReason", "cause": {"class": "LaterCause"}}
    written = {"state": "Recovering", "reason": "LaterReason", "attempts": [attempt]}
    status = read_status(written)
    assert status.attempts[0].cause is not None
    reasons = [status.reason, status.attempts[0].reason, status.attempts[0].cause.class_]
    assert [(each.kind, each.stalls, each.counted, Reason.of(each)) for each in reasons] == [
        (Kind.OTHER, False, True, None)
    ] * 3
    again = status_document(status)
    assert (again["reason"], again["attempts"][0]["reason"]) == ("LaterReason", "LaterReason")
    assert again["attempts"][0]["cause"]["class"] == "LaterCause"
    assert (read_status({}).reason, bool(read_status({}).reason)) == ("", False)
