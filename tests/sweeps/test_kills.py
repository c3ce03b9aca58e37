"""`run_sweep` killed before and after each of its writes: the files that are left lead to the same decisions."""

import asyncio
import itertools

import pytest
from msgspec.structs import replace

from torchyard.api.status import CheckpointStatus, State
from torchyard.api.values import Time
from torchyard.local import sweep_controller, sweeps
from torchyard.local.run import read_run, write_status_file
from torchyard.local.runs import control
from torchyard.sweeps.codec import read_sweep
from torchyard.sweeps.outcomes import outcomes_of
from torchyard.sweeps.trials import trial_of

WRITES = ("create_trial", "edit_trial")


class Killed(BaseException):
    """The controller is gone, whatever it was doing."""


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(sweep_controller, "run_job", train)
    spec = {
        "objective": {"metric": "score", "goal": "maximize"},
        "algorithm": {"name": "grid"},
        "earlyStopping": {"name": "asha"},
        "parameters": [{"path": "trainer.params.lr", "float": {"min": 0.0, "max": 0.7, "step": 0.1}}],
        "maxTrials": 8,
        "parallelTrials": 2,
        "jobTemplate": {"spec": {"trainer": {"name": "x:Y"}}},
    }
    return read_sweep({"metadata": {"name": "tune"}, "spec": spec})


async def train(folder, *, on_change, stop, kill, templates):
    """Stand for a run: a job that reaches one rung a turn, saves when it is asked to, and keeps all it has on disk."""
    with control(folder):
        while True:
            job = read_run(folder)
            percent, lr = int(job.status.progress.percent or 0), job.spec.trainer.params["lr"]
            if job.spec.suspend or stop.is_set():
                saved = CheckpointStatus(step=percent)
                job = replace(job, status=replace(job.status, state=State.SUSPENDED, checkpoint=saved))
            else:
                now = next(rung for rung in (10, 30, 90, 100) if rung > percent)
                # The quality of a trial shows late in some of them, so that promotions happen.
                score = round((lr * 7 * 5 % 8) / 8 + (now / 1000 if int(lr * 10) % 2 else -now / 1000), 6)
                metrics = {**job.status.metrics, "score": score} | ({f"score@{now}%": score} if now < 100 else {})
                status = replace(
                    job.status,
                    state=State.RUNNING if now < 100 else State.SUCCEEDED,
                    metrics=metrics,
                    progress=replace(job.status.progress, percent=float(now)),
                    completion_time=Time.of(1.0) if now == 100 else None,
                )
                job = replace(job, status=status)
            write_status_file(folder, job)
            on_change(job, [])
            if job.status.state.at_rest:
                return job
            await asyncio.sleep(0)


def life(sweep, monkeypatch, kill_at=None, *, after=False):
    """Run the sweep, killed at its `kill_at`th write, before or after that; return how it ended, None: killed."""
    count = itertools.count(1)

    def dying(write):
        def wrapped(*args, **options):
            now = next(count) == kill_at
            if now and not after:
                raise Killed
            done = write(*args, **options)
            if now:
                raise Killed
            return done

        return wrapped

    with monkeypatch.context() as patched:
        for name in WRITES:
            patched.setattr(sweep_controller, name, dying(getattr(sweeps, name)))
        patched.setattr(sweep_controller._Sweep, "close", lambda self: asyncio.sleep(0))  # the killed save nothing
        try:
            return asyncio.run(sweep_controller.run_sweep(sweep))
        except Killed:
            return None


def decisions(sweep):
    """What was decided on each trial, and how its units ended."""
    trials = [trial_of(job) for job in sweeps.trial_jobs(sweep).values()]
    return [(each.record.parameters, each.record.units, outcomes_of(sweep.spec, each)) for each in trials]


def test_a_kill_at_any_write_changes_no_decision(sweep, tmp_path, monkeypatch):
    calm = sweeps.create_sweep(sweep, tmp_path)
    ended = life(calm, monkeypatch)
    wanted = decisions(calm)
    assert ended.state == "Succeeded"
    assert len(wanted) == 8
    kinds = {outcome.kind for _, _, outcomes in wanted for outcome in outcomes}
    assert kinds == {"complete", "stopped"}
    writes = sum(len(units) for _, units, _ in wanted)
    for kill_at, after in itertools.product(range(1, writes + 1), (False, True)):
        sweeps.remove_sweep(sweeps.load_sweep("tune"))
        again = sweeps.create_sweep(sweep, tmp_path)
        life(again, monkeypatch, kill_at, after=after)
        assert life(sweeps.load_sweep("tune"), monkeypatch) == ended
        assert decisions(again) == wanted, f"killed {'after' if after else 'before'} write {kill_at}"


def test_a_raised_limit_reopens_a_sweep_and_other_changes_do_not(sweep, tmp_path, monkeypatch):
    life(sweeps.create_sweep(replace(sweep, spec=replace(sweep.spec, max_trials=3)), tmp_path), monkeypatch)
    before = decisions(sweeps.load_sweep("tune"))
    raised = sweeps.create_sweep(sweep, tmp_path)
    life(raised, monkeypatch)
    assert decisions(raised)[:3] == before
    assert len(decisions(raised)) == 8
    other = replace(sweep, spec=replace(sweep.spec, early_stopping=None))
    with pytest.raises(ValueError, match=r"differs in `spec\.earlyStopping`"):
        sweeps.create_sweep(other, tmp_path)


def test_runs_of_others_do_not_count_as_trials(sweep, tmp_path, monkeypatch):
    first = sweeps.create_sweep(sweep, tmp_path)
    life(first, monkeypatch)
    (tmp_path / "home/sweeps/tune/sweep.yaml").unlink()  # as if the sweep had never been
    with pytest.raises(ValueError, match="Run `tune-0` exists and is no trial of this sweep"):
        sweeps.create_sweep(sweep, tmp_path)
    assert sweeps.trial_jobs(sweep) == {}


def test_one_process_controls_a_sweep(sweep, tmp_path):
    sweeps.create_sweep(sweep, tmp_path)
    with (
        sweeps.control_sweep("tune"),
        pytest.raises(ValueError, match="controlled by another process"),
        sweeps.control_sweep("tune"),
    ):
        raise AssertionError
