"""A sweep on a cluster: killed between any two API calls it decides the same; and what only a person can solve."""

import ast

import pytest
from tests.support.kubernetes.sweep_world import GRID, KEY, NOW, World

from torchyard.kubernetes.client.errors import Details, Rejected
from torchyard.sweeps.sampler import Sampler
from torchyard.sweeps.sampling import MissingLibraryError

MANY = {"parameters": [{"path": "trainer.params.lr", "float": {"min": 0.0, "max": 0.7, "step": 0.05}}], "maxTrials": 11}


async def undisturbed(**spec):
    world = World(**spec)
    await world.until_over()
    return world


async def test_a_kill_between_any_two_writes_changes_no_decision():
    calm = await undisturbed(**MANY)
    assert calm.sweep()["status"]["state"] == "Succeeded"
    units = [len(calm.record(job["metadata"]["name"])["units"]) for job in calm.trials()]
    assert max(units) > 1, "a stopped trial is promoted"
    assert any(outcomes[-1].kind == "stopped" for _, _, outcomes in list(calm.decisions().values())[:-1])
    for number in range(len(calm.writes)):
        wild = World(**MANY)
        wild.kill_at = number
        await wild.until_over()
        assert wild.kill_at is None
        assert wild.decisions() == calm.decisions(), number


JOINT = {
    "parameters": [
        {"path": "trainer.params.lr", "float": {"min": 0.0, "max": 0.3, "step": 0.1}},
        {"path": "device", "choice": ["auto", "cpu"]},
        {"path": "gpusPerNode", "choice": [0, 1]},  # device cpu needs no GPU
    ],
    "maxTrials": 16,
    "maxFailed": 4,
}


@pytest.mark.parametrize(
    ("spec", "rejects", "failed", "said"),
    [
        (JOINT, lambda _spec: False, [3, 7, 11, 15], "spec.gpusPerNode: device cpu needs no GPU"),
        (
            GRID,
            lambda spec: spec.get("trainer", {}).get("params", {}).get("lr") == 0.3,
            [3],
            "the policy does not allow it",
        ),
    ],
    ids=["by a rule", "by the API server"],
)
async def test_parameters_that_make_no_job_are_a_failed_trial_and_the_search_continues(spec, rejects, failed, said):
    calm = await undisturbed(rejects=rejects, **spec)
    status = calm.sweep()["status"]
    assert (status["state"], status["trials"]["failed"]) == ("Succeeded", len(failed))
    for number in failed:
        job = calm.objects["trainingjobs", f"tune-{number}"]
        assert job["spec"]["suspend"] is True, "it has no pods"
        assert said in calm.record(f"tune-{number}")["rejected"]
        assert "trainer" not in job["spec"], "resumed by hand, it trains nothing"
        assert said in ast.literal_eval(job["spec"]["script"].removeprefix("raise SystemExit(").removesuffix(")"))
    warned = [message for kind, reason, message in calm.events if (kind, reason) == ("Warning", "TrialFailed")]
    assert [message.split(":")[0] for message in warned] == [f"trial tune-{number}" for number in failed]
    assert all(said in message for message in warned)
    for number in range(0, len(calm.writes), 7):
        wild = World(rejects=rejects, **spec)
        wild.kill_at = number
        await wild.until_over()
        assert wild.decisions() == calm.decisions(), number


async def test_a_job_that_is_rejected_without_its_parameters_too_is_not_a_failed_trial():
    world = World(rejects=lambda _spec: True)
    await world.visit()
    assert stalled(world)[0] == "TrialRejected"
    assert not world.trials()
    world.rejects = lambda _spec: False
    assert (await world.until_over())["trials"]["failed"] == 0


async def test_a_temporary_rejection_does_not_fail_the_trial():
    """A webhook that is away, or a role that is replaced, for a moment."""
    rejections = iter([True])
    world = World(rejects=lambda _spec: next(rejections, False))
    assert (await world.until_over())["trials"]["failed"] == 0


