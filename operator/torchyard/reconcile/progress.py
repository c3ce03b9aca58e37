"""Figures and warnings of a job from the reports of the open round: step, rate, metrics, checkpoint, GPUs; goodput.

Every reported value is checked. Goodput attributes every second since the job's creation: the sum of its entries is the
wall time that is attributed already. The time since then goes to the activity in the persisted status; `plan` persists
every change of it at once. A warning means that the job continues, but probably not as its author intended.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from torchyard.api.curves import with_points
from torchyard.api.reasons import Reason, say
from torchyard.api.status import (
    MAX_METRICS,
    MAX_WARNING,
    MAX_WARNINGS,
    CheckpointStatus,
    Curve,
    Goodput,
    Gpus,
    Nodes,
    NonFiniteMetric,
    Phase,
    Progress,
    State,
    Throughput,
    TrainingJobStatus,
)
from torchyard.api.values import Time, plural, since, span
from torchyard.reconcile import pace
from torchyard.reconcile.inputs import is_fetching, with_inputs
from torchyard.reconcile.observed import GpuReport, Observed, RankReport, View, admitted_nodes, is_flexible

RETURN_SECONDS = 12.0  # how long agents may take to connect to a new operator: they try at least every ten
MAX_NAME = 64
MAX_DEVICES = 16
MAX_RANGES = 200
# A program may make its first steps before it creates the process group, to warm up or to compile.
ALONE_SECONDS = 60.0
# Ages of the last step that a message mentions: each of them costs a status write.
STEP_AGES = (60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, *(3600.0 * hours for hours in range(1, 49)))

Advisory = tuple[Reason, str]
"""Reason and evidence. The evidence does not change from step to step: each is announced once."""


def running(status: TrainingJobStatus) -> Reason:
    """Return the reason of a started round, from the newest report of its first rank, even of an earlier process."""
    if status.progress.stalled is not None:
        return Reason.STANDING_STILL if status.progress.stalled else Reason.TRAINING
    stepped = bool(status.attempts) and status.attempts[-1].end_step > status.attempts[-1].start_step
    return Reason.TRAINING if stepped else Reason.NO_REPORTS


def step_age(seen: Observed, status: TrainingJobStatus) -> tuple[str, float | None]:
    """Return a sentence about the age of the last step if it is long, and when that sentence changes."""
    made = status.progress.last_step_time
    if made is None or not seen.reports:
        return "", None
    passed = [age for age in STEP_AGES if made + age <= seen.view.now]
    ahead = next((made + age for age in STEP_AGES if made + age > seen.view.now), None)
    if not passed:
        return "", ahead
    phase = f", rank 0 is in phase {status.progress.phase}" if status.progress.phase not in {"", Phase.STEP} else ""
    return f"the last step, {status.progress.step}, was made more than {span(passed[-1])} ago{phase}", ahead


def counts_from_start(seen: Observed, status: TrainingJobStatus) -> bool:
    """Return whether steps of a later round are counted from 0, since the program does not report where it resumed."""
    reports = seen.reports
    return status.round > 1 and bool(reports) and reports[0].from_start


def with_figures(seen: Observed, status: TrainingJobStatus) -> TrainingJobStatus:
    """Return the status with the figures of the agents: progress, metrics, throughput, checkpoint, GPUs, nodes."""
    view = seen.view
    reports = seen.reports
    environment = next((agent.environment for agent in view.agents.values() if agent.environment), status.environment)
    status = replace(status, nodes=_nodes(seen, status), gpus=_gpus(seen, status), environment=environment)
    status = with_inputs(seen, status) if view.job.spec.inputs else status
    status = replace(status, environment=environment, image_pull=seen.slowest_pull or status.image_pull)
    status = replace(status, nodes=_nodes(seen, status), gpus=_gpus(seen, status))
    if not reports:
        known = [*status.warnings, *warnings(seen, status)]
        return replace(status, warnings=list(dict.fromkeys(known))[:MAX_WARNINGS])
    lead = reports[0]
    step = max(report.step for report in reports)
    throughput = _throughput(lead.throughput)
    if throughput.steps_per_second is None and (rate := _observed_rate(status, lead, step)):
        throughput = replace(throughput, steps_per_second=_short(rate))
    checkpoint = newest_checkpoint(reports, None if _has_none(view, lead) else status.checkpoint, step)
    attempts = status.attempts
    if attempts:
        attempts = [*attempts[:-1], replace(attempts[-1], end_step=max(attempts[-1].end_step, step))]
    metrics = _metrics(view, status, lead)
    return replace(
        status,
        progress=_progress(view, status, lead, step, throughput),
        throughput=throughput,
        **metrics,
        curves=_curves(view.job.status, lead, replace(status, **metrics)),
        checkpoint=checkpoint,
        devices=devices(reports) or status.devices,
        pace=pace.with_pace(seen, view.job.status.pace),
        batch=lead.batch or status.batch,
        warnings=list(warnings(seen, status))[:MAX_WARNINGS],
        attempts=attempts,
        artifacts=list(lead.artifacts) or status.artifacts,
    )


def _metrics(view: View, status: TrainingJobStatus, lead: RankReport) -> dict[str, Any]:
    """Return the checked metrics; a value at a milestone stays as it was reported first, also in later rounds."""
    before = view.job.status
    reported: dict[str, float | NonFiniteMetric] = {
        name[:MAX_NAME]: _short(value) for name, value in sorted(lead.metrics.items()) if _finite(value)
    }
    reported |= {name[:MAX_NAME]: each for name, each in sorted(lead.non_finite_metrics.items())}
    if not reported:
        return {"metrics": status.metrics, "non_finite_metrics": status.non_finite_metrics}
    milestones = view.job.spec.metrics.milestones
    names = [name[:MAX_NAME] for name in milestones.names.values()] if milestones is not None else []
    known = reported | before.metrics | before.non_finite_metrics
    kept = {name: known[name] for name in names if name in known}
    # What is not finite comes first: left out, it would look as if the metric did not exist.
    others = sorted((name for name in reported if name not in kept), key=lambda name: isinstance(reported[name], float))
    chosen = kept | {name: reported[name] for name in others[: MAX_METRICS - len(kept)]}
    return {
        "metrics": {name: value for name, value in sorted(chosen.items()) if not isinstance(value, NonFiniteMetric)},
        "non_finite_metrics": {
            name: value for name, value in sorted(chosen.items()) if isinstance(value, NonFiniteMetric)
        },
    }


def _curves(before: TrainingJobStatus, lead: RankReport, status: TrainingJobStatus) -> dict[str, Curve]:
    """Return the curves with the values that are new: a report repeats those of the last evaluation."""
    finite = {name: value for name, value in status.metrics.items() if before.metrics.get(name) != value}
    others = {
        name: math.nan
        for name, each in status.non_finite_metrics.items()
        if before.non_finite_metrics.get(name) != each
    }
    values = {name: value for name, value in (finite | others).items() if "@" not in name}
    step = max(0, lead.step)
    return with_points(before.curves, step, values, status.round) if values and step else before.curves


def warnings(seen: Observed, status: TrainingJobStatus) -> dict[str, Reason]:
    """Return the warnings by reason: those of the operator, of ranks, and notices of agents."""
    slow = pace.evidence(pace.with_pace(seen, seen.view.job.status.pace))
    own = ((say(each, why), each) for each, why in (*advisories(seen.view, status, seen.reports), *slow))
    ranks = ((text, Reason.TRAINER_WARNING) for report in seen.reports for text in report.warnings)
    agents = (agent for _, agent in sorted(seen.view.agents.items()))
    notices = ((say(Reason.AGENT_NOTICE, text), Reason.AGENT_NOTICE) for agent in agents for text in agent.notices)
    found: dict[str, Reason] = {}
    for text, reason in (*own, *ranks, *notices):
        found.setdefault(text[:MAX_WARNING], reason)
    return found


def advisories(view: View, status: TrainingJobStatus, reports: Sequence[RankReport]) -> tuple[Advisory, ...]:
    """Return what to warn of in the open round."""
    found = (_not_communicating(view, status, reports), _unused_gpus(view, reports))
    return tuple(each for each in found if each is not None)


def devices(reports: Iterable[RankReport]) -> dict[str, str]:
    """Return the ranks of each device, as ranges: `{"cuda:0 NVIDIA H100": "0,8", "cpu": "1-7"}`."""
    ranks: dict[str, list[int]] = {}
    for report in reports:
        if report.device:
            ranks.setdefault(report.device, []).append(report.rank)
    return {device: ranges(found) for device, found in sorted(ranks.items())[:MAX_DEVICES]}


def ranges(numbers: Iterable[int]) -> str:
    """Return whole numbers as ranges, cut where they are too many to be read: `0-7,16,24-31`."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    text = ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)
    return text if len(text) <= MAX_RANGES else f"{text[:MAX_RANGES].rpartition(',')[0]},..."


