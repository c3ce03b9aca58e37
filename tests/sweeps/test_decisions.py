"""The decisions of a sweep: the same ones whatever the timing, and wherever the controller is killed."""

import itertools
import math

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from torchyard.api.status import State
from torchyard.sweeps.codec import read_sweep
from torchyard.sweeps.decide import Create, Finish, Promote, Resume, Stop, decide
from torchyard.sweeps.outcomes import Trial, best_of, outcomes_of, rungs
from torchyard.sweeps.resource import TrialRecord, trial_number
from torchyard.sweeps.spec import EarlyStopping


def sweep(*, stopping="asha", trials=12, parallel=2, goal="maximize", failed=3, algorithm="random"):
    spec = {
        "objective": {"metric": "score", "goal": goal},
        "algorithm": {"name": algorithm},
        "parameters": [{"path": "trainer.params.lr", "float": {"min": 0.1, "max": 1.0}}],
        "maxTrials": trials,
        "parallelTrials": parallel,
        "maxFailed": failed,
        "jobTemplate": {"spec": {"trainer": {"name": "vecrl"}}},
    }
    if stopping:
        spec["earlyStopping"] = {"name": stopping, "minTrials": 2}
    return read_sweep({"metadata": {"name": "s"}, "spec": spec}).spec


def value_of(number, percent):
    """What trial `number` scores after `percent` of its steps: quality and noise, both fixed by the number."""
    quality = math.sin(12.9898 * (number + 1)) * 43758.5453 % 1.0
    return quality * (0.5 + percent / 200) + (math.sin(78.233 * number + percent) * 0.2)


class World:
    """Trials that train at any pace, and a controller that may die between two of its writes."""

    def __init__(self, spec, *, fails=(), diverges=None):
        self.spec, self.fails = spec, fails
        self.diverges = diverges or {}
        self.trials: dict[int, Trial] = {}
        self.writes: list[tuple] = []
        self.percents: dict[int, int] = {}
        self.ended = None

    def turn(self, writes=None):
        """Carry out decisions, at most so many of them; then the controller is killed."""
        for action in itertools.islice(decide(self.spec, list(self.trials.values())), writes):
            if isinstance(action, Finish):
                self.ended = action
            elif isinstance(action, Create):
                assert action.number not in self.trials
                values = [outcome.value for outcome in action.history if outcome.value is not None]
                parameters = {"trainer.params.lr": round(sum(values), 9)}  # a "sampler" that shows what it was told
                record = TrialRecord(number=action.number, parameters=parameters, units=[action.unit])
                self.trials[action.number] = Trial(record=record, state=State.PENDING)
                self.percents[action.number] = 0
            else:
                self._edit(action)

    def _edit(self, action):
        trial = self.trials[action.number]
        if isinstance(action, Stop):
            record = replace(trial.record, values=action.values)
            self.trials[action.number] = replace(trial, suspended=True, record=record)
            return
        record = trial.record
        if isinstance(action, Promote):
            record = replace(record, units=[*record.units, action.unit])
        suspended = isinstance(action, Promote) and not action.resumes
        self.trials[action.number] = replace(trial, suspended=suspended, record=record)

    def suspend(self):
        """Save and stop all trials, as the sweep's `suspend` does."""
        for number, trial in self.trials.items():
            self.trials[number] = replace(trial, suspended=True, state=State.SUSPENDED)

    def train(self, number, steps):
        """Train a trial; one that is to stop saves first."""
        trial = self.trials[number]
        if trial.at_rest:
            return
        if trial.suspended:
            self.trials[number] = replace(trial, state=State.SUSPENDED)
            return
        before, percent = self.percents[number], min(100, self.percents[number] + steps)
        self.percents[number] = percent
        passed = [rung for rung in rungs(EarlyStopping(name="asha")) if before < rung <= percent]
        known = {f"score@{rung}%": self.value_of(number, rung) for rung in passed}
        metrics = {**trial.metrics, **known, "score": self.value_of(number, percent)}
        ended = State.FAILED if number in self.fails else State.SUCCEEDED
        state = State.RUNNING if percent < 100 else ended
        busy = sum(not each.at_rest for each in self.trials.values())
        assert busy <= self.spec.parallel_trials
        self.trials[number] = replace(trial, metrics=metrics, state=state)

    def value_of(self, number, percent):
        """What a trial reports: the name of what is no number, from the percent on at which it diverges."""
        since, value = self.diverges.get(number, (101, ""))
        return value if percent >= since else value_of(number, percent)

    def decisions(self):
        """What was decided: parameters, thresholds, units and ends of all trials."""
        return {
            number: (trial.record.parameters, trial.record.units, outcomes_of(self.spec, trial))
            for number, trial in self.trials.items()
        }