async def test_events_tell_the_life_of_a_sweep():
    world = World(**MANY)
    world.fails = {"tune-2"}
    status = await world.until_over()
    reasons = [reason for _, reason, _ in world.events]
    assert reasons[0] == "Started"
    assert reasons[-1] == "Completed"
    assert world.events[0][2] == "up to 11 trials, 2 at a time"
    stopped = [name for verb, name in world.writes if verb == "PATCH"]
    assert reasons.count("TrialStopped") + reasons.count("TrialContinued") == len(stopped)
    assert reasons.count("TrialFailed") == status["trials"]["failed"] == 1
    best = [message for _, reason, message in world.events if reason == "BestImproved"][-1]
    assert best.startswith(f"trial {status['best']['trial']} is the best so far: score ")
    assert all("worse than" in message for _, reason, message in world.events if reason == "TrialStopped")
    before = len(world.events)
    await world.visit()
    assert len(world.events) == before


async def test_a_sweep_whose_trials_get_no_pods_reports_it():
    world = World()
    await world.visit()
    for name in ("tune-0", "tune-1"):
        world.edit("trainingjobs", name, lambda job: job.update(status={"state": "Pending", "reason": "Unschedulable"}))
    await world.visit()
    message = world.sweep()["status"]["message"]
    assert message.startswith("trial tune-0 waits: pods cannot be placed (Unschedulable); `torchyard explain tune-0`")
    assert message.endswith("1 other trial as well")


async def test_trials_belong_to_the_sweep_and_report_their_rungs(caplog):
    caplog.set_level("INFO", "torchyard.decisions")
    world = World()
    await world.visit()
    names = sorted(job["metadata"]["name"] for job in world.trials())
    assert names == ["tune-0", "tune-1"]
    job = world.trials()[0]
    assert job["metadata"]["ownerReferences"][0]["controller"] is True
    assert job["metadata"]["labels"]["torchyard.dev/sweep"] == "tune"
    assert job["spec"]["metrics"]["milestones"] == {"metric": "score", "percents": [10, 30, 90]}
    await world.visit()
    assert world.sweep()["status"]["columns"] == {"trials": "0/8"}
    assert world.sweep()["status"]["trials"]["running"] == 2
    before = len(world.writes)
    await world.visit()
    assert len(world.writes) == before, "an unchanged sweep is not written to"
    said = [record.getMessage() for record in caplog.records if record.name == "torchyard.decisions"]
    assert said == [
        "research/tune: created trial tune-0, unit 0",
        "research/tune: created trial tune-1, unit 1",
        "research/tune: Running, Searching: trials run, or are about to",
    ]


async def test_suspend_and_resume_change_no_decision():
    calm, world = await undisturbed(), World()
    for turn in range(200):
        suspended = turn % 4 == 3
        world.edit("trainingsweeps", "tune", lambda sweep, suspend=suspended: sweep["spec"].update(suspend=suspend))
        await world.visit()
        world.train()
        if suspended:
            await world.visit()
            running = [job for job in world.trials() if job["status"]["state"] == "Running"]
            assert not running
            assert world.sweep()["status"]["state"] == ("Suspended" if not over(world) else "Succeeded")
        if over(world):
            break
    assert world.decisions() == calm.decisions()


def over(world):
    return world.sweep().get("status", {}).get("completionTime") is not None


async def test_a_sweep_waits_for_a_trial_that_lost_its_pods():
    calm, world = await undisturbed(), World()
    for turn in range(200):
        await world.visit()
        lost = [job for job in world.trials() if job.get("status", {}).get("state") == "Running"][: turn % 2]
        kept = [(job, dict(job["status"])) for job in lost]
        for job in lost:
            job["status"]["state"] = "Recovering"
        before = len(world.trials())
        await world.visit()
        assert len(world.trials()) == before, "it holds its slot"
        for job, status in kept:
            job["status"] = status
        world.train()
        if over(world):
            break
    assert world.decisions() == calm.decisions()


