"""A gang whose requirements are installed before a round: what is shown, what it costs, what agents are sent."""

from msgspec.structs import replace
from tests.support.reconcile.world import World

from torchyard.api.exit_codes import ExitCode
from torchyard.api.names import CODE_ARRIVED
from torchyard.api.spec_code import Code
from torchyard.reconcile.observed import RequirementsReport

DIGEST = "ab" * 32
INSTALLING = RequirementsReport(state="installing", packages=14)
READY = RequirementsReport(state="ready", packages=14)


def started():
    """A gang of two whose agents have just connected."""
    world = World(2, code=Code(path=".", requirements="uv.lock", wheels="wheels", digest=DIGEST))
    world.job = replace(world.job, metadata=replace(world.job.metadata, annotations={CODE_ARRIVED: DIGEST}))
    world.settle()
    world.start_pods()
    return world


def have(world, *reports):
    for index, report in enumerate(reports):
        uid = world.at(index)
        state = "ready" if report.state == "ready" else "starting"
        world.agents[uid] = replace(world.agents[uid], state=state, requirements=report)
    world.settle()
    return world.status


def test_packages_and_pods_are_named_and_the_time_is_that_of_requirements():
    world = started()
    status = have(world, READY, replace(INSTALLING, message="HTTP 503"))
    assert (status.state, status.reason) == ("Starting", "InstallingRequirements")
    assert "14 packages in job-0-1, HTTP 503" in status.message
    world.now += 3600  # far beyond startTimeout
    status = have(world, READY, READY)
    assert (status.round, status.goodput.seconds["requirements"]) == (1, 3600)
    commands = {command.verb: command for command in world.commands.values()}
    assert commands["run"].bundle == {"digest": DIGEST, "requirements": "uv.lock", "wheels": "wheels"}


def test_what_cannot_be_installed_ends_the_job_and_what_cannot_be_fetched_replaces_the_pod():
    world = started()
    world.end_pod(world.at(0), ExitCode.REQUIREMENTS_NOT_INSTALLED, "", "requirements: uv: connection refused")
    world.settle()
    assert (world.status.state, world.status.reason) == ("Recovering", "RequirementsNotInstalled")
    world = started()
    world.end_pod(world.at(0), ExitCode.REQUIREMENTS_FAILED, "", "requirements: uv: no version of a==9")
    world.settle()
    assert (world.status.state, world.status.reason) == ("Failed", "RequirementsFailed")
    assert "no version of a==9" in world.status.message