def _not_communicating(view: View, status: TrainingJobStatus, reports: Sequence[RankReport]) -> Advisory | None:
    """Return ranks that made steps although none of them created a process group, if they can be inspected."""
    alone = [each for each in reports if each.alone_seconds is not None]
    if len(alone) < 2 or len(alone) < len(reports):
        return None
    over = [_ended_well(view, uid, status.round) for uid in status.rendezvous.members]
    if not all(over) and min(each.alone_seconds or 0.0 for each in alone) < ALONE_SECONDS:
        return None
    return Reason.RANKS_NOT_COMMUNICATING, f"{plural(len(alone), 'rank')} made steps, none created a process group"


def _ended_well(view: View, uid: str, number: int) -> bool:
    agent = view.agents.get(uid)
    ended = agent.exit if agent is not None else None
    return ended is not None and ended.round == number and ended.code == 0


def _unused_gpus(view: View, reports: Sequence[RankReport]) -> Advisory | None:
    asked = view.job.spec.gpus_per_node
    idle = [each.rank for each in reports if each.device == "cpu"]
    if not asked or not idle:
        return None
    who = f"rank {idle[0]} trains" if len(idle) == 1 else f"ranks {ranges(idle)} train"
    return Reason.GPUS_NOT_USED, f"{who} on the CPU, gpusPerNode is {asked}"


