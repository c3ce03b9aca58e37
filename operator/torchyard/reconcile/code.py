"""The code that travels with a job: whether it has arrived, what a round and the status know of it, and its edits.

A job whose code travels may get other code, command, args and env while it runs. The round that is open saves and ends,
and the next one runs them: in the same pods if their agents have received the code, else in new ones.
"""

import hashlib
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from torchyard.api.code_source import FILE_URL
from torchyard.api.launch import own_env, requested_procs
from torchyard.api.names import CODE_ARRIVED, SWEEP_UID
from torchyard.api.resource import TrainingJob
from torchyard.api.spec import TrainingJobSpec
from torchyard.api.spec_code import Code, is_sent, pinned_commit, source_of
from torchyard.api.status import CodeStatus, TrainingJobStatus
from torchyard.api.validation.changes import code_travels

SHOWN_DIGITS = 12
MAX_PROGRAM_BYTES = 256 * 1024
"""Of command and env in the command of a round; agents read at most 1 MiB."""
_SEPARATOR = "."


class Program(Struct, frozen=True, kw_only=True):
    """What the workers of a round run, where code travels with the job.

    Attributes:
        digest: of code, command, args and env, as the spec has them; the status names what the newest round ran by it.
        command: argument vector; empty: that of the pod.
        env: variables of the spec.
    """

    digest: str
    command: list[str]
    env: dict[str, str]


def missing_code(job: TrainingJob) -> str:
    """Return which code of a job has not arrived, so that pods would only hold resources; empty: all has.

    The operator may not read ConfigMaps: who submits the job notes in an annotation that they are there. The trials of
    a sweep have the code of their sweep, for which their pods wait. A branch moves, and the operator reaches no
    repository: the submission resolves it.
    """
    code = job.spec.code
    if code is None:
        return ""
    arrived = job.metadata.annotations.get(CODE_ARRIVED)
    if code.git is not None:
        if not pinned_commit(code):
            return f"spec.code.git.ref is {code.git.ref}, which no submission has resolved to a commit"
        elsewhere = code.git.url.startswith(FILE_URL) and arrived != pinned_commit(code)
        return f"spec.code.git.url is {code.git.url}, a folder of another machine" if elsewhere else ""
    if not is_sent(code):
        return ""
    if code.digest is None:
        return f"spec.code.path is {code.path}, a folder of the machine that the job was written on"
    return "" if SWEEP_UID in job.metadata.labels or arrived == code.digest else f"digest {code.digest[:12]}"


def program_of(spec: TrainingJobSpec, command: Sequence[str], env: Mapping[str, str]) -> Program | None:
    """Return the program of the rounds of a job; None: its pods cannot run another one.

    Args:
        spec: of the job.
        command: of the workers in its pods; empty: agents run that of the pod.
        env: variables of the spec as workers see them.
    """
    if not is_followed(spec):
        return None
    code = spec.code.digest if spec.code is not None else ""
    facts = msgspec.json.encode([code, spec.command, spec.args, [[each.name, each.value] for each in spec.env]])
    return Program(digest=hashlib.sha256(facts).hexdigest()[:16], command=[*command], env={**env})


def is_followed(spec: TrainingJobSpec) -> bool:
    """Return whether pods can follow an edit of the program: code travels, and agents can be sent the rest."""
    return code_travels(spec) and len(msgspec.json.encode([spec.command, spec.args, spec.env])) <= MAX_PROGRAM_BYTES


def fixed_in_pod(spec: TrainingJobSpec) -> list[object]:
    """Return what a pod whose program may be edited still depends on: names of variables, and its own settings.

    A variable that is removed from a pod would have to get the value that the image has, which is not known.
    """
    own = {name: text for name, text in own_env(spec).items() if name.startswith("TORCHYARD_")}
    return [sorted(own_env(spec)), own, requested_procs(spec)]


def with_code(configuration: str, spec: TrainingJobSpec) -> str:
    """Return the configuration of pods with the code that they are created with."""
    code = spec.code.digest if code_travels(spec) and spec.code is not None else None
    return f"{configuration}{_SEPARATOR}{code[:SHOWN_DIGITS]}" if code is not None else configuration


def same_pod(one: str, other: str) -> bool:
    """Return whether two configurations differ at most in the code."""
    return one.partition(_SEPARATOR)[0] == other.partition(_SEPARATOR)[0]


def code_at(configuration: str) -> str:
    """Return the first digits of the digest of the code in a configuration; empty: none travels."""
    return configuration.partition(_SEPARATOR)[2]


def edit(status: TrainingJobStatus, spec: TrainingJobSpec) -> str:
    """Return what was edited since the newest round, which runs another program than the spec has now."""
    before = status.code.digest[:SHOWN_DIGITS] if status.code is not None else ""
    now = (spec.code.digest or "")[:SHOWN_DIGITS] if spec.code is not None else ""
    return f"code {before} to {now}" if before != now else "command, args or env"


def code_of_round(spec: TrainingJobSpec, status: TrainingJobStatus) -> dict[str, str]:
    """Return what agents and trainers learn of the code of the newest round; empty: it is in the image."""
    code = spec.code
    if code is None:
        return {}
    digest = code.digest if is_sent(code) else status.code.digest if status.code is not None else ""
    if not digest:
        return {}
    known = {"commit": pinned_commit(code) or code.commit, "branch": code.branch, "diff": code.diff}
    known |= {"source": source_of(code), "requirements": code.requirements, "wheels": code.wheels}
    return {"digest": digest, **{name: text for name, text in known.items() if text}}


def code_status(code: Code | None, computed: str = "") -> CodeStatus | None:
    """Return the code of a round as the status names it.

    Args:
        code: of the job.
        computed: digest of code that is not sent, as an agent of the round has computed it.
    """
    if code is None:
        return None
    digest = code.digest if is_sent(code) else computed
    if not digest:
        return None
    return CodeStatus(
        digest=digest,
        commit=pinned_commit(code) or code.commit or "",
        branch=code.branch or "",
        changed=code.diff is not None,
        source=source_of(code),
    )
