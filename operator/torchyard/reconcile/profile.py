"""What the profile of a job means for its plan: the values that it sets, or why no pod may exist. Pure.

The profile is pinned in the status with the first gang: later edits of it neither restart a job nor change what its
next pods look like. A suspended job that continues takes it as it is then. The limits are judged whenever the spec of
the job has changed, since the chart's policies may be off, or may have been while the job was written.
"""

from msgspec import Struct
from msgspec.structs import replace

from torchyard.api.profiles.effective import enforced, with_defaults
from torchyard.api.profiles.limits import faults
from torchyard.api.profiles.resource import TrainingProfile
from torchyard.api.reasons import NO_REASON, Reason
from torchyard.api.resource import TrainingJob
from torchyard.api.spec_profile import PinnedProfile
from torchyard.api.status import TrainingJobStatus
from torchyard.api.validation.parse import broken_rules

MAX_FAULTS = 3


class ProfileVerdict(Struct, frozen=True, kw_only=True):
    """The profile of a job.

    Attributes:
        pinned: what it sets; None: nothing, or it is not known yet.
        reason: why no pod may be created; empty: it may.
        evidence: of the reason.
    """

    pinned: PinnedProfile | None = None
    reason: Reason = NO_REASON
    evidence: str = ""


NO_PROFILE = ProfileVerdict()


def apply_profile(job: TrainingJob, profile: TrainingProfile | None, unknown: str = "") -> ProfileVerdict:
    """Return what the profile that a job names means for it.

    Args:
        job: as its user wrote it.
        profile: of that name; None: it does not exist.
        unknown: why the profiles of the cluster are not known; empty: they are.
    """
    name, status = job.spec.profile, job.status
    if name is None:
        return NO_PROFILE
    pinned = status.profile if status.profile is not None and status.profile.name == name else None
    generation = job.metadata.generation
    begins = pinned is None or status.images is None  # no pod has it yet
    if pinned is not None and (pinned.checked_generation == generation or job.spec.suspend or status.state.terminal):
        return ProfileVerdict(pinned=pinned)
    if profile is None or profile.problem:
        if pinned is not None and not begins:
            return ProfileVerdict(pinned=pinned)  # a profile that was deleted takes nothing from jobs that run
        found = unknown or (f"{name}: {profile.problem}" if profile is not None else f"there is no profile {name}")
        return ProfileVerdict(pinned=pinned, reason=Reason.PROFILE_NOT_FOUND, evidence=found)
    if pinned is None or begins:
        pinned = PinnedProfile(
            name=name,
            uid=profile.uid,
            generation=profile.generation,
            defaults=enforced(profile.spec.defaults, profile.spec.limits),
        )
    # The reason has the fix of a limit.
    limits = [f"{each.path}: {each.what}" for each in faults(job.spec, profile.spec, name, job.metadata.namespace)]
    outside = limits or [
        f"with the defaults of profile {name}, {path}: {what}: {fix}"
        for path, what, fix in broken_rules(with_defaults(job.spec, pinned.defaults))
    ]
    if outside:
        evidence = "; ".join(outside[:MAX_FAULTS])
        return ProfileVerdict(pinned=pinned, reason=Reason.OUTSIDE_PROFILE, evidence=evidence)
    return ProfileVerdict(pinned=replace(pinned, checked_generation=generation))


def with_pinned(status: TrainingJobStatus, verdict: ProfileVerdict, named: str | None) -> TrainingJobStatus:
    """Return the status with the profile of the job, once its limits are kept.

    Args:
        status: of the job.
        verdict: about its profile.
        named: `spec.profile`.
    """
    if named is None:
        return status if status.profile is None else replace(status, profile=None)
    if verdict.reason or verdict.pinned is None or status.profile == verdict.pinned:
        return status
    return replace(status, profile=verdict.pinned)