def _progress(view: View, status: TrainingJobStatus, lead: RankReport, step: int, throughput: Throughput) -> Progress:
    total = lead.total_steps if lead.total_steps and lead.total_steps > 0 else None
    percent = round(min(100.0, 100.0 * step / total), 2) if total else None
    rate = throughput.steps_per_second
    eta = round(max(0, total - step) / rate) if total and rate and (total - step) / rate < 1e9 else None
    moved = step != status.progress.step or status.progress.last_step_time is None
    reported = lead.time if 0 < lead.time <= view.now else view.now
    return Progress(
        step=step,
        total_steps=total,
        epoch=lead.epoch if lead.epoch is not None and _finite(lead.epoch) else None,
        percent=percent,
        eta_seconds=eta,
        last_step_time=Time.of(reported) if moved and step > 0 else status.progress.last_step_time,
        phase=lead.phase[:32],
        stalled=lead.still_seconds > 0,
    )


def _observed_rate(status: TrainingJobStatus, lead: RankReport, step: int) -> float:
    """Return the steps per second since the round opened, for programs that report no rate.

    Programs that count their own steps measure the rate from the second step on; the first one includes the start.
    """
    if not status.attempts or lead.round_steps == 1:
        return 0.0
    attempt = status.attempts[-1]
    made = step - attempt.start_step if lead.round_steps is None else lead.round_steps
    elapsed = lead.time - since(attempt.start_time, lead.time)
    return max(0.0, made / elapsed) if elapsed > 0 else 0.0


