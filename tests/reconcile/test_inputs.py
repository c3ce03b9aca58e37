"""A gang whose inputs are fetched before its first round: what is shown, what it costs, and how it fails."""

import pytest
from msgspec.structs import replace
from tests.support.reconcile.world import World

from torchyard.api.exit_codes import ExitCode
from torchyard.api.inputs import settings
from torchyard.api.spec_placement import Input
from torchyard.api.spec_reliability import Health
from torchyard.api.values import Duration
from torchyard.reconcile.observed import InputReport

WAITING = InputReport(name="model", state="waiting")
FETCHING = InputReport(name="model", state="fetching", revision="r1", bytes=1 << 30, total_bytes=4 << 30)
READY = InputReport(name="model", state="ready", revision="r1", bytes=4 << 30, total_bytes=4 << 30, files=3)


def started(**spec):
    """A gang of two whose agents have just connected."""
    world = World(2, inputs=[Input(name="model", source="hf://org/model@main")], **spec)
    world.settle()
    world.start_pods()
    return world


def have(world, *reports):
    """Each pod reports its input; its agent is ready once that is."""
    for index, report in enumerate(reports):
        uid = world.at(index)
        state = "ready" if report.is_ready else "starting"
        world.agents[uid] = replace(world.agents[uid], state=state, inputs=(report,))
    world.settle()
    return world.status


def test_the_pod_that_has_the_least_is_shown_and_the_time_is_that_of_inputs():
    world = started(health=Health(start_timeout=Duration("5m")))
    status = have(world, READY, WAITING)
    assert (status.state, status.reason) == ("Starting", "FetchingInputs")
    assert status.message == "the inputs of the job are being fetched (model in job-0-1: waiting)"
    world.now += 100
    status = have(world, READY, replace(FETCHING, message="HTTP 503"))
    assert "model in job-0-1: 1 GiB of 4 GiB, HTTP 503" in status.message
    assert (status.inputs[0].state, status.inputs[0].bytes, status.inputs[0].revision) == ("fetching", 1 << 30, "r1")
    world.now += 3600  # far beyond startTimeout
    status = have(world, READY, READY)
    assert (status.round, status.state) == (1, "Starting")
    assert status.goodput.seconds["inputs"] == pytest.approx(3700)
    assert (status.inputs[0].state, status.inputs[0].files) == ("ready", 3)


def test_a_pod_that_comes_later_fetches_while_the_others_wait():
    world = started()
    have(world, READY, READY)
    world.vanish(world.at(1))
    world.settle()
    world.now += 60
    world.settle()
    world.start_pods()
    status = have(world, READY, FETCHING)
    assert (status.state, status.reason, status.rendezvous.delayed) == ("Recovering", "FetchingInputs", True)
    assert have(world, READY, READY).round == 2


def test_another_source_is_not_pinned_to_the_revision_of_the_former_one():
    world = started()
    assert "r1" in settings(replace(world.job, status=have(world, READY, READY)), "c", "v")["TORCHYARD_INPUTS"]
    world.edit(inputs=[Input(name="model", source="hf://org/model@next")])
    assert "r1" not in settings(world.job, "c", "v")["TORCHYARD_INPUTS"]


def test_pods_that_have_fetched_different_revisions_do_not_train_together():
    world = started()
    status = have(world, READY, replace(READY, revision="r2"))
    assert (status.round, status.reason) == (0, "GangDiffers")
    assert "job-0-0 has input model at r1, job-0-1 at r2" in status.message
    assert status.inputs[0].revision == "r1"  # what all pods of the next gang fetch


def end(world, code, message):
    world.end_pod(world.at(0), code, "", message)
    world.settle()
    return world.status


def test_an_input_that_is_rejected_ends_the_job_at_once():
    status = end(started(), ExitCode.INPUT_REJECTED, "input model: 404 Repository Not Found")
    assert (status.state, status.reason, status.exit_code) == ("Failed", "InputRejected", ExitCode.INPUT_REJECTED)
    assert "input model: 404 Repository Not Found" in status.message


def test_an_input_that_cannot_be_fetched_is_tried_by_three_pods_and_costs_no_restart():
    world = started()
    for attempt in range(1, 4):
        status = end(world, ExitCode.INPUT_NOT_FETCHED, "input model: Connection refused (6 attempts)")
        assert (len(status.attempts), status.restarts.counted) == (attempt, 0)
        if attempt < 3:
            assert (status.state, status.reason) == ("Recovering", "InputNotFetched")
            world.now += 60
            world.settle()
            world.start_pods()
    assert (status.state, status.reason) == ("Failed", "InputNotFetched")
    assert "3 attempts in a row, the last one: " in status.message
