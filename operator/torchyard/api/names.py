"""Names of jobs, and how long those of jobs and pods may be; imports nothing, so that `--help` stays fast."""

import re

MAX_NAME = 63
MAX_NODES = 1024
"""The status names every member of the newest round by its uid: 39 bytes each, and 24 of its 64 KiB for all else."""
# `<job>-<incarnation>-<index>` must fit a DNS label: 5 digits of incarnation, 4 of index, 2 hyphens.
MAX_INCARNATION = 99_999
MAX_JOB_NAME = MAX_NAME - 2 - len(str(MAX_INCARNATION)) - len(str(MAX_NODES - 1))
SCRIPT_SUFFIX = ".py"


def derived_name(program: str) -> str:
    """Derive the name of a job from that of a script, module or function: `My_train` gives `my-train`."""
    name = re.sub(r"[^a-z0-9]+", "-", program.lower()).strip("-")
    name = name if name[:1].isalpha() else f"job-{name}".rstrip("-")
    return name[:MAX_JOB_NAME].rstrip("-")


JOB_LABEL = "torchyard.dev/job"
"""Label of a pod: the name of its job."""
SWEEP = "torchyard.dev/sweep"
"""Label of a trial: the name of its sweep."""
SWEEP_UID = "torchyard.dev/sweep-uid"
"""Label of a trial: which sweep of that name."""
TRIAL = "torchyard.dev/trial"
"""Annotation of a trial: its `TrialRecord` as JSON."""
TRIAL_SIGNATURE = "torchyard.dev/trial-signature"
"""Annotation of a trial on a cluster: the operator's signature of that record."""
OF_TRIALS = (SWEEP, SWEEP_UID, TRIAL, TRIAL_SIGNATURE)

CODE_ARRIVED = "torchyard.dev/code"
"""Annotation of a job: the digest of the code that has arrived. Label of the ConfigMaps that hold it."""
CODE_CONFIG_MAP = "torchyard-code-"
"""How the names of these ConfigMaps begin; DIGEST12-NUMBER follows."""
REPAIRED = "torchyard.dev/repaired"
"""Annotation of a node: failures up to this time, in RFC 3339, do not count."""

SOURCE_FOLDER = "torchyard.dev/source-folder"
"""Annotation on this machine: folder of the job file or program, which `spec.workingDir` is relative to."""
PROGRAM_FOLDER = "torchyard.dev/program-folder"
"""Annotation on this machine: folder of the `torchrun` and `python` of the user's commands."""
OF_THIS_MACHINE = (SOURCE_FOLDER, PROGRAM_FOLDER)