def _throughput(reported: Mapping[str, float]) -> Throughput:
    """Return the checked throughput of the whole gang, which rank 0 reports."""

    def figure(name: str) -> float | None:
        value = reported.get(name)
        return _short(value) if value is not None and _finite(value) and value >= 0 else None

    return Throughput(
        steps_per_second=figure("stepsPerSecond"),
        samples_per_second=figure("samplesPerSecond"),
        tokens_per_second=figure("tokensPerSecond"),
        mfu=figure("mfu"),
    )


def newest_checkpoint(
    reports: Sequence[RankReport], before: CheckpointStatus | None, step: int
) -> CheckpointStatus | None:
    """Return the newest complete checkpoint that any rank reports, and how far `step` is beyond it.

    Rank 0 has read the folder in this round: if it continues from an older one, newer ones were unreadable.
    """
    known = [(saved, report) for report in reports if (saved := _saved_step(report)) is not None]
    newest = before
    for saved, report in known:
        stale = newest is not None and report.rank == 0 and saved < newest.step
        if newest is None or stale or saved > newest.step:
            newest = _read_checkpoint(saved, report.checkpoint or {})
    return replace(newest, steps_at_risk=max(0, step - newest.step)) if newest is not None else None


def _saved_step(report: RankReport) -> int | None:
    saved = (report.checkpoint or {}).get("step")
    return saved if isinstance(saved, int) and not isinstance(saved, bool) and saved >= 0 else None


def _has_none(view: View, lead: RankReport) -> bool:
    """Return whether rank 0 of a built-in trainer makes steps without a checkpoint: earlier ones are lost."""
    trainer = view.job.spec.trainer
    trains = trainer is not None and trainer.mode == "train"
    phase = Phase.of(lead.phase)
    stepped = phase is not None and (phase.after_step or phase is Phase.STEP)
    return trains and stepped and lead.rank == 0 and lead.checkpoint is None


def _read_checkpoint(step: int, reported: Mapping[str, Any]) -> CheckpointStatus:
    time, size_, seconds, path = (reported.get(name) for name in ("time", "bytes", "saveSeconds", "path"))
    return CheckpointStatus(
        step=step,
        time=Time.of(float(time)) if time is not None and _finite(time) and 0 < time < 1e11 else None,
        path=path[:1024] if isinstance(path, str) else "",
        bytes=size_ if isinstance(size_, int) and not isinstance(size_, bool) else None,
        save_seconds=float(seconds) if seconds is not None and _finite(seconds) else None,
    )


def _nodes(seen: Observed, status: TrainingJobStatus) -> Nodes:
    view = seen.view
    held = seen.active
    agents = [view.agents.get(pod.uid) for index, pod in held.items() if index < seen.desired_pods]
    ready = sum(agent is not None and agent.connected and agent.state in {"ready", "running"} for agent in agents)
    if status.rendezvous.open and view.now < view.since + RETURN_SECONDS:
        # Members connect to a new operator one by one: those that have not connected yet keep their state.
        ready = max(ready, min(status.nodes.ready, ready + agents.count(None)))
    # A spare is ready in the place of a member that is not.
    desired = view.job.spec.nodes if is_flexible(view.job.spec) else seen.size
    return Nodes(desired=desired, ready=min(ready, desired), lost=status.nodes.lost)


