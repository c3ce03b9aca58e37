"""The spec of a job as it runs: what the user wrote, completed by its profile. Pure."""

from collections.abc import Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from torchyard.api.resource import TrainingJob, resolved, value_at
from torchyard.api.spec import TrainingJobSpec
from torchyard.api.spec_placement import Resources, Scheduling
from torchyard.api.spec_profile import Defaults, Limits, PinnedProfile
from torchyard.api.validation.rules_pods import WITH_QUEUES

FIELDS = (
    *("image", "imagePullSecrets", "serviceAccountName"),
    *("resources.cpu", "resources.memory", "resources.disk", "resources.shm"),
    *("scheduling.queue", "scheduling.priorityClass", "scheduling.workloadPriorityClass"),
    *("scheduling.nodeSelector", "scheduling.tolerations", "activeDeadline", "ttlAfterFinished"),
)
"""Fields that a profile may fill in."""
T = TypeVar("T")
RESOURCES = ("cpu", "memory", "disk", "shm")


def with_profile(job: TrainingJob, pinned: PinnedProfile | None) -> TrainingJob:
    """Return the job as it runs with a pinned profile; the same object without one."""
    if pinned is None or job.spec.profile != pinned.name:
        return job
    return replace(job, spec=with_defaults(job.spec, pinned.defaults))


def as_pinned(job: TrainingJob) -> TrainingJob:
    """Return the job as it runs with the profile in its status."""
    return with_profile(job, job.status.profile)


def with_defaults(spec: TrainingJobSpec, defaults: Defaults) -> TrainingJobSpec:
    """Return the spec with the defaults where it leaves a field open. Twice is the same as once."""
    return replace(
        spec,
        image=_first(spec.image, defaults.image),
        image_pull_secrets=_union(spec.image_pull_secrets, defaults.image_pull_secrets),
        service_account_name=_first(spec.service_account_name, defaults.service_account_name),
        resources=_resources(spec.resources, defaults),
        scheduling=_scheduling(spec.scheduling, defaults),
        active_deadline=_first(spec.active_deadline, defaults.active_deadline),
        ttl_after_finished=_first(spec.ttl_after_finished, defaults.ttl_after_finished),
    )


def filled_in(spec: TrainingJobSpec, defaults: Defaults) -> dict[str, Any]:
    """Return the fields, relative to `spec`, that the defaults fill in or add to, with their values."""
    before, after = resolved(spec), resolved(with_defaults(spec, defaults))
    values = {field: value_at(after, field) for field in FIELDS}
    return {field: value for field, value in values.items() if value != value_at(before, field)}


def enforced(defaults: Defaults, limits: Limits) -> Defaults:
    """Return the defaults with the labels of nodes that the limits impose, which win."""
    if not limits.node_labels:
        return defaults
    scheduling = defaults.scheduling
    labels = {**scheduling.node_selector, **limits.node_labels}
    return replace(defaults, scheduling=replace(scheduling, node_selector=labels))


def _resources(given: Resources, defaults: Defaults) -> Resources:
    missing = {name: _first(getattr(given, name), getattr(defaults.resources, name)) for name in RESOURCES}
    return replace(given, **missing)


def _scheduling(given: Scheduling, defaults: Defaults) -> Scheduling:
    ours = defaults.scheduling
    return replace(
        given,
        queue=_first(given.queue, ours.queue if given.gang in WITH_QUEUES else None),
        priority_class=_first(given.priority_class, ours.priority_class),
        # Only a job that asks for Kueue by name may have one.
        workload_priority_class=_first(
            given.workload_priority_class, ours.workload_priority_class if given.gang == "kueue" else None
        ),
        node_selector={**ours.node_selector, **given.node_selector},
        tolerations=_union(given.tolerations, ours.tolerations),
    )


def _first(given: T | None, default: T | None) -> T | None:
    return default if given is None else given


def _union(given: Sequence[T], added: Sequence[T]) -> list[T]:
    return [*given, *(each for each in added if each not in given)]
