"""Forged trials: whatever a user who may create and change jobs writes into one, it decides nothing of a sweep."""

import copy
import json

import pytest
from tests.support.kubernetes.sweep_world import KEY, World

from torchyard.api.names import SWEEP_UID, TRIAL, TRIAL_SIGNATURE
from torchyard.api.validation.parse import metadata_of
from torchyard.kubernetes.provenance import LATE_SECONDS
from torchyard.kubernetes.trial_provenance import TrialProvenance
from torchyard.sweeps.parse import parse_sweep


def forged(world, name, change):
    """Create, as a tenant, a job with all that a trial has, and a result that no trial reaches."""
    real = copy.deepcopy(world.objects["trainingjobs", "tune-0"])
    job = {"metadata": {**real["metadata"], "name": name}, "spec": real["spec"]}
    job["status"] = {"state": "Succeeded", "metrics": {"score": 1e9, "score@10%": 1e9}}
    change(job["metadata"]["annotations"])
    world.put("trainingjobs", job)


def numbered(annotations):
    record = json.loads(annotations[TRIAL]) | {"number": 2, "units": [{"number": 2}]}
    annotations[TRIAL] = json.dumps(record)


def unsigned(annotations):
    numbered(annotations)
    del annotations[TRIAL_SIGNATURE]


def signed_by_another(annotations):
    numbered(annotations)
    sweep = parse_sweep(World().sweep())
    annotations[TRIAL_SIGNATURE] = TrialProvenance(lambda: 0.0).sign(sweep, "tune-2", annotations[TRIAL])


@pytest.mark.parametrize("change", [unsigned, numbered, signed_by_another, lambda _copied: None])
async def test_a_forged_trial_decides_nothing_and_is_named(change):
    calm, world = World(), World()
    await calm.until_over()
    await world.visit()
    forged(world, "tune-2", change)
    for _ in range(30):
        await world.visit()
        world.train()
    status = world.sweep()["status"]
    assert status["trials"]["created"] == 2
    assert (status["reason"], "job tune-2 exists" in status["message"]) == ("NameConflict", True)
    assert status.get("best", {}).get("value", 0) < 1e9
    del world.objects["trainingjobs", "tune-2"]
    await world.until_over()
    assert world.decisions() == calm.decisions()


async def test_a_changed_record_is_not_a_record():
    world = World()
    await world.visit()

    def better(job):
        record = json.loads(job["metadata"]["annotations"][TRIAL]) | {"values": {"10": 1e9}}
        job["metadata"]["annotations"][TRIAL] = json.dumps(record)

    world.edit("trainingjobs", "tune-1", better)
    await world.visit()
    assert world.sweep()["status"]["trials"]["created"] == 1
    assert world.sweep()["status"]["reason"] == "NameConflict"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"nodes": 3}, "nodes"),
        ({"image": "other:1"}, "image"),
        ({"trainer": {"name": "x:Y", "params": {"lr": 0.123}}}, "trainer.params"),
    ],
)
async def test_a_trial_that_trains_something_else_decides_nothing_and_is_named(change, field):
    """Its record is signed; its spec is not, and `kubectl scale` writes past policies on jobs."""
    calm, world = World(), World()
    await calm.until_over()
    await world.visit()
    world.edit("trainingjobs", "tune-1", lambda job: job["spec"].update(change))
    world.train()
    await world.visit()
    status = world.sweep()["status"]
    assert status["reason"] == "DamagedTrial"
    assert status["message"] == f"trial tune-1 was changed (spec.{field}). Delete it; it is then run again."
    assert "best" not in status
    world.delete("trainingjobs", "tune-1")
    await world.until_over()
    assert world.decisions() == calm.decisions()


async def test_what_a_webhook_adds_to_the_job_of_a_trial_is_part_of_it():
    """A site may add a mirror to images to every job. A trial that was stopped has been edited since, by its sweep."""
    calm, world = World(), World()
    await calm.until_over()
    put = world.put

    def mutated(plural, document):
        if plural == "trainingjobs":
            document["spec"] |= {"image": "mirror/trainer:1", "env": [{"name": "HTTPS_PROXY", "value": "proxy"}]}
        return put(plural, document)

    world.put = mutated
    assert (await world.until_over())["state"] == "Succeeded"
    assert world.decisions() == calm.decisions()
    assert any(each["metadata"]["generation"] > 1 for each in world.trials())


