"""Every reason code this version can report, with the sentence a user reads: cause, evidence, next step."""

from msgspec import Struct

from torchyard.api.exits import EXITS


class Reason(Struct, frozen=True, kw_only=True):
    """One reason. `cause` opens the sentence, `next_step` closes it; empty: nothing to be done."""

    code: str
    cause: str
    next_step: str = ""


def say(code: str, evidence: str = "", *, advice: str = "") -> str:
    """Return one sentence: cause (evidence); next step, or `advice` in its place. An unknown code is a KeyError."""
    reason = CATALOGUE[code]
    cause = reason.cause + (f" ({evidence})" if evidence else "")
    step = advice or reason.next_step
    return f"{cause}; {step}" if step else cause


_WAITING = (
    ("JobCreated", "the job was accepted", ""),
    ("WaitingForPods", "pods are being created", ""),
    (
        "PodsNotCreated",
        "the API server does not answer to the creation of the pods",
        "an admission webhook may hang: see the log of the operator; the pods are created once it answers",
    ),
    ("WaitingForAgents", "pods are running, their agents have not connected yet", ""),
    ("Unschedulable", "pods cannot be placed", "free resources or ask for less"),
    ("InsufficientGPU", "there are fewer free GPUs than the job asks for", "free some or ask for less"),
    (
        "ClusterTooSmall",
        "the job can never be scheduled on the nodes that there are",
        "ask for less or add nodes; the pods start once there are enough",
    ),
    ("InsufficientCPU", "no node has as much free CPU as a pod asks for", "free some or lower spec.resources.cpu"),
    (
        "InsufficientMemory",
        "no node has as much free memory as a pod asks for",
        "free some or lower spec.resources.memory",
    ),
    ("InsufficientResource", "no node has enough of what a pod asks for", "free some or ask for less"),
    (
        "NoMatchingNode",
        "no node carries the labels that the job asks for",
        "correct spec.scheduling.nodeSelector or spec.gpu, or label a node",
    ),
    (
        "TopologyNotMet",
        "no free node is as close to the others as spec.scheduling.topology requires",
        "free one, label the nodes, or ask for topology.preferred",
    ),
    (
        "Untolerated",
        "the nodes that match have a taint that the job does not tolerate",
        "tolerate it in spec.scheduling.tolerations or remove it",
    ),
    ("NodesCordoned", "the nodes that match are cordoned", "uncordon one"),
    ("NodesNotReady", "the nodes that match are not ready", "see `kubectl describe node`; the pods start once one is"),
    ("SchedulingGated", "the pods wait for a gang scheduler to let them in", ""),
    (
        "GangIncomplete",
        "only some pods could be scheduled; they were released and the gang will be recreated shortly",
        "free resources, ask for less, or raise spec.scheduling.gangTimeout",
    ),
    ("VolumeNotBound", "a claim of the job has no volume yet", "see `kubectl describe pvc`"),
    (
        "VolumeInUse",
        "a claim of the job may be mounted by a single pod and is in use",
        "wait until that pod has ended, or use a claim with access mode ReadWriteMany",
    ),
    (
        "VolumeElsewhere",
        "the volume of a claim is bound to nodes on which there is no room",
        "make room there, or use a claim that every node can mount",
    ),
    ("MissingClaim", "a claim that the job mounts does not exist", "create it, the pods then start"),
    ("MissingSecret", "a secret that the job uses does not exist", "create it, the pods then start"),
    ("MissingConfigMap", "a config map that the job uses does not exist", "create it, the pods then start"),
    (
        "ImagePullFailed",
        "the image cannot be pulled",
        "correct spec.image or add spec.imagePullSecrets; suspend the job to change them",
    ),
    (
        "AgentImagePullFailed",
        "the image that brings the agent into the pods cannot be pulled",
        "add the secret of its registry to spec.imagePullSecrets, or correct --agent-image of the operator",
    ),
    ("ContainerNotConfigured", "a container cannot be set up as asked", "see `kubectl describe pod`"),
    ("VolumeNotMounted", "a volume cannot be mounted", "see `kubectl describe pod`"),
    ("PodNotSetUp", "the node cannot set a pod up", "see `kubectl describe pod`"),
    ("QuotaExceeded", "a quota of the namespace is used up", "free some or raise it; the pods then start"),
    (
        "QuotaNeedsLimits",
        "a quota of the namespace asks for limits that the job does not give",
        "set spec.resources.cpu and spec.resources.memory",
    ),
    ("LimitRangeExceeded", "a limit range of the namespace forbids what a pod asks for", "set spec.resources"),
    ("PodSecurityViolation", "the Pod Security level of the namespace forbids the pods", "ask who set that level"),
    ("AdmissionDenied", "an admission policy of the cluster forbids the pods", "ask who runs that policy"),
    ("WebhookUnavailable", "an admission webhook of the cluster does not answer", "the job continues once it does"),
    ("MissingServiceAccount", "spec.serviceAccountName does not exist", "create it or name another one"),
    ("MissingPriorityClass", "spec.scheduling.priorityClass does not exist", "create it or name another one"),
    ("MissingRuntimeClass", "the runtime class of the pods does not exist", "create it"),
    ("NamespaceTerminating", "the namespace is being deleted, the job goes with it", ""),
    ("Forbidden", "the operator lacks a right that it needs", "grant it, as the chart's roles do"),
    (
        "NameConflict",
        "a pod of another owner has the name of a pod of the job",
        "rename the job or delete that pod",
    ),
    ("PredecessorStopping", "pods of an earlier job of this name are still stopping", ""),
    (
        "AgentSilent",
        "pods run but their agents do not reach the operator",
        "check network policies and DNS, see `kubectl logs` of the pod",
    ),
    ("PodsReady", "every pod is ready", ""),
    ("PodsNotReady", "not every pod is ready", ""),
    ("BackingOff", "the next round waits after a failure", ""),
    ("Admitted", "the pods may be created", ""),
)
_RUNNING = (
    ("RoundOpened", "a round was opened", ""),
    (
        "ConfigurationChanged",
        "the spec was changed in a way that the pods of the gang cannot follow",
        "they go on as they were created, and all of them are replaced before the next round",
    ),
    ("Starting", "workers start and have not made a step yet", ""),
    (
        "WorkersSilent",
        "the workers have not reported yet",
        "they may still import, or not reach each other: see `torchyard logs`, and network policies between the pods",
    ),
    ("Training", "the workers train", ""),
    (
        "StandingStill",
        "no step for far longer than any took before",
        "`torchyard stacks` shows where the ranks are; spec.health.stall would end them",
    ),
    ("NoReports", "the program runs and has reported no step", ""),
    ("NotTraining", "no step is being made", ""),
    ("TrainerWarning", "the program warns", ""),
    ("AgentNotice", "the agent of a pod reports", ""),
    (
        "RanksNotCommunicating",
        "the ranks do not communicate, so each of them trains a model of its own",
        "call torch.distributed.init_process_group() and wrap the model in DDP or FSDP, or ask for a single rank",
    ),
    (
        "GpusNotUsed",
        "the job holds GPUs that it does not use",
        "move the model and its inputs to the GPU, or set spec.gpusPerNode to 0",
    ),
    ("RoundClosed", "a round ended early", ""),
    ("Recovering", "a failed round is being replaced", ""),
    ("Healthy", "nothing went wrong", ""),
    ("NotReconciling", "the job is where it was asked to be, or over", ""),
    (
        "Terminating",
        "the job is being deleted, and finalizers of other controllers hold it",
        "its pods are deleted; the job goes once those controllers remove their finalizers",
    ),
    ("CheckpointSaved", "a complete checkpoint exists", ""),
    ("NoCheckpointYet", "no complete checkpoint exists", ""),
    ("NoExport", "nothing has been exported", ""),
    ("ExportVerified", "every exported format was read back and computes what the model computes", ""),
    ("ExportNotVerified", "the exported formats were not compared with the model", "set spec.export.verify to true"),
    ("ExportRefused", "an exported format does not compute what the model computes", "see `torchyard logs`"),
    ("Suspending", "the workers are asked to save a checkpoint and to stop", ""),
    ("Suspended", "the job is suspended", "`torchyard resume`, or spec.suspend: false, continues it"),
    ("Resumed", "the job continues after a suspend", ""),
    ("NotFinished", "the job is not over", ""),
    ("NotFailed", "the job has not failed", ""),
)
_LOST = (
    ("PodLost", "a pod vanished", ""),
    ("PodFailed", "a pod ended before its job was over", "see `torchyard logs`"),
    ("NodeLost", "the node of a pod does not answer", ""),
    ("Evicted", "a pod was evicted from its node", ""),
    ("PreemptedByPriority", "a pod made room for one of higher priority", ""),
    (
        "DiskLimitExceeded",
        "a pod wrote more than a limit on its disk allows",
        "raise spec.resources.disk or spec.checkpoint.volume.ephemeral, use a claim, or write less",
    ),
    ("NodeRefused", "a node refused a pod that was placed on it", "see `kubectl describe node`"),
    (
        "InitContainerFailed",
        "a container that was put into the pod failed before the trainer could start",
        "see `kubectl logs -c` of that container",
    ),
    (
        "ContainerCannotStart",
        "the container runtime of a node could not start a container",
        "see `kubectl describe pod` and the node; if every node says so, check the image",
    ),
    (
        "PythonNotFound",
        "the image has no python3, which the agent needs",
        "use an image with Python 3.9 or newer on its PATH, or launcher.kind: none",
    ),
    ("AgentCrashed", "the agent of a pod crashed", "see `kubectl logs` of the pod"),
    (
        "AgentNotInstalled",
        "the agent could not be installed in a pod",
        "see `kubectl logs -c agent` of the pod",
    ),
    (
        "OOMKilled",
        "the kernel ended a process of a pod for lack of memory",
        "raise spec.resources.memory or lower the micro-batch",
    ),
    (
        "GangDiffers",
        "the pods of the gang do not run the same thing",
        "name spec.image by its digest, and edit no config map or secret of a job that runs",
    ),
    ("AgentRestarted", "the agent of a pod was restarted", ""),
)
_OVER = (
    ("StartTimeout", "no first step in time", "see `torchyard logs`, or raise spec.health.startTimeout"),
    ("PendingTimeout", "the pods did not start in time", "raise spec.health.pendingTimeout"),
    ("DeadlineExceeded", "spec.activeDeadline is over", "raise it and run the job again"),
    ("NoProgress", "rounds in a row ended without progress", "fix the cause, see `torchyard logs`"),
    ("MaxRestartsExceeded", "spec.restart.maxRestarts is used up", "fix the cause, see `torchyard logs`"),
    ("RepeatedFailure", "the same error at the same step twice", "fix the cause, see `torchyard logs`"),
    ("RestartsDisabled", "a failure ends a job whose spec.restart.policy is Never", "see `torchyard logs`"),
)
_OPERATOR = (
    ("PodInvalid", "the API server rejects the pods as invalid", "correct the field that the message names"),
    (
        "InvalidSpec",
        "the spec breaks a rule",
        "correct it and create the job again; `torchyard validate` names every fault",
    ),
    (
        "UnreadableStatus",
        "this version of the operator cannot read the status",
        "upgrade the operator, or correct it with `kubectl edit --subresource=status`",
    ),
    ("NotImplemented", "the spec asks for what this version does not do", "leave the field out"),
    ("ReconcileFailed", "the controller failed on this job and tries again", "see the log of the controller"),
    (
        "NameTaken",
        "a pod that is not the job's has the name of one of its pods, which gets another name",
        "find out who created it and delete it",
    ),
    (
        "ForgedPod",
        "a pod pretends to be the job's; it is left alone and none of its reports count",
        "find out who created it and delete it",
    ),
    ("FolderNotWritable", "the folder of the run cannot be written", "free disk space; the run then continues"),
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
    "HardwareSuspected": "repair what is named, or train on the CPU with spec.gpusPerNode: 0",
    "Killed": "check the memory of the node",
    "WorkerHung": "`torchyard logs` has the stacks of the rank that hangs",
    "PeerLost": "see `torchyard logs` of the rank that ended first",
    "SegmentationFault": "see `torchyard logs` for the stacks; check compiled extensions and the driver",
    "Aborted": "see `torchyard logs` for what aborted it",
}

ADVISORIES = frozenset({"RanksNotCommunicating", "GpusNotUsed", "AgentNotice"})
"""What the operator warns of while the job goes on; they are listed in `status.warnings`."""

WAITING = frozenset(code for code, _, _ in _WAITING)
"""What a job may wait for before a round opens."""

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