def undisturbed(spec, **options):
    world = World(spec, **options)
    for _ in range(1000):
        world.turn()
        if world.ended:
            return world
        for number in list(world.trials):
            world.train(number, 10)
    raise AssertionError("the sweep does not end")


NON_FINITE = st.sampled_from(["NaN", "Infinity", "-Infinity"])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(["asha", "hyperband", "median", None]),
    st.sampled_from(["minimize", "maximize"]),
    st.dictionaries(st.integers(0, 11), st.tuples(st.integers(1, 100), NON_FINITE)),
)
def test_a_trial_that_is_not_finite_is_stopped_or_fails_and_is_never_continued_nor_the_best(stopping, goal, diverges):
    spec = sweep(stopping=stopping, goal=goal, failed=12)
    world = undisturbed(spec, diverges=diverges)
    last = {number: outcomes_of(spec, trial)[-1] for number, trial in world.trials.items()}
    for number, (since, value) in diverges.items():
        outcome = last[number]
        assert outcome.kind in {"stopped", "failed"} or outcome.percent < since
        if outcome.percent < since:
            assert (outcome.kind, outcome.non_finite) == ("stopped", None), "its value was worse than others before"
        else:
            assert (outcome.value, outcome.non_finite) == (None, value)
            assert outcome.kind == ("failed" if outcome.percent == 100 else "stopped")
            assert len(outcomes_of(spec, world.trials[number])) == len(world.trials[number].record.units)
    best = best_of(spec, list(last.values()))
    finite = [each.value for each in last.values() if each.kind == "complete"]
    assert (best.value if best else None) == (max if goal == "maximize" else min)(finite, default=None)
    assert all(
        math.isfinite(value)
        for trial in world.trials.values()
        for unit in trial.record.units
        for value in unit.thresholds.values()
    )
    for trial in world.trials.values():
        assert msgspec.json.decode(msgspec.json.encode(trial.record), type=TrialRecord) == trial.record


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_kills_and_paces_change_no_decision(data):
    spec = sweep(
        stopping=data.draw(st.sampled_from(["asha", "hyperband", "median", ""])),
        parallel=data.draw(st.integers(1, 4)),
        trials=data.draw(st.integers(1, 16)),
        goal=data.draw(st.sampled_from(["maximize", "minimize"])),
    )
    fails = data.draw(st.sets(st.integers(0, 15), max_size=2))
    calm, wild = undisturbed(spec, fails=fails), World(spec, fails=fails)
    for turn in range(4000):
        # Killed after any number of writes, none included; away for any time in which trials go on.
        wild.turn(data.draw(st.integers(0, 3)) if turn < 60 else None)
        if wild.ended:
            break
        for number in list(wild.trials):
            wild.train(number, data.draw(st.sampled_from([0, 10, 35, 100])) if turn < 60 else 10)
    assert wild.ended == calm.ended
    assert wild.decisions() == calm.decisions()
    best = [best_of(spec, [outcomes_of(spec, trial)[-1] for trial in each.trials.values()]) for each in (calm, wild)]
    assert best[0] == best[1]


def test_asha_stops_most_trials_early_and_continues_good_ones():
    spec = sweep(trials=30, parallel=2)
    world = undisturbed(spec)
    ends = [outcomes_of(spec, trial) for trial in world.trials.values()]
    assert len(ends) == 30
    assert sum(each[-1].kind == "stopped" for each in ends) > 10
    promoted = [trial for trial in world.trials.values() if len(trial.record.units) > 1]
    assert promoted, "a stopped trial is continued from its checkpoint"
    assert all(trial.record.units[1].basis <= trial.record.units[1].number for trial in promoted)


def test_a_promoted_trial_whose_next_rung_is_known_trains_no_further_or_holds_its_slot():
    """No controller was there when it passed two rungs; a job that is resumed is still Suspended for a moment."""
    for past in (10, 30):
        world = undisturbed(sweep(trials=30, parallel=1))
        number, trial = next((each, trial) for each, trial in world.trials.items() if len(trial.record.units) > 1)
        first, second = trial.record.units[:2]
        world.spec = sweep(trials=second.number, parallel=1)
        record = replace(trial.record, units=[first], values={})
        known = {f"score@{rung}%": -9.0 for rung in (10, 30) if rung <= past}
        at_rung = {"score@10%": trial.metrics["score@10%"]}
        world.trials = {
            each.record.number: each for each in world.trials.values() if each.record.units[0].number < second.number
        }
        stopped = replace(trial, record=record, state=State.SUSPENDED, suspended=True, metrics=known | at_rung)
        world.trials[number] = stopped
        (action,) = [each for each in decide(world.spec, list(world.trials.values())) if isinstance(each, Promote)][:1]
        assert (action.number, action.unit, action.resumes) == (number, second, past == 10)
        world._edit(action)
        assert world.trials[number].at_rest == (past == 30)


