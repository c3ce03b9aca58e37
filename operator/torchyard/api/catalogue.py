"""Every reason code this version can report, with the sentence a user reads: cause, evidence, next step."""

from msgspec import Struct

from torchyard.api.exits import EXITS


class Reason(Struct, frozen=True, kw_only=True):
    """One reason. `cause` opens the sentence, `next_step` closes it; empty: nothing to be done."""

    code: str
    cause: str
    next_step: str = ""


def say(code: str, evidence: str = "") -> str:
    """One sentence: cause (evidence); next step. An unknown code is a KeyError: a defect of ours."""
    reason = CATALOGUE[code]
    cause = reason.cause + (f" ({evidence})" if evidence else "")
    return f"{cause}; {reason.next_step}" if reason.next_step else cause


_WAITING = (
    ("JobCreated", "the job was accepted", ""),
    ("WaitingForPods", "pods are being created", ""),
    ("WaitingForAgents", "pods are running, their agents have not called in yet", ""),
    ("Unschedulable", "pods cannot be placed", "free resources or ask for less"),
    ("InsufficientGPU", "there are fewer free GPUs than the job asks for", "free some or ask for less"),
    ("PodsReady", "every pod is ready", ""),
    ("PodsNotReady", "not every pod is ready", ""),
    ("BackingOff", "the next round waits after a failure", ""),
    ("Admitted", "nothing holds the job back", ""),
)
_RUNNING = (
    ("RoundOpened", "a round was opened", ""),
    ("Starting", "workers start and have not made a step yet", ""),
    ("Training", "steps are being made", ""),
    ("NotTraining", "no step is being made", ""),
    ("RoundClosed", "a round ended early", ""),
    ("Recovering", "a failed round is being replaced", ""),
    ("Healthy", "nothing went wrong", ""),
    ("CheckpointSaved", "a complete checkpoint exists", ""),
    ("NoCheckpointYet", "no complete checkpoint exists", ""),
    ("NoExport", "no export was asked for", ""),
    ("Suspending", "the gang saves a checkpoint and stops", ""),
    ("Suspended", "the job is suspended", "set spec.suspend to false to go on from the newest checkpoint"),
    ("Resumed", "the job goes on after a suspend", ""),
    ("NotFinished", "the job is not over", ""),
    ("NotFailed", "the job has not failed", ""),
)
_LOST = (
    ("PodLost", "a pod vanished", ""),
    ("PodFailed", "a pod ended although its round was open", "see `torchyard logs`"),
    ("NodeLost", "the node of a pod does not answer", ""),
    ("Evicted", "a pod was evicted from its node", ""),
    ("OOMKilled", "a pod used more memory than its limit", "raise spec.resources.memory or lower the micro-batch"),
    ("AgentRestarted", "the agent of a pod was started anew", ""),
)
_OVER = (
    ("StartTimeout", "no first step in time", "see `torchyard logs`, or raise spec.health.startTimeout"),
    ("PendingTimeout", "pods were not placed in time", "free resources or raise spec.health.pendingTimeout"),
    ("DeadlineExceeded", "spec.activeDeadline is over", "raise it and run the job again; its checkpoints are kept"),
    ("NoProgress", "rounds in a row ended without progress", "fix the cause, see `torchyard logs`"),
    ("MaxRestartsExceeded", "spec.restart.maxRestarts is used up", "fix the cause, see `torchyard logs`"),
    ("RepeatedFailure", "the same error at the same step twice", "fix the cause, see `torchyard logs`"),
    ("RestartsDisabled", "a failure ends a job whose spec.restart.policy is Never", "see `torchyard logs`"),
)
_OPERATOR = (
    ("InvalidSpec", "the spec breaks a rule", "correct it; `torchyard validate` names every fault"),
    ("NotImplemented", "the spec asks for what this version does not do", "leave the field out"),
    ("ReconcileFailed", "the controller failed on this job and tries again", "see the controller's log"),
    ("NotStalled", "the controller handles this job", ""),
)
_NEXT_STEPS = {
    "WorkerFailed": "see `torchyard logs`",
    "ConfigurationInvalid": "correct the field that the message names",
    "DataMismatch": "restore the data, seed and model of the run, or start a new job",
    "NumericDivergence": "lower the learning rate or use precision fp32 or bf16",
    "CheckpointUnreadable": "restore the checkpoint folder or start a new job",
    "GpuOutOfMemory": "set a smaller spec.parallelism.microBatchSize",
    "StorageFailed": "check free space and health of the checkpoint volume",
    "CommandNotExecutable": "make it executable or name its interpreter in spec.command",
    "CommandNotFound": "check spec.command, spec.workingDir and that the image has the program",
    "Killed": "check the memory of the node",
}

CATALOGUE: dict[str, Reason] = {
    code: Reason(code=code, cause=cause, next_step=step)
    for code, cause, step in (
        *_WAITING,
        *_RUNNING,
        *_LOST,
        *_OVER,
        *_OPERATOR,
        ("KilledBySignal", "a worker was killed by a signal", "see `torchyard logs`"),
        *((each.reason, each.sentence, _NEXT_STEPS.get(each.reason, "")) for each in EXITS.values()),
    )
}
