"""Names of what belongs to a job. Deterministic, so that creating a thing twice is creating it once."""

MAX_NAME = 63
MAX_NODES = 1024
"""The status names every member of the newest round by its uid: 39 bytes each, and 24 of its 64 KiB for all else."""
# `<job>-<incarnation>-<index>` must fit a DNS label: 5 digits of incarnation, 4 of index, 2 hyphens.
MAX_INCARNATION = 99_999
MAX_JOB_NAME = MAX_NAME - 2 - len(str(MAX_INCARNATION)) - len(str(MAX_NODES - 1))


def pod_name(job_name: str, incarnation: int, index: int) -> str:
    """Name of the pod at `index` (0-based) in its `incarnation`; at most 63 characters for names up to MAX_JOB_NAME."""
    return f"{job_name}-{incarnation}-{index}"