async def test_a_stopped_trial_that_was_edited_is_named():
    world = World()
    while not (stopped := [each for each in world.trials() if each["spec"].get("suspend")]):
        await world.visit()
        world.train()
    name = stopped[0]["metadata"]["name"]
    world.edit("trainingjobs", name, lambda job: job["spec"].update(podLabels={"team": "blue"}))
    await world.visit()
    assert world.sweep()["status"]["message"].startswith(f"trial {name} was changed (spec.podLabels).")


async def test_time_limits_of_a_trial_may_be_edited():
    world = World()
    await world.visit()
    world.edit("trainingjobs", "tune-1", lambda job: job["spec"].update(activeDeadline="9h", gracePeriod="5m"))
    assert (await world.until_over())["state"] == "Succeeded"


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_copy_that_takes_the_place_of_a_trial_is_none(restarted):
    """The process that created it knows; to another one it must have been created too late."""
    world = World()
    await world.visit()
    copied = copy.deepcopy(world.objects.pop(("trainingjobs", "tune-0")))
    if restarted:
        world.now += LATE_SECONDS + 1
        world.provenance = TrialProvenance(lambda: world.now)
    world.put("trainingjobs", {**copied, "status": {"state": "Succeeded", "metrics": {"score": 1e9}}})
    await world.visit()
    assert world.sweep()["status"]["trials"] == world.sweep()["status"]["trials"] | {"created": 1}
    assert "tune-0 exists" in world.sweep()["status"]["message"]


async def test_an_edited_trial_is_bound_to_its_uid():
    """Its record is signed again long after its creation, and a copy of that is worth nothing."""
    world = World(maxFailed=8)
    await world.visit()
    while not any("." + each["metadata"]["uid"] + "." in signature(each) for each in world.trials()):
        world.now += LATE_SECONDS
        world.train()
        await world.visit()
    (job,) = (each for each in world.trials() if "." + each["metadata"]["uid"] + "." in signature(each))
    assert is_trial(world, job["metadata"])
    assert not is_trial(world, {**job["metadata"], "uid": "uid-999"})


def signature(job):
    return job["metadata"]["annotations"][TRIAL_SIGNATURE]


def is_trial(world, metadata):
    return TrialProvenance().is_trial(parse_sweep(world.sweep()), metadata_of({"metadata": metadata}))


@pytest.mark.parametrize(
    "change",
    [
        {"apiVersion": "evil.dev/v1alpha1"},
        {"apiVersion": "torchyard.dev.evil/v1alpha1"},
        {"kind": "TrainingJob"},
        {"name": "tune-1"},
        {"uid": "uid-1"},
        {"controller": False},
        {"controller": None},
        {"controller": "yes"},
    ],
)
async def test_a_trial_is_controlled_by_its_sweep(change):
    world = World()
    await world.visit()
    metadata = world.trials()[0]["metadata"]
    assert is_trial(world, metadata)
    (owner,) = metadata["ownerReferences"]
    assert not is_trial(world, {**metadata, "ownerReferences": [owner | change]})
    assert not is_trial(world, {**metadata, "ownerReferences": [owner, owner | {"uid": "uid-1"}]})
    assert not is_trial(world, {**metadata, "namespace": "other"})
    assert not is_trial(world, {**metadata, "labels": {}})


async def test_a_trial_that_is_handed_to_another_sweep_is_none_of_its_trials():
    """A sweep that was created again has the same name, and keys of the same process."""
    world, provenance = World(), TrialProvenance()
    await world.visit()
    metadata, tree = world.trials()[0]["metadata"], world.sweep()
    assert provenance.is_trial(parse_sweep(tree), metadata_of({"metadata": metadata}))
    again = parse_sweep({**tree, "metadata": {**tree["metadata"], "uid": "new-uid"}})
    (owner,) = metadata["ownerReferences"]
    moved = {"ownerReferences": [owner | {"uid": "new-uid"}], "labels": {**metadata["labels"], SWEEP_UID: "new-uid"}}
    assert not provenance.is_trial(again, metadata_of({"metadata": {**metadata, **moved}}))


async def test_every_process_adds_its_key_before_its_first_trial_and_few_are_kept():
    world = World(maxTrials=8)
    for _ in range(60):  # processes, each of which writes once
        world.provenance = TrialProvenance(lambda: world.now)
        world.edit(
            "trainingsweeps", KEY[1], lambda sweep: sweep["spec"].update(suspend=not sweep["spec"].get("suspend"))
        )
        await world.visit()
        assert all(is_trial(world, job["metadata"]) for job in world.trials())
        world.train()
    keys = world.sweep()["status"]["trialKeys"]
    assert len(world.trials()) == 8
    assert 8 < len(keys) <= 33
