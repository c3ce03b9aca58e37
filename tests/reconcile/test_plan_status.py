"""The status of a job, and which events are emitted."""

import pytest
from msgspec.structs import replace
from tests.support.reconcile.scenarios import condition, fail, recover
from tests.support.reconcile.world import START, World

from torchyard.api.spec_workload import Metrics, Milestones, Trainer
from torchyard.api.status import MAX_METRICS, NonFiniteMetric
from torchyard.reconcile.actions import EmitEvent, WriteStatus
from torchyard.reconcile.observed import GpuReport, RankReport
from torchyard.reconcile.plan import plan


def test_progress_rate_and_time_left_are_what_the_ranks_report():
    world = World(2).to_running()
    world.advance_training(19, total=100)
    world.settle()
    progress = world.status.progress
    assert (progress.step, progress.total_steps, progress.percent, progress.eta_seconds) == (20, 100, 20.0, 40)
    assert world.status.throughput.steps_per_second == 2.0
    assert world.status.metrics == {"loss": pytest.approx(1 / 21)}


def test_a_value_at_a_milestone_stays_as_it_was_reported_first():
    world = World(1).to_running()
    milestones = Milestones(metric="loss", percents=[10, 30])
    world.job = replace(world.job, spec=replace(world.job.spec, metrics=Metrics(milestones=milestones)))
    reported = (
        {"loss": 0.5, "loss@10%": 0.5},
        {"loss": 0.4},  # of a later round, whose program knows nothing of the earlier one
        {"loss": 0.3, "loss@10%": 0.3, "loss@30%": 0.3},
        {f"a{number}": 1.0 for number in range(90)},
    )
    kept = []
    for step, metrics in enumerate(reported, 1):
        agent = world.agents[world.at(0)]
        world.agents[world.at(0)] = replace(agent, reports=(replace(agent.reports[0], step=step, metrics=metrics),))
        world.settle()
        kept.append({name: value for name, value in world.status.metrics.items() if not name.startswith("a")})
    first = {"loss@10%": 0.5}
    both = first | {"loss@30%": 0.3}
    assert kept == [first | {"loss": 0.5}, first | {"loss": 0.4}, both | {"loss": 0.3}, both]
    assert len(world.status.metrics) == MAX_METRICS


def test_a_metric_that_is_not_finite_leaves_the_finite_ones_until_it_is_finite_again():
    world = World(1).to_running()
    milestones = Milestones(metric="loss", percents=[10, 30])
    world.job = replace(world.job, spec=replace(world.job.spec, metrics=Metrics(milestones=milestones)))
    nan = NonFiniteMetric(value="NaN", step=2)
    reported = [
        ({"loss": 0.5}, {}),
        ({}, {"loss": nan, "loss@10%": nan}),
        ({}, {}),
        ({"loss": 0.4, "loss@10%": 0.4}, {}),
        ({f"m{number}": 1.0 for number in range(90)}, {f"z{number}": nan for number in range(90)}),
    ]
    shown = []
    for step, (metrics, others) in enumerate(reported, 1):
        agent = world.agents[world.at(0)]
        report = replace(agent.reports[0], step=step, metrics=metrics, non_finite_metrics=others)
        world.agents[world.at(0)] = replace(agent, reports=(report,))
        world.settle()
        shown.append((world.status.metrics, world.status.non_finite_metrics))
    assert shown[:-1] == [
        ({"loss": 0.5}, {}),
        ({}, {"loss": nan, "loss@10%": nan}),
        ({}, {"loss": nan, "loss@10%": nan}),
        ({"loss": 0.4}, {"loss@10%": nan}),
    ]
    metrics, others = shown[-1]
    assert (metrics, len(others), "loss@10%" in others) == ({}, MAX_METRICS, True)


@pytest.mark.parametrize(("made", "rate"), [(None, 3.0), (20, 2.0), (1, None), (0, None), (-1, None)])
def test_a_program_that_reports_no_rate_gets_the_average_of_its_round(made, rate):
    """The steps that a checkpoint brought are none of it, and one step after a start tells no rate."""
    world = World(1).to_running()
    opened = world.status.attempts[-1].start_time
    world.now = opened + 10
    uid = world.at(0)
    world.agents[uid] = replace(
        world.agents[uid], reports=(RankReport(round=1, step=30, round_steps=made, phase="step", time=world.now),)
    )
    world.settle()
    assert world.status.throughput.steps_per_second == rate


