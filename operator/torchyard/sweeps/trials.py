"""The job of a trial: made from the sweep, read back as a `Trial`, and edited (pure)."""

import functools
import hashlib
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from torchyard.api.formatting import clean
from torchyard.api.names import SWEEP, SWEEP_UID, TRIAL
from torchyard.api.resource import GROUP, ObjectMeta, TrainingJob, resolved, sparse, value_at
from torchyard.api.spec import TrainingJobSpec
from torchyard.api.spec_reliability import Restart
from torchyard.api.validation.changes import FIXED, forbidden_changes
from torchyard.api.values import since
from torchyard.sweeps.outcomes import Trial, Value, milestones_of
from torchyard.sweeps.resource import KIND, MAX_REJECTED, TrainingSweep, TrialRecord, Unit, trial_name
from torchyard.sweeps.space import fault_of, trial_spec
from torchyard.sweeps.spec import MAY_CHANGE, TrainingSweepSpec


def trial_of(job: TrainingJob) -> Trial:
    """Return a trial as decisions see it.

    Raises:
        ValueError: what the sweep stored on the job was damaged.
    """
    try:
        record = msgspec.json.decode(str(job.metadata.annotations.get(TRIAL)), type=TrialRecord)
    except msgspec.DecodeError as error:
        fix = "delete the trial; it is then run again"
        raise ValueError(f"run {job.metadata.name}: annotation {TRIAL}: {error}; {fix}") from error
    if not record.units:
        raise ValueError(
            f"run {job.metadata.name}: annotation {TRIAL}: no units; delete the trial; it is then run again"
        )
    status = job.status
    return Trial(
        record=record,
        state=status.state,
        suspended=job.spec.suspend,
        metrics={**status.metrics, **{name: each.value for name, each in status.non_finite_metrics.items()}},
        reason=status.reason,
        message=status.message,
        ended=since(job.metadata.creation_timestamp if record.rejected else status.completion_time, 0.0),
    )


class Role(Struct, frozen=True, kw_only=True):
    """What a job is in its sweep, for people."""

    sweep: str
    sentence: str
    decided: bool
    """Whether what comes next is for the sweep alone to decide."""


def role_of(job: TrainingJob) -> Role | None:
    """Return what a job is in its sweep; None: it is no trial, or does not say so in a form that can be read."""
    sweep = job.metadata.labels.get(SWEEP)
    try:
        record = trial_of(job).record if sweep else None
    except ValueError:
        return None
    if not sweep or record is None:
        return None
    sentence, decided = f"It is trial {record.number} of sweep {sweep}", True
    if record.rejected:
        sentence += (
            f". Its parameters do not form a valid job, so it never runs and counts as failed: {record.rejected}"
        )
    elif job.spec.suspend and record.values:
        sentence += (
            ", which stopped it early and continues it if it is among the best later; a trial that is resumed by hand "
            "is stopped again"
        )
    else:
        decided = False
    return Role(sweep=sweep, sentence=f"{sentence}.", decided=decided)


def is_owned(sweep: TrainingSweep, job: ObjectMeta) -> bool:
    """Return whether a job of this namespace says that this sweep controls it. Any user may have written that."""
    controllers = [each for each in job.owner_references if each.controller]
    return (
        job.namespace == sweep.metadata.namespace
        and job.labels.get(SWEEP_UID) == sweep.metadata.uid
        and [(each.api_version.partition("/")[0], each.kind, each.name, each.uid) for each in controllers]
        == [(GROUP, KIND, sweep.metadata.name, sweep.metadata.uid)]
    )


def trial_job(sweep: TrainingSweep, record: TrialRecord) -> TrainingJob:
    """Return the job of a new trial; a job with rungs reports its values there.

    Parameters that only together are invalid make no job. The record then says why, so that the trial counts as failed
    for every controller and the search goes on. Its job is suspended, and its program only says why:
    resumed by hand, it trains nothing.
    """
    template = sweep.spec.job_template.spec
    fault = fault_of(template, record.parameters)
    if rejected := record.rejected or (": ".join(fault) if fault is not None else ""):
        record = replace(record, rejected=clean(rejected)[:MAX_REJECTED])
        spec = without_program(template, record.rejected)
    else:
        spec = _spec(sweep.spec, record)
    metadata = ObjectMeta(
        name=trial_name(sweep.metadata.name, record.number),
        namespace=sweep.metadata.namespace,
        labels={SWEEP: sweep.metadata.name, SWEEP_UID: sweep.metadata.uid},
        annotations={TRIAL: encoded(record)},
    )
    return TrainingJob(metadata=metadata, spec=spec)