def _gpus(seen: Observed, status: TrainingJobStatus) -> Gpus:
    """Return the GPUs of the gang; a GPU that two pods see counts once."""
    held = [seen.view.agents.get(pod.uid) for pod in seen.active.values()]
    found: dict[str, GpuReport] = {}
    for agent in held:
        for gpu in agent.gpus if agent is not None else ():
            found[gpu.uuid or f"{agent.pod_uid if agent is not None else ''}/{gpu.index}"] = gpu
    cards = list(found.values())
    if not cards:
        return Gpus(count=status.gpus.count) if held and not any(held) else Gpus()
    busy = [gpu.utilization for gpu in cards if _finite(gpu.utilization)]
    heat = [gpu.temperature_c for gpu in cards if _finite(gpu.temperature_c)]
    power = [gpu.power_w for gpu in cards if _finite(gpu.power_w)]
    return Gpus(
        count=len(cards),
        utilization=round(math.fsum(map(float, filter(_finite, busy))) / len(busy), 1) if busy else None,  # type: ignore[arg-type]
        memory_used_bytes=sum(gpu.memory_used_bytes for gpu in cards),
        memory_total_bytes=sum(gpu.memory_total_bytes for gpu in cards),
        temperature_c=max(value for value in heat if value is not None) if heat else None,
        power_w=round(math.fsum(value for value in power if value is not None), 1) if power else None,
    )


def _short(value: float) -> float:
    """Return six significant digits: more would only enlarge every status."""
    return float(f"{value:.6g}")


def _finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e308


def advance(view: View, status: TrainingJobStatus) -> TrainingJobStatus:
    """Attribute the time since the last entry, and count the GPU seconds held in it."""
    before = view.job.status
    created = view.job.metadata.creation_timestamp or before.start_time
    if created is None or before.state.terminal:
        return status
    seconds = dict(before.goodput.seconds) if before.goodput is not None else {}
    due = view.now - created - math.fsum(seconds.values())
    if due <= 0:
        return status
    kind = _kind(view, before)
    seconds[kind] = seconds.get(kind, 0.0) + due
    held = sum(pod.phase == "Running" for pod in view.pods) * view.job.spec.gpus_per_node
    if view.job.spec.resources.claims and any(pod.phase == "Running" for pod in view.pods):
        held = max(held, before.gpus.count)  # claims do not tell; the agents count
    return replace(status, goodput=_goodput(seconds), gpu_seconds=round(status.gpu_seconds + due * held, 3))


def _kind(view: View, before: TrainingJobStatus) -> str:
    if before.state == State.PENDING and len(view.pods) >= admitted_nodes(view) and all(pod.node for pod in view.pods):
        return "pull" if before.reason == Reason.PULLING_IMAGE or any(pod.pulling for pod in view.pods) else "start"
    if before.state == State.RUNNING and before.progress.stalled and not before.rendezvous.silent:
        return "stalled"
    if before.reason == Reason.FETCHING_CODE:
        return "code"
    if before.state.activity:
        if before.reason == Reason.INSTALLING_REQUIREMENTS:
            return "requirements"
        return "inputs" if before.inputs and is_fetching(before) else before.state.activity
    phase = Phase.of(before.progress.phase)
    return phase.activity if phase is not None else "productive"


def lose(status: TrainingJobStatus, end_step: int) -> TrainingJobStatus:
    """Move the time of steps beyond the newest checkpoint from `productive` to `lost`: they will be repeated."""
    if status.goodput is None or not status.attempts:
        return status
    attempt = status.attempts[-1]
    durable = status.checkpoint.step if status.checkpoint is not None else 0
    repeated = end_step - max(durable, attempt.start_step)
    made = end_step - attempt.start_step
    if repeated <= 0 or made <= 0:
        return status
    seconds = dict(status.goodput.seconds)
    productive = seconds.get("productive", 0.0)
    rate = status.throughput.steps_per_second
    lost = min(productive, repeated / rate) if rate else 0.0
    seconds |= {"productive": productive - lost, "lost": seconds.get("lost", 0.0) + lost}
    return replace(status, goodput=_goodput(seconds))


def _goodput(seconds: dict[str, float]) -> Goodput:
    total = math.fsum(seconds.values())
    percent = 100.0 * seconds.get("productive", 0.0) / total if total > 0 else 0.0
    return Goodput(
        percent=round(percent, 2),
        seconds={kind: round(value, 3) for kind, value in sorted(seconds.items()) if value > 0},
    )