def test_a_new_operator_has_no_pods_unready_that_had_no_time_to_call():
    world = World(2).to_running()
    assert (world.status.nodes.ready, condition(world, "PodsReady").status) == (2, "True")
    heard, world.agents = world.agents, {}
    world.restart_operator()
    world.now += 11
    world.settle()
    assert (world.status.nodes.ready, condition(world, "PodsReady").status) == (2, "True")
    world.agents = {world.at(0): heard[world.at(0)]}
    world.settle()
    assert world.status.nodes.ready == 2
    world.now += 2
    world.settle()
    assert (world.status.nodes.ready, condition(world, "PodsReady").status) == (1, "False")


def test_figures_alone_are_not_urgent_and_cause_no_events():
    world = World(1).to_running()
    world.advance_training(5)
    decided = plan(world.view())
    assert [type(action) for action in decided.actions] == [WriteStatus]
    assert not decided.actions[0].urgent


def test_warnings_of_a_program_are_in_the_status_and_announced_once():
    world = World(2).to_running()
    passed_over = "checkpoint passed over: step-00000009: digest differs from COMMIT"
    for index, warnings in ((0, (passed_over,)), (1, (passed_over, "x" * 500))):
        agent = world.agents[world.at(index)]
        (report,) = agent.reports
        world.agents[world.at(index)] = replace(agent, reports=(replace(report, warnings=warnings),))
    for _ in range(2):
        world.settle()
        assert world.status.warnings == [passed_over, "x" * 300]
    told = [each.message for each in world.events if each.reason == "TrainerWarning"]
    assert told == [f"the program warns ({text})" for text in world.status.warnings]


def test_hostile_figures_never_reach_the_status():
    world = World(1).to_running()
    uid = world.at(0)
    told = RankReport(
        round=1,
        step=3,
        total_steps=-5,
        epoch=float("nan"),
        phase="step",
        time=float("inf"),
        metrics={f"m{number}": float(number) for number in range(90)} | {"a": float("nan"), "b": float("inf")},
        throughput={"stepsPerSecond": float("nan"), "mfu": -1.0},
        checkpoint={"step": "many", "path": 7, "time": "never"},
    )
    world.agents[uid] = replace(world.agents[uid], reports=(told,))
    world.settle()
    status = world.status
    assert len(status.metrics) == 64
    assert not {"a", "b"} & set(status.metrics)
    assert (status.progress.total_steps, status.progress.epoch) == (None, None)
    assert status.throughput.steps_per_second is None
    assert status.checkpoint is None


def test_steps_at_risk_are_counted_from_the_checkpoint():
    world = World(1).to_running()
    world.advance_training(9, save=True)
    world.settle()
    world.advance_training(4)
    world.settle()
    assert (world.status.checkpoint.step, world.status.checkpoint.steps_at_risk) == (10, 4)


def test_a_checkpoint_that_rank_0_passes_over_or_lost_is_not_reported_any_more():
    world = World(2, trainer=Trainer(name="cvrp")).to_running()
    world.advance_training(9, save=True)
    world.settle()
    assert world.status.checkpoint.step == 10
    lead, other = world.at(0), world.at(1)
    (report,) = world.agents[lead].reports
    for told, known in (({"step": 5}, 5), (None, None)):
        found = replace(report, step=6, checkpoint=told)
        world.agents[lead] = replace(world.agents[lead], reports=(found,))
        world.agents[other] = replace(world.agents[other], reports=(replace(found, rank=1, checkpoint=None),))
        world.settle()
        checkpoint = world.status.checkpoint
        assert (checkpoint.step if checkpoint is not None else None) == known
        ready = condition(world, "CheckpointReady").status
        assert ready == ("True" if known else "False")
    assert world.status.restarts.total == 0


def test_gpus_that_two_pods_share_are_counted_once():
    world = World(2).to_running()
    card = GpuReport(uuid="GPU-1", memory_total_bytes=80, memory_used_bytes=20, utilization=50.0, power_w=300.0)
    for uid in list(world.agents):
        world.agents[uid] = replace(world.agents[uid], gpus=(card,))
    world.settle()
    gpus = world.status.gpus
    assert (gpus.count, gpus.memory_total_bytes, gpus.utilization, gpus.power_w) == (1, 80, 50.0, 300.0)


def test_all_wall_time_is_attributed_and_repeated_steps_are_lost():
    world = World(1, gpus_per_node=2).to_running()
    for _ in range(3):
        world.now += 20
        world.advance_training(10, save=True)
        world.settle()
    world.now += 20
    world.advance_training(10)
    world.settle()
    fail(world)
    world.settle()
    recover(world, 1)
    for uid in list(world.training):
        world.end_workers(uid, 0)
    world.settle()
    seconds = world.status.goodput.seconds
    assert sum(seconds.values()) == pytest.approx(world.now - START, abs=1)
    assert seconds["lost"] == pytest.approx(5, abs=1), "10 steps at 2 a second"
    assert seconds["recover"] == pytest.approx(400, abs=2)
    assert world.status.goodput.percent == pytest.approx(100 * seconds["productive"] / sum(seconds.values()), abs=0.1)
    assert world.status.gpu_seconds == pytest.approx(2 * (world.now - START), abs=4)