def test_no_more_than_parallel_trials_run_at_once():
    world = World(sweep(trials=9, parallel=3, stopping=""))
    for _ in range(200):
        world.turn()
        assert sum(not trial.at_rest for trial in world.trials.values()) <= 3
        for number in list(world.trials):
            world.train(number, 10 * (1 + number % 3))
    assert world.ended.state == "Succeeded"


def test_too_many_failures_end_the_sweep_after_its_trials_were_stopped():
    world = World(sweep(trials=20, parallel=2, stopping="", failed=1), fails=range(20))
    stopped = False
    for _ in range(100):
        world.turn()
        stopped |= any(trial.suspended for trial in world.trials.values())
        if world.ended:
            break
        for number in list(world.trials):
            world.train(number, 20 * (1 + number % 2))
    assert world.ended.state == "Failed"
    assert "more than maxFailed 1" in world.ended.message


def test_a_value_that_is_not_finite_is_a_failure():
    spec = sweep(stopping="", trials=1, parallel=1, failed=0)
    world = World(spec)
    world.turn()
    world.trials[0] = replace(world.trials[0], state=State.SUCCEEDED, metrics={"loss": 1.0})  # NaN reaches no status
    assert outcomes_of(spec, world.trials[0])[0].kind == "failed"
    assert decide(spec, list(world.trials.values()))[0].state == "Failed"


def test_a_finished_sweep_continues_with_a_raised_limit():
    world = undisturbed(sweep(trials=4))
    before = world.decisions()
    world.spec, world.ended = sweep(trials=6), None
    world.turn()
    assert [number for number in world.trials if number >= 4] == [4, 5]
    assert {number: made for number, made in world.decisions().items() if number < 4} == before


def test_a_trial_that_was_deleted_is_run_again_with_its_parameters():
    world = undisturbed(sweep(trials=4, stopping=""))
    before = world.decisions()[1][0]
    del world.trials[1]
    world.turn()
    assert world.trials[1].record.parameters == before


def test_suspended_trials_go_on_with_their_sweep():
    world = World(sweep(trials=2))
    world.turn()
    world.trials = {
        number: replace(trial, suspended=True, state=State.SUSPENDED) for number, trial in world.trials.items()
    }
    assert decide(world.spec, list(world.trials.values())) == [Resume(number=0), Resume(number=1)]


@pytest.mark.parametrize(
    ("goal", "target", "reached"),
    [("maximize", 0.9, True), ("maximize", 1.1, False), ("minimize", 0.9, True), ("minimize", 0.8, False)],
)
@pytest.mark.parametrize("expired", [True, False])
def test_a_target_that_is_reached_stops_what_runs_and_ends_the_sweep(goal, target, reached, expired):
    world = World(sweep(trials=9, goal=goal, failed=0))
    world.spec = replace(world.spec, objective=replace(world.spec.objective, target=target))
    world.turn()
    good = replace(world.trials[1], state=State.SUCCEEDED, metrics={"score": 0.9})
    trials = [world.trials[0], good]
    actions = decide(world.spec, trials, expired=expired)
    assert actions[0] == Stop(number=0, values={}) if reached or expired else isinstance(actions[0], Create)
    if reached:
        at_rest = replace(world.trials[0], state=State.FAILED)
        (end,) = decide(world.spec, [at_rest, good], expired=expired)
        assert (end.state, end.reason) == ("Succeeded", "TargetReached"), "neither a deadline nor a failure counts more"
        assert end.message == "trial 1 reached objective.target 0.9 with 0.9."


@pytest.mark.parametrize("expired", [True, False])
def test_a_deadline_stops_running_trials_and_ends_the_sweep(expired):
    world = World(sweep(trials=9, stopping=""))
    world.turn()
    actions = decide(world.spec, list(world.trials.values()), expired=expired)
    assert [type(action) for action in actions] == ([Stop, Stop] if expired else [])
    world.trials = {
        number: replace(trial, state=State.SUSPENDED, suspended=True) for number, trial in world.trials.items()
    }
    if expired:
        (end,) = decide(world.spec, list(world.trials.values()), expired=True)
        assert end.state == "Failed"


@pytest.mark.parametrize(
    ("job", "number"),
    [
        ("tune-0", 0),
        ("tune-999", 999),
        *(
            (name, None)
            for name in ("tune-1000", "tune-01", "tune--1", "tune-", "tune", "other-1", "tune-1-1", "tune-²")
        ),
    ],
)
def test_a_name_of_a_trial_has_a_number(job, number):
    assert trial_number("tune", job) == number
