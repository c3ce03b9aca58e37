"""The code that travels with a job: whether it has arrived, and what a round and the status know of it."""

from torchyard.api.names import CODE_ARRIVED, SWEEP_UID
from torchyard.api.resource import TrainingJob
from torchyard.api.spec import TrainingJobSpec
from torchyard.api.spec_code import Code
from torchyard.api.status import CodeStatus


def missing_code(job: TrainingJob) -> str:
    """Return which code of a job has not arrived, so that pods would only hold resources; empty: all has.

    The operator may not read ConfigMaps: who submits the job notes in an annotation that they are there. The trials of
    a sweep have the code of their sweep, for which their pods wait.
    """
    code = job.spec.code
    if code is None:
        return ""
    if code.digest is None:
        return f"spec.code.path is {code.path}, a folder of the machine that the job was written on"
    arrived = SWEEP_UID in job.metadata.labels or job.metadata.annotations.get(CODE_ARRIVED) == code.digest
    return "" if arrived else f"digest {code.digest[:12]}"


def code_of_round(spec: TrainingJobSpec) -> dict[str, str]:
    """Return what agents and trainers learn of the code of a round; empty: it is in the image."""
    if spec.code is None or spec.code.digest is None:
        return {}
    known = {"commit": spec.code.commit, "branch": spec.code.branch, "diff": spec.code.diff}
    return {"digest": spec.code.digest, **{name: text for name, text in known.items() if text}}


def code_status(code: Code | None) -> CodeStatus | None:
    """Return the code of a round as the status names it."""
    if code is None or code.digest is None:
        return None
    return CodeStatus(
        digest=code.digest, commit=code.commit or "", branch=code.branch or "", changed=code.diff is not None
    )