def edited_fields(sweep: TrainingSweepSpec, record: TrialRecord, job: TrainingJob) -> list[str]:
    """Return the fields of a trial's spec that were edited after its creation, of those that decide its result.

    Its record is signed, its spec is not: a user who may change jobs can suspend a trial and give it another image.
    A site's webhooks may add to the spec when the job is created. What was stored then is known to be right as long as
    the job was never edited, and the sweep records a digest of it, the seal, before its first edit.
    """
    if record.rejected or job.metadata.generation == 1 or record.seal == seal(job.spec):
        return []
    made = replace(_spec(sweep, record), suspend=False)
    fields = [fixed.field for fixed in forbidden_changes(made, job.spec, with_next_round=False)]
    return fields or (["other fields"] if record.seal else [])


def seal(spec: TrainingJobSpec) -> str:
    """Return a digest of the fields that cannot change while a job trains. Fields at their default are left out."""
    default, fixed = _default_fields(), _fixed_fields(spec)
    given = {field: value for field, value in fixed.items() if value != default[field]}
    return hashlib.sha256(msgspec.json.encode(given, order="sorted")).hexdigest()[:16]


@functools.cache
def _default_fields() -> dict[str, Any]:
    return _fixed_fields(TrainingJobSpec())


def _fixed_fields(spec: TrainingJobSpec) -> dict[str, Any]:
    document = resolved(spec)
    return {each.field: value_at(document, each.field) for each in FIXED}


def _spec(sweep: TrainingSweepSpec, record: TrialRecord) -> TrainingJobSpec:
    spec = trial_spec(sweep.job_template.spec, record.parameters)
    milestones = milestones_of(sweep)
    return spec if milestones is None else replace(spec, metrics=replace(spec.metrics, milestones=milestones))


OF_PODS = (
    *("image", "image_pull_secrets", "service_account_name", "pod_labels", "pod_annotations", "volumes", "resources"),
    *("nodes", "gpus_per_node", "gpu", "device", "scheduling", "active_deadline", "grace_period"),
)
"""Fields that a quota or a policy of the cluster may judge, and that no workload needs."""


def without_program(template: TrainingJobSpec, why: str) -> TrainingJobSpec:
    """Return a suspended job with the pods of the template, whose program ends with an error that says why."""
    said = f"this trial has no valid job, so there is nothing to run: {why}"
    return TrainingJobSpec(
        script=f"raise SystemExit({said!a})",
        suspend=True,
        restart=Restart(policy="Never"),
        **{name: getattr(template, name) for name in OF_PODS},
    )


def edited(
    job: TrainingJob, *, suspend: bool, unit: Unit | None = None, values: dict[str, Value] | None = None
) -> TrainingJob:
    """Return the job of a trial that is stopped or continued, with the decision stored in it.

    Args:
        job: of the trial.
        suspend: whether it is stopped.
        unit: the decision that continues it.
        values: at rungs, of a trial that is stopped.
    """
    record = trial_of(job).record
    units = record.units if unit is None or unit in record.units else [*record.units, unit]
    record = replace(
        record, units=units, values=values if values is not None else record.values, seal=record.seal or seal(job.spec)
    )
    annotations = {**job.metadata.annotations, TRIAL: encoded(record)}
    return replace(
        job, metadata=replace(job.metadata, annotations=annotations), spec=replace(job.spec, suspend=suspend)
    )


def encoded(record: TrialRecord) -> str:
    """Return a record as the value of its annotation."""
    return msgspec.json.encode(record).decode()


def fingerprint(spec: TrainingSweepSpec) -> str:
    """Return a digest of what may not change in a sweep. Fields at their default are left out of it."""
    fixed = replace(spec, **_free_defaults())
    return hashlib.sha256(msgspec.json.encode(sparse(fixed), order="sorted")).hexdigest()[:16]


@functools.cache
def _free_defaults() -> dict[str, Any]:
    """Return the defaults of the fields that may change, by name."""
    return {each.name: each.default for each in msgspec.structs.fields(TrainingSweepSpec) if each.name in MAY_CHANGE}
