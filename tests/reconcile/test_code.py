"""A job whose code travels with it: no pod exists before the code has arrived, and rounds name it."""

from msgspec.structs import replace
from tests.support.reconcile.world import World

from torchyard.api.names import CODE_ARRIVED
from torchyard.api.spec_code import Code

DIGEST = "ab" * 32


def arrive(world, digest=DIGEST):
    metadata = replace(world.job.metadata, annotations={CODE_ARRIVED: digest})
    world.job = replace(world.job, metadata=metadata)
    world.settle()


def test_no_pod_is_created_before_the_code_has_arrived():
    world = World(2, code=Code(digest=DIGEST, commit="c" * 40, branch="main", diff="-1\n+2\n"))
    world.settle()
    assert (world.status.state, world.status.reason, world.pods) == ("Pending", "CodeMissing", {})
    arrive(world, "cd" * 32)
    assert (world.status.reason, world.pods) == ("CodeMissing", {})
    arrive(world)
    assert len(world.pods) == 2
    world.to_running()
    commands = {command.verb: command for command in world.commands.values()}
    assert commands["run"].bundle == {"digest": DIGEST, "commit": "c" * 40, "branch": "main", "diff": "-1\n+2\n"}
    assert (world.status.code.digest, world.status.code.branch, world.status.code.changed) == (DIGEST, "main", True)


def test_a_folder_that_only_exists_elsewhere_is_named():
    world = World(1, code=Code(path="src"))
    world.settle()
    assert "spec.code.path is src, a folder of the machine that the job was written on" in world.status.message
