"""A job with a profile: it waits for one that can be used, keeps what it got, and stops where an edit leaves it."""

import pytest
from msgspec.structs import replace
from tests.support.reconcile.world import World

from torchyard.api.profiles.resource import TrainingProfile, read_profile
from torchyard.api.spec_placement import Scheduling, Toleration
from torchyard.api.spec_profile import Defaults, ProfileScheduling
from torchyard.api.values import Duration
from torchyard.reconcile.profile import apply_profile


def profile(generation=1, uid="p", **spec):
    metadata = {"name": "research", "uid": uid, "generation": generation}
    return read_profile({"metadata": metadata, "spec": spec})


def world(nodes=2, **spec):
    return World(nodes, command=["torchrun", "train.py"], profile="research", **spec)


def edit(made, **fields):
    spec = replace(made.job.spec, **fields)
    metadata = replace(made.job.metadata, generation=made.job.metadata.generation + 1)
    made.job = replace(made.job, spec=spec, metadata=metadata)


IMAGE = {"image": "registry/team/train:1"}
NARROW = {"nodes": 1}


def test_a_job_waits_for_its_profile_and_takes_it_with_its_first_gang():
    made = world()
    made.settle()
    assert (made.status.state, made.status.reason, made.pods) == ("Pending", "ProfileNotFound", {})
    assert "there is no profile research" in made.status.message
    made.profile = profile(generation=4, defaults=IMAGE)
    made.to_running()
    pinned = made.status.profile
    assert (pinned.name, pinned.uid, pinned.generation, pinned.checked_generation) == ("research", "p", 4, 1)
    assert made.view().job.spec.image == IMAGE["image"]
    assert made.job.spec.image is None


def test_the_profile_is_in_the_status_before_a_pod_exists():
    made = world()
    made.profile = profile(defaults=IMAGE)
    kinds = [type(action).__name__ for action in made.step().actions]
    assert kinds.index("WriteStatus") < kinds.index("CreatePod")


def test_a_malformed_profile_is_named_by_field():
    made = world()
    made.profile = TrainingProfile(name="research", problem="spec.limits.nodes: Expected `int`")
    made.settle()
    assert made.status.reason == "ProfileNotFound"
    assert "research: spec.limits.nodes: Expected `int`" in made.status.message


@pytest.mark.parametrize("after", [profile(generation=2, limits=NARROW, defaults={"image": "other:2"}), None])
def test_later_edits_of_a_profile_do_not_touch_a_job_that_runs(after):
    made = world()
    made.profile = profile(defaults=IMAGE)
    made.to_running()
    gang = {*made.pods}
    made.profile = after
    made.settle()
    made.end_pod(min(gang), 1)
    made.settle()
    made.finish_deletions()
    made.to_running()
    assert made.status.profile.generation == 1
    assert made.view().job.spec.image == IMAGE["image"]


def test_a_suspended_job_takes_the_profile_as_it_is_when_it_continues():
    made = world()
    made.profile = profile(defaults=IMAGE)
    made.to_running()
    edit(made, suspend=True)
    made.settle()
    made.finish_deletions()
    made.settle()
    assert made.status.state == "Suspended"
    made.profile = profile(generation=2, defaults={"image": "registry/team/train:2"})
    made.settle()
    assert made.status.profile.generation == 1
    edit(made, suspend=False)
    made.to_running()
    assert (made.status.profile.generation, made.view().job.spec.image) == (2, "registry/team/train:2")


def test_a_job_outside_of_its_profile_gets_no_pod_until_one_of_them_changes():
    made = world()
    made.profile = profile(limits=NARROW)
    made.settle()
    assert (made.status.state, made.status.reason, made.pods) == ("Pending", "OutsideProfile", {})
    assert "spec.nodes: profile research allows at most 1" in made.status.message
    assert ("Stalled", "True") in {(each.type, each.status) for each in made.status.conditions}
    made.profile = profile(generation=2, limits={"nodes": 2})
    made.to_running()
    assert made.status.profile.generation == 2


def test_an_edit_that_leaves_the_job_outside_of_its_profile_saves_and_ends_the_gang():
    """Where the policies of the chart are off, nothing rejects the edit itself."""
    made = world()
    made.profile = profile(limits={"nodes": 2, "activeDeadline": "2h"}, defaults={"activeDeadline": "1h"})
    made.to_running()
    made.advance_training(5, save=True)
    edit(made, active_deadline=Duration("3h"))
    made.step()
    assert {command.verb for command in made.commands.values()} == {"save-and-stop"}
    made.settle()
    made.finish_deletions()
    made.settle()
    assert (made.status.state, made.status.reason, made.pods) == ("Pending", "OutsideProfile", {})
    assert (made.status.checkpoint is not None, made.status.restarts.counted) == (True, 0)
    edit(made, active_deadline=Duration("2h"))
    made.to_running()
    assert made.status.profile.checked_generation == 3


def test_a_rule_that_the_defaults_break_is_named_with_the_profile():
    made = world(scheduling=Scheduling(tolerations=[Toleration(key="a", operator="Exists")]))
    made.profile = TrainingProfile(name="research", spec=replace(profile().spec, defaults=broken_defaults()))
    made.settle()
    assert made.status.reason == "OutsideProfile"
    assert "with the defaults of profile research, spec.scheduling.tolerations[1].value" in made.status.message


def broken_defaults():
    """Of a profile that another version of the operator has accepted."""
    taint = Toleration(key="b", operator="Exists", value="c")
    return Defaults(scheduling=ProfileScheduling(tolerations=[taint]))


def test_what_is_unknown_is_said_and_stops_only_new_jobs():
    made = world()
    verdict = apply_profile(made.job, None, "trainingprofiles is forbidden")
    assert (verdict.reason, verdict.evidence) == ("ProfileNotFound", "trainingprofiles is forbidden")
    made.profile = profile(defaults=IMAGE)
    made.to_running()
    edit(made, active_deadline=None)
    assert apply_profile(made.job, None, "trainingprofiles is forbidden").reason == ""


def test_a_job_without_a_profile_costs_nothing():
    made = World(1)
    assert apply_profile(made.job, None).pinned is None
    made.to_running()
    assert made.status.profile is None