async def test_a_sweep_that_is_being_deleted_creates_no_trial_in_place_of_those_that_went():
    world = World()
    await world.visit()
    world.sweep()["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["foregroundDeletion"]}
    for job in world.trials():
        del world.objects["trainingjobs", job["metadata"]["name"]]
    before = len(world.writes)
    await world.visit()
    assert (world.trials(), len(world.writes)) == ([], before)


async def test_trials_that_outlived_their_sweep_are_none_of_another_of_its_name():
    world = World()
    await world.visit()
    for job in world.trials():  # deleted with --cascade=orphan
        job["metadata"]["ownerReferences"] = []
    world.put("trainingsweeps", {"metadata": {"name": KEY[1]}, "spec": world.sweep()["spec"]})
    await world.visit()
    assert stalled(world)[0] == "NameConflict"
    assert len(world.trials()) == 2


async def test_a_raised_limit_reopens_a_sweep():
    calm, world = await undisturbed(), World(maxTrials=3)
    assert (await world.until_over())["trials"]["created"] == 3
    world.edit("trainingsweeps", "tune", lambda sweep: sweep["spec"].update(maxTrials=8))
    await world.visit()
    assert world.sweep()["status"]["state"] == "Running"
    assert "completionTime" not in world.sweep()["status"]
    assert (await world.until_over())["columns"]["trials"] == "8/8"
    assert world.decisions().keys() == calm.decisions().keys()


@pytest.mark.parametrize("cause", ["failed", "not finite"])
async def test_too_many_failed_trials_end_the_sweep(cause):
    world = World(score=lambda _lr, percent: None if percent == 100 and cause == "not finite" else 1.0, maxFailed=1)
    if cause == "failed":
        world.fails = {f"tune-{number}" for number in range(8)}
    status = await world.until_over()
    assert (status["state"], status["reason"]) == ("Failed", "TooManyFailed")
    assert status["trials"]["failed"] == 2
    assert {each["type"] for each in status["conditions"] if each["status"] == "True"} == {"Stalled", "Failed"}


async def test_the_deadline_saves_and_stops_and_the_best_counts():
    world = World(deadline="1h")
    while not world.sweep().get("status", {}).get("best"):
        await world.visit()
        world.train()
    world.now = NOW + 3601
    status = await world.until_over()
    assert (status["state"], status["reason"]) == ("Succeeded", "DeadlineExceeded")
    assert all(job["status"]["state"] != "Running" for job in world.trials())


async def test_a_target_ends_the_sweep_wherever_the_operator_is_killed():
    goal = {**MANY, "objective": {"metric": "score", "goal": "maximize", "target": 0.5}, "parallelTrials": 1}
    calm = await undisturbed(**goal)
    status = calm.sweep()["status"]
    assert (status["state"], status["reason"]) == ("Succeeded", "TargetReached")
    assert status["best"]["value"] >= 0.5
    assert len(calm.trials()) < goal["maxTrials"]
    assert all(job["status"]["state"] in {"Succeeded", "Suspended"} for job in calm.trials())
    for number in range(len(calm.writes)):
        wild = World(**goal)
        wild.kill_at = number
        await wild.until_over()
        assert wild.decisions() == calm.decisions(), number


async def test_a_sweep_that_has_ended_is_deleted_after_its_time_to_live():
    world = World(ttlAfterFinished="10m")
    await world.until_over()
    world.now += 599
    await world.visit()
    assert ("trainingsweeps", "tune") in world.objects
    world.now += 2
    await world.visit()
    assert ("trainingsweeps", "tune") not in world.objects


def stalled(world):
    status = world.sweep()["status"]
    (held,) = (each for each in status["conditions"] if each["type"] == "Stalled" and each["status"] == "True")
    assert held["reason"] == status["reason"]
    return status["reason"], status["message"]


async def test_a_job_of_another_user_is_not_taken_for_a_trial():
    world = World()
    world.put("trainingjobs", {"metadata": {"name": "tune-1"}, "spec": {"command": ["true"]}})
    await world.visit()
    reason, message = stalled(world)
    assert reason == "NameConflict"
    assert "tune-1" in message
    assert "annotations" not in world.objects["trainingjobs", "tune-1"]["metadata"]
    del world.objects["trainingjobs", "tune-1"]
    assert (await world.until_over())["state"] == "Succeeded"


async def test_trials_of_a_former_sweep_of_the_name_are_waited_for():
    world = World()
    await world.visit()
    sweep = {"metadata": {"name": KEY[1]}, "spec": world.sweep()["spec"]}
    world.delete("trainingsweeps", KEY[1])
    world.put("trainingsweeps", sweep)  # at once: the garbage collector has not come yet
    await world.visit()
    status = world.sweep()["status"]
    assert status["reason"] == "PredecessorStopping"
    assert status["message"] == "job tune-0 is being deleted; the trial of its name follows."
    assert not any(each["status"] == "True" for each in status["conditions"] if each["type"] == "Stalled")
    for name in ("tune-0", "tune-1"):
        world.delete("trainingjobs", name)
    assert (await world.until_over())["columns"]["trials"] == "8/8"


async def test_a_changed_template_is_another_sweep():
    world = World()
    await world.visit()

    def other(sweep):  # below params the API server compares nothing
        sweep["spec"]["jobTemplate"]["spec"]["trainer"]["params"] = {"epochs": 3}

    world.edit("trainingsweeps", "tune", other)
    world.train()
    before = len(world.trials())
    await world.visit()
    assert stalled(world)[0] == "SpecChanged"
    assert len(world.trials()) == before


async def test_a_damaged_trial_is_named_and_made_again_once_it_is_deleted():
    world = World()
    await world.visit()
    world.edit("trainingjobs", "tune-1", lambda job: job["metadata"]["annotations"].clear())
    await world.visit()
    reason, message = stalled(world)
    assert reason == "NameConflict"
    assert "tune-1" in message
    assert "its annotations were changed" in message
    del world.objects["trainingjobs", "tune-1"]
    assert (await world.until_over())["columns"]["trials"] == "8/8"


class Broken(Sampler):
    """A sampler without its library."""

    async def suggest(self, *_):
        raise MissingLibraryError("algorithm tpe needs optuna")


async def test_without_optuna_the_status_reports_it():
    world = World(sampler=Broken(), algorithm={"name": "tpe"})
    await world.visit()
    assert stalled(world) == ("SamplerMissing", "algorithm tpe needs optuna.")
    assert not world.trials()


async def test_a_rejected_trial_is_reported():
    class Strict(World):
        def _apply(self, verb, plural, name, body, status):
            if verb == "POST":
                raise Rejected(403, "Forbidden", "exceeded quota", Details())
            super()._apply(verb, plural, name, body, status)

    world = Strict()
    await world.visit()
    reason, message = stalled(world)
    assert reason == "TrialRejected"
    assert "exceeded quota" in message


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"parameters": [{"path": "nodez", "choice": [1, 2]}]}, "spec.parameters[0].path"),
        ({"parameters": [{"path": "serviceAccountName", "choice": ["a", "b"]}]}, "cannot differ between trials"),
        ({"maxTrials": "many"}, "maxTrials"),
        ({"jobTemplate": {"spec": {"trainer": {"name": "x:Y"}, "args": ["x"]}}}, "spec.jobTemplate.spec"),
    ],
)
async def test_an_invalid_sweep_that_the_server_accepted_names_the_problem(change, said):
    world = World(**change)
    await world.visit()
    reason, message = stalled(world)
    assert reason == "InvalidSpec"
    assert said in message
    before = len(world.writes)
    await world.visit()
    assert len(world.writes) == before


async def test_the_worst_sweep_is_read_quickly_enough_and_makes_nothing_raise():
    wide = [{"path": f"trainer.params.p{n}", "float": {"min": 0.0, "max": 1e300, "step": 1e-300}} for n in range(32)]
    world = World(parameters=wide)
    await world.visit()
    assert stalled(world)[0] == "InvalidSpec"
    assert KEY[1] in str(world.sweep()["metadata"])