def test_one_event_a_transition():
    world = World(2).to_running()
    for uid in list(world.training):
        world.end_workers(uid, 0)
    world.settle()
    assert [event.reason for event in world.events] == ["RoundOpened", "Training", "Completed"]


def test_what_holds_a_job_up_is_announced_once_and_again_only_if_it_comes_back():
    world = World(1)
    world.settle()
    assert world.events == [], "waiting for pods is not worth an event"
    uid = world.at(0)
    for _ in range(2):
        for message in ("need 8, free at most 0", "need 8, free at most 4"):
            world.pods[uid] = replace(world.pods[uid], reason="InsufficientGPU", message=message)
            world.settle()
        world.pods[uid] = replace(world.pods[uid], reason="", message="")
        world.settle()
    assert [(each.type, each.reason) for each in world.events] == [("Warning", "InsufficientGPU")] * 2
    assert "need 8, free at most 0" in world.events[0].message


def test_a_gang_whose_agents_are_silent_is_not_said_to_make_steps():
    world = World(2).to_running()
    world.advance_training(5)
    world.settle()
    for uid in world.agents:
        world.agents[uid] = replace(world.agents[uid], connected=False)
    world.settle()
    assert world.status.reason == "Training", "they may be on their way"
    world.now += 31.0
    world.settle()
    assert (world.status.state, world.status.reason) == ("Running", "AgentSilent")
    assert "(job-0-0, job-0-1; it is not known whether they train)" in world.status.message
    assert [each.reason for each in world.events].count("AgentSilent") == 1
    world.agents.clear()
    world.restart_operator()
    world.settle()
    assert world.status.reason == "AgentSilent", "a new operator does not take that back"
    for uid in world.pods:
        world.call_in(uid)
        world.agents[uid] = replace(world.agents[uid], state="running", round=1)
    world.settle()
    assert (world.status.state, world.status.reason) == ("Running", "Training")


def test_a_new_operator_gives_agents_time_to_connect_before_it_reports_silence():
    world = World(2).to_running()
    world.now += 3600.0
    world.agents.clear()
    world.restart_operator()
    world.settle()
    assert world.status.reason == "Training"
    world.now += 31.0
    world.settle()
    assert (world.status.state, world.status.reason) == ("Running", "AgentSilent")


def test_a_stalled_gang_is_reported_and_announced_once():
    world = World(2).to_running()
    world.advance_training(5)
    world.settle()
    trains = dict(world.agents)
    uid = world.at(0)
    (report,) = world.agents[uid].reports
    for still in (601.0, 900.0):
        world.now += 300.0
        hung = replace(report, still_seconds=still)
        world.agents[uid] = replace(world.agents[uid], reports=(hung,), seen=world.now)
        world.settle()
        assert (world.status.state, world.status.reason) == ("Running", "StandingStill")
        age = "5m" if still == 601.0 else "10m"
        assert f"(the last step, {world.status.progress.step}, was made more than {age} ago)" in world.status.message
    world.agents.clear()
    world.restart_operator()
    world.settle()
    assert world.status.reason == "StandingStill", "a new operator has heard nothing else"
    world.agents.update(trains)
    world.settle()
    assert world.status.reason == "Training"
    assert [each.reason for each in world.events if each.type == "Warning"] == ["StandingStill"]


def test_an_exit_code_is_said_once_and_a_program_that_reports_nothing_makes_no_steps():
    world = World(1, command=["sleep", "1d"])
    world.settle()
    world.start_pods()
    world.settle()
    world.now += 31
    world.settle()
    assert (world.status.state, world.status.reason) == ("Running", "NoReports")
    assert world.events[-1].reason == "NoReports"
    fail(world, exception="", exit_code_only=True, message="exit code 1", rank=0)
    world.settle()
    assert world.status.message.count("exit code 1") == 1


def test_the_failure_is_announced_as_a_warning_with_its_evidence():
    world = World(1).to_running()
    fail(world, rank=0)
    world.settle()
    (event,) = [each for each in world.events if each.type == "Warning"]
    assert isinstance(event, EmitEvent)
    assert event.reason == "WorkerFailed"
    assert "ValueError: boom" in event.message
