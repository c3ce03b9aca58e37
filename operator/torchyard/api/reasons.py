"""Every reason that this version can report: what a user reads of it, and what the operator does about it.

A reason is a string of the API (`status.reason`, conditions, events, `attempts[].reason`); its properties stand here
and nowhere else. Other codes come from the cluster or from later versions: `Reason.of` returns None for them.
"""

from collections.abc import Callable
from enum import StrEnum
from functools import partial

from msgspec import Struct

from torchyard.api.formatting import clean
from torchyard.api.values import TableEnum

MAX_MESSAGE = 1024


class Kind(StrEnum):
    """What a reason describes."""

    WAITING = "waiting"  # what a job waits for before its next round
    RUNNING = "running"  # what an open round does
    CONDITION = "condition"  # the value of a condition, never `status.reason`
    WARNING = "warning"  # what the operator warns of while the job continues, listed in `status.warnings`
    FAILURE = "failure"  # how a pod or a worker ended: the cause of a round's end
    FINAL = "final"  # why a job ended
    OPERATOR = "operator"  # what keeps the operator from its work
    OTHER = "other"  # a code of the cluster or of another version


class _Entry(Struct, frozen=True, kw_only=True):
    code: str
    sentence: str
    next_step: str
    kind: Kind
    announced: bool = False
    stalls: bool = False
    admits: bool = True
    counted: bool = True
    permanent: bool = False
    took_pod: bool = False
    repeatable: bool = False
    tried_once_more: bool = False
    points_to_cause: bool = False
    start_attempts: int = 0
    blames_node: float = 0.0


def _entry(kind: Kind, code: str, sentence: str, next_step: str = "", **properties: float) -> _Entry:
    return _Entry(kind=kind, code=code, sentence=sentence, next_step=next_step, **properties)  # type: ignore[arg-type]


_waiting: Callable[..., _Entry] = partial(_entry, Kind.WAITING, announced=True)
_running: Callable[..., _Entry] = partial(_entry, Kind.RUNNING)
_condition: Callable[..., _Entry] = partial(_entry, Kind.CONDITION)
_warning: Callable[..., _Entry] = partial(_entry, Kind.WARNING)
_failure: Callable[..., _Entry] = partial(_entry, Kind.FAILURE)
_final: Callable[..., _Entry] = partial(_entry, Kind.FINAL)
_operator: Callable[..., _Entry] = partial(_entry, Kind.OPERATOR)


class Reason(TableEnum):
    """A reason code and its properties.

    Attributes:
        sentence: what happened; the message of the status begins with it.
        next_step: what to do about it; empty: nothing.
        kind: what it describes.
        announced: becomes an event when a job begins to wait for it.
        stalls: waiting does not help, a person has to act: condition `Stalled`.
        admits: pods can be created; if not, condition `Admitted` is false.
        counted: charged to the restart budget if the round made no progress.
        permanent: trying again cannot help; the job fails.
        took_pod: the cluster took the pod away: explains the end better than the exit code of its workers.
        repeatable: the same exception at the same step twice ends the job.
        tried_once_more: a second time in a row ends the job.
        points_to_cause: a limit of restarts ended the job: the next step is that of the first cause.
        start_attempts: a container never started; as many times in a row end the job. A busy node, or one whose runtime
            is broken, refuses containers that another node, or the same one a minute later, starts; what the image
            lacks is reported by every node.
        blames_node: how much it speaks against the node, 1: later pods avoid the node (`reconcile/node_memory.py`).
    """

    sentence: str
    next_step: str
    kind: Kind
    announced: bool
    stalls: bool
    admits: bool
    counted: bool
    permanent: bool
    took_pod: bool
    repeatable: bool
    tried_once_more: bool
    points_to_cause: bool
    start_attempts: int
    blames_node: float

    @classmethod
    def _missing_(cls, value: object) -> "Reason":
        """Keep a code of another version, which has no properties here, so that its status can be read."""
        return cls.unlisted(_entry(Kind.OTHER, str(value), ""))

    @classmethod
    def of(cls, code: str) -> "Reason | None":
        """Return the reason with this code; None: the code belongs to the cluster or another version."""
        found = cls._value2member_map_.get(code)
        return found if isinstance(found, Reason) else None

    # Waiting for pods, agents, capacity or permission
    JOB_CREATED = _waiting("JobCreated", "the job was accepted", announced=False)
    WAITING_FOR_PODS = _waiting("WaitingForPods", "pods are being created", announced=False)
    PODS_NOT_CREATED = _waiting(
        "PodsNotCreated",
        "the API server does not create the pods, and does not reject them",
        "an admission webhook may hang or fail: see the log of the operator; the pods are created once it works",
    )
    PULLING_IMAGE = _waiting("PullingImage", "nodes pull an image", announced=False)
    WAITING_FOR_AGENTS = _waiting(
        "WaitingForAgents", "pods are running, their agents have not connected yet", announced=False
    )
    FETCHING_INPUTS = _waiting(
        "FetchingInputs",
        "the inputs of the job are being fetched",
        announced=False,
    )
    FETCHING_CODE = _waiting(
        "FetchingCode",
        "the code of the job is being fetched",
        announced=False,
    )
    INSTALLING_REQUIREMENTS = _waiting(
        "InstallingRequirements",
        "packages are being installed that the code requires and the image lacks",
        announced=False,
    )
    UNSCHEDULABLE = _waiting("Unschedulable", "pods cannot be placed", "free resources or request less")
    INSUFFICIENT_GPU = _waiting(
        "InsufficientGPU", "there are fewer free GPUs than the job requests", "free some or request less"
    )
    CLUSTER_TOO_SMALL = _waiting(
        "ClusterTooSmall",
        "the job can never be scheduled on the existing nodes",
        "request less or add nodes; the pods start once there are enough",
    )
    INSUFFICIENT_CPU = _waiting(
        "InsufficientCPU", "no node has as much free CPU as a pod requests", "free some or lower spec.resources.cpu"
    )
    INSUFFICIENT_MEMORY = _waiting(
        "InsufficientMemory",
        "no node has as much free memory as a pod requests",
        "free some or lower spec.resources.memory",
    )
    INSUFFICIENT_RESOURCE = _waiting(
        "InsufficientResource", "no node has enough of a resource that a pod requests", "free some or request less"
    )
    INSUFFICIENT_DEVICES = _waiting(
        "InsufficientDevices",
        "no node has as many free devices as spec.resources.claims request",
        "free some or request less in the ResourceClaimTemplate",
    )
    MISSING_DEVICE_CLASS = _waiting(
        "MissingDeviceClass",
        "a device class of a ResourceClaimTemplate does not exist",
        "install the driver of the devices, or correct deviceClassName of the template",
    )
    WAITING_FOR_CLAIMS = _waiting(
        "WaitingForClaims",
        "Kubernetes has not created the claims of the pods yet",
        "if this lasts, create the ResourceClaimTemplate in the namespace of the job, or correct "
        "spec.resources.claims while the job is suspended",
        announced=False,
    )
    DEVICES_NOT_PREPARED = _waiting(
        "DevicesNotPrepared",
        "the node cannot prepare the devices of a claim",
        "see `kubectl describe pod` and the log of the device driver on that node",
    )
    NO_MATCHING_NODE = _waiting(
        "NoMatchingNode",
        "no node has the labels that the job requires",
        "correct spec.scheduling.nodeSelector or spec.gpu, or label a node",
    )
    TOPOLOGY_NOT_MET = _waiting(
        "TopologyNotMet",
        "no free node is as close to the others as spec.scheduling.topology requires",
        "free one, label the nodes, or use topology.preferred",
    )
    UNTOLERATED = _waiting(
        "Untolerated",
        "the nodes that match have a taint that the job does not tolerate",
        "tolerate it in spec.scheduling.tolerations or remove it",
    )
    NODES_CORDONED = _waiting("NodesCordoned", "the nodes that match are cordoned", "uncordon one")
    NODES_NOT_READY = _waiting(
        "NodesNotReady", "the nodes that match are not ready", "see `kubectl describe node`; the pods start once one is"
    )
    SCHEDULING_GATED = _waiting(
        "SchedulingGated", "the pods wait for a gang scheduler to remove their scheduling gates", announced=False
    )
    GANG_INCOMPLETE = _waiting(
        "GangIncomplete",
        "only some pods could be scheduled; they were released and the gang will be recreated shortly",
        "free resources, request less, or raise spec.scheduling.gangTimeout",
    )
    VOLUME_NOT_BOUND = _waiting("VolumeNotBound", "a claim of the job has no volume yet", "see `kubectl describe pvc`")
    VOLUME_IN_USE = _waiting(
        "VolumeInUse",
        "a claim of the job may be mounted by a single pod and is in use",
        "wait until that pod has ended, or use a claim with access mode ReadWriteMany",
    )
    VOLUME_ELSEWHERE = _waiting(
        "VolumeElsewhere",
        "the volume of a claim is bound to nodes that have no free capacity",
        "free resources there, or use a claim that every node can mount",
    )
    MISSING_CLAIM = _waiting(
        "MissingClaim", "a claim that the job mounts does not exist", "create it, the pods then start"
    )
    MISSING_SECRET = _waiting(
        "MissingSecret", "a secret that the job uses does not exist", "create it, the pods then start"
    )
    MISSING_CONFIG_MAP = _waiting(
        "MissingConfigMap", "a config map that the job uses does not exist", "create it, the pods then start"
    )
    IMAGE_PULL_FAILED = _waiting(
        "ImagePullFailed",
        "the image cannot be pulled",
        "correct spec.image or add spec.imagePullSecrets; suspend the job to change them",
    )
    AGENT_IMAGE_PULL_FAILED = _waiting(
        "AgentImagePullFailed",
        "the image that brings the agent into the pods cannot be pulled",
        "add the secret of its registry to spec.imagePullSecrets, or correct --agent-image of the operator",
    )
    CONTAINER_NOT_CONFIGURED = _waiting(
        "ContainerNotConfigured", "a container cannot be created as configured", "see `kubectl describe pod`"
    )
    VOLUME_NOT_MOUNTED = _waiting("VolumeNotMounted", "a volume cannot be mounted", "see `kubectl describe pod`")
    POD_NOT_SET_UP = _waiting("PodNotSetUp", "the node cannot set a pod up", "see `kubectl describe pod`")
    QUOTA_EXCEEDED = _waiting(
        "QuotaExceeded",
        "a quota of the namespace is used up",
        "free some or raise it; the pods then start",
        admits=False,
    )
    QUOTA_NEEDS_LIMITS = _waiting(
        "QuotaNeedsLimits",
        "a quota of the namespace requires limits that the job does not set",
        "set spec.resources.cpu and spec.resources.memory",
        stalls=True,
        admits=False,
    )
    LIMIT_RANGE_EXCEEDED = _waiting(
        "LimitRangeExceeded",
        "a limit range of the namespace forbids what a pod requests",
        "set spec.resources",
        stalls=True,
        admits=False,
    )
    POD_SECURITY_VIOLATION = _waiting(
        "PodSecurityViolation",
        "the Pod Security level of the namespace forbids the pods",
        "ask the administrator of the namespace",
        stalls=True,
        admits=False,
    )
    ADMISSION_DENIED = _waiting(
        "AdmissionDenied",
        "an admission policy of the cluster forbids the pods",
        "ask the owner of that policy",
        stalls=True,
        admits=False,
    )
    POD_ALTERED = _waiting(
        "PodAltered",
        "an admission webhook of the cluster removes from the pods what the operator needs to recognize them",
        "exempt pods with the label torchyard.dev/job from it; the pods then start",
        stalls=True,
        admits=False,
    )
    WEBHOOK_UNAVAILABLE = _waiting(
        "WebhookUnavailable",
        "an admission webhook of the cluster does not respond",
        "the job continues once it does",
        admits=False,
    )
    MISSING_SERVICE_ACCOUNT = _waiting(
        "MissingServiceAccount",
        "spec.serviceAccountName does not exist",
        "create it or name another one",
        admits=False,
    )
    MISSING_PRIORITY_CLASS = _waiting(
        "MissingPriorityClass",
        "spec.scheduling.priorityClass does not exist",
        "create it or name another one",
        admits=False,
    )
    MISSING_RUNTIME_CLASS = _waiting(
        "MissingRuntimeClass", "the runtime class of the pods does not exist", "create it", admits=False
    )
    NAMESPACE_TERMINATING = _waiting(
        "NamespaceTerminating", "the namespace is being deleted, and the job with it", announced=False, admits=False
    )
    FORBIDDEN = _waiting(
        "Forbidden",
        "the operator lacks a right that it needs",
        "grant it, as the chart's roles do",
        stalls=True,
        admits=False,
    )
    NAME_CONFLICT = _waiting(
        "NameConflict",
        "an object that the operator did not create has a name that the job needs",
        "delete that object or rename the job",
        stalls=True,
        admits=False,
    )
    PREDECESSOR_STOPPING = _waiting(
        "PredecessorStopping",
        "what belongs to an earlier job of this name is still being deleted",
        announced=False,
        admits=False,
    )
    SCHEDULER_UNAVAILABLE = _waiting(
        "SchedulerUnavailable",
        "the gang scheduler that the job asks for cannot be used",
        "install it and switch it on in the chart, or set spec.scheduling.gang: auto without a queue",
        stalls=True,
        admits=False,
    )
    PROFILE_NOT_FOUND = _waiting(
        "ProfileNotFound",
        "the profile of the job cannot be used",
        "ask the platform team for the TrainingProfile, or name another one in spec.profile while the job is suspended",
        admits=False,
    )
    OUTSIDE_PROFILE = _waiting(
        "OutsideProfile",
        "the job asks for something that its profile does not allow",
        "suspend the job, change it and resume it, or ask the platform team to change the TrainingProfile",
        stalls=True,
        admits=False,
    )
    CODE_MISSING = _waiting(
        "CodeMissing",
        "the code of the job has not arrived in the cluster",
        "`torchyard submit` sends a folder and pins a branch, and kubectl does neither: delete the job and submit it, "
        "or set spec.code.git.ref to a full commit",
        announced=False,
        admits=False,
    )
    WAITING_FOR_SCHEDULER = _waiting(
        "WaitingForScheduler", "the gang scheduler has not answered yet", announced=False, admits=False
    )
    SCHEDULER_REJECTED = _waiting(
        "SchedulerRejected",
        "the API server rejects the object by which the gang scheduler would know the job",
        "correct the field that the message names, or ask the administrator of the scheduler",
        stalls=True,
        admits=False,
    )
    WAITING_IN_QUEUE = _waiting(
        "WaitingInQueue",
        "the job waits in its queue",
        "it starts once the queue admits it",
        announced=False,
        admits=False,
    )
    WAITING_FOR_QUOTA = _waiting(
        "WaitingForQuota",
        "other jobs hold the quota of the queue",
        "the job starts once enough of them end; raise the quota or request less",
        admits=False,
    )
    EXCEEDS_MAX_QUOTA = _waiting(
        "ExceedsMaxQuota",
        "the job requests more than its queue can ever have",
        "request less, or raise the quota of the ClusterQueue or its borrowing limit",
        stalls=True,
        admits=False,
    )
    NO_MATCHING_FLAVOR = _waiting(
        "NoMatchingFlavor",
        "no flavor of the queue has nodes that the job may use",
        "correct spec.scheduling.nodeSelector and tolerations, or add a ResourceFlavor to the ClusterQueue",
        stalls=True,
        admits=False,
    )
    FLAVOR_NOT_FOUND = _waiting(
        "FlavorNotFound", "a ResourceFlavor of the queue does not exist", "create it; the job then starts", admits=False
    )
    QUEUE_NOT_FOUND = _waiting(
        "QueueNotFound",
        "the queue does not exist",
        "create it, or name a LocalQueue of the namespace in spec.scheduling.queue",
        admits=False,
    )
    QUEUE_STOPPED = _waiting(
        "QueueStopped",
        "the queue is stopped or not ready",
        "the job starts once the administrator starts or completes the queue",
        admits=False,
    )
    QUEUE_MISCONFIGURED = _waiting(
        "QueueMisconfigured",
        "the queue cannot admit the job as it is configured",
        "ask the administrator of the queue",
        stalls=True,
        admits=False,
    )
    WAITING_FOR_ADMISSION_CHECKS = _waiting(
        "WaitingForAdmissionChecks",
        "the quota is reserved, and admission checks of the queue are not ready",
        "see `kubectl describe workload`",
        admits=False,
    )
    WORKLOAD_DEACTIVATED = _waiting(
        "WorkloadDeactivated",
        "the workload of the job was deactivated",
        "set spec.active of the Workload to true; the job then continues",
        admits=False,
    )
    AGENT_SILENT = _waiting(
        "AgentSilent",
        "pods run but their agents do not reach the operator",
        "check network policies and DNS, see `kubectl logs` of the pod",
    )

    # An open round
    ROUND_OPENED = _running("RoundOpened", "a round was opened")
    CONFIGURATION_CHANGED = _running(
        "ConfigurationChanged",
        "the spec was changed in a way that the pods of the gang cannot follow",
        "they continue unchanged, and all of them are replaced before the next round",
    )
    STARTING = _running("Starting", "workers start and have not made a step yet")
    WORKERS_SILENT = _running(
        "WorkersSilent",
        "the workers have not reported yet",
        "they may still be importing, or those of several nodes may not reach each other: see `torchyard logs`, and "
        "network policies between the pods",
        announced=True,
    )
    TRAINING = _running("Training", "the workers train")
    STANDING_STILL = _running(
        "StandingStill",
        "no step for much longer than any step took before",
        "see `torchyard stacks` for where the ranks are; set spec.health.stall to end such a round",
        announced=True,
    )
    NO_REPORTS = _running(
        "NoReports",
        "the program runs and has reported no step",
        "call torchyard_agent.report() or set spec.metrics.patterns to show its progress",
    )
    TRAINER_WARNING = _running("TrainerWarning", "the program warns")
    ROUND_CLOSED = _running("RoundClosed", "a round ended early")
    RECOVERING = _running("Recovering", "a failed round is being replaced")
    TERMINATING = _running(
        "Terminating",
        "the job is being deleted, and finalizers of other controllers hold it",
        "its pods are deleted; the job is deleted once those controllers remove their finalizers",
    )
    SUSPENDING = _running("Suspending", "the workers are asked to save a checkpoint and to stop")
    SUSPENDED = _running(
        "Suspended", "the job is suspended", "`torchyard resume`, or spec.suspend: false, continues it"
    )
    RESUMED = _running("Resumed", "the job was resumed")
    NODE_LEAVING = _running(
        "NodeLeaving",
        "a node announces that it leaves or is broken: the workers are asked to save a checkpoint and to stop, and the "
        "pods move to other nodes",
        announced=True,
    )
    REPLACING_STRAGGLER = _running(
        "ReplacingStraggler",
        "a rank is slower than the others: the workers are asked to save a checkpoint and to stop, and a spare takes "
        "the place of its pod",
        announced=True,
    )
    RESIZING = _running(
        "Resizing", "the workers are asked to save a checkpoint and to stop, since the gang continues with another size"
    )
    PROGRAM_CHANGED = _running(
        "ProgramChanged",
        "the code, command, args or env was edited: the workers are asked to save a checkpoint and to stop, and the "
        "next round runs what the spec has now",
    )

    # Warnings
    AGENT_NOTICE = _warning("AgentNotice", "the agent of a pod reports")
    RANKS_NOT_COMMUNICATING = _warning(
        "RanksNotCommunicating",
        "the ranks do not communicate, so each of them trains a model of its own",
        "call torch.distributed.init_process_group() and wrap the model in DDP or FSDP, or ask for a single rank",
    )
    GPUS_NOT_USED = _warning(
        "GpusNotUsed",
        "the job holds GPUs that it does not use",
        "move the model and its inputs to the GPU, or set spec.gpusPerNode to 0",
    )

    STRAGGLER = _warning(
        "Straggler",
        "a rank is slower than the others, which wait for it in every step",
        "look at its node and GPU: clocks, temperature, other processes; with spec.spares, "
        "spec.health.replaceStraggler has a spare take its place",
        blames_node=0.5,
    )
    SLOWER_THAN_BASELINE = _warning(
        "SlowerThanBaseline",
        "the steps of all ranks take longer than before",
        "look for lowered clocks, slow storage or network, and other programs; or the samples have become longer",
    )

    # Values of conditions
    PODS_READY = _condition("PodsReady", "every pod is ready")
    PODS_NOT_READY = _condition("PodsNotReady", "not every pod is ready")
    ADMITTED = _condition("Admitted", "the pods may be created")
    NOT_TRAINING = _condition("NotTraining", "no step is being made")
    HEALTHY = _condition("Healthy", "nothing went wrong")
    NOT_RECONCILING = _condition("NotReconciling", "the job is in the state that its spec requests, or has ended")
    CHECKPOINT_SAVED = _condition("CheckpointSaved", "a complete checkpoint exists")
    NO_CHECKPOINT_YET = _condition("NoCheckpointYet", "no complete checkpoint has been reported")
    NO_EXPORT = _condition("NoExport", "nothing has been exported")
    EXPORT_VERIFIED = _condition(
        "ExportVerified", "every exported format was read back and computes what the model computes"
    )
    EXPORT_NOT_VERIFIED = _condition(
        "ExportNotVerified", "the exported formats were not compared with the model", "set spec.export.verify to true"
    )
    EXPORT_REFUSED = _condition(
        "ExportRefused", "an exported format does not compute what the model computes", "see `torchyard logs`"
    )
    NOT_FINISHED = _condition("NotFinished", "the job has not ended")
    NOT_FAILED = _condition("NotFailed", "the job has not failed")
    NOT_STALLED = _condition("NotStalled", "the controller handles this job")

    # Ends of pods and containers
    POD_LOST = _failure("PodLost", "a pod no longer exists", counted=False)
    POD_FAILED = _failure("PodFailed", "a pod ended before its job", "see `torchyard logs`")
    NODE_LOST = _failure(
        "NodeLost", "the node of a pod does not respond", counted=False, took_pod=True, blames_node=0.25
    )
    EVICTED = _failure("Evicted", "a pod was evicted from its node", counted=False, took_pod=True)
    PREEMPTED_BY_PRIORITY = _failure(
        "PreemptedByPriority", "a pod was preempted by one of higher priority", counted=False, took_pod=True
    )
    DISK_LIMIT_EXCEEDED = _failure(
        "DiskLimitExceeded",
        "a pod wrote more than a limit on its disk allows",
        "raise spec.resources.disk or spec.checkpoint.volume.ephemeral, use a claim, or write less",
        took_pod=True,
    )
    NODE_REFUSED = _failure(
        "NodeRefused", "a node rejected a pod that was scheduled to it", "see `kubectl describe node`", counted=False
    )
    INIT_CONTAINER_FAILED = _failure(
        "InitContainerFailed",
        "an init container of the pod failed before the trainer started",
        "see `kubectl logs -c` of that container",
    )
    CONTAINER_CANNOT_START = _failure(
        "ContainerCannotStart",
        "the container runtime of a node could not start a container",
        "see `kubectl describe pod` and the node; if it happens on every node, check the image",
        start_attempts=6,
        blames_node=0.5,
    )
    PYTHON_NOT_FOUND = _failure(
        "PythonNotFound",
        "the image has no python3, which the agent needs",
        "use an image with Python 3.9 or newer on its PATH, or launcher.kind: none",
        start_attempts=3,
    )
    AGENT_CRASHED = _failure("AgentCrashed", "the agent of a pod crashed", "see `kubectl logs` of the pod")
    AGENT_NOT_INSTALLED = _failure(
        "AgentNotInstalled", "the agent could not be installed in a pod", "see `kubectl logs -c agent` of the pod"
    )
    OOM_KILLED = _failure(
        "OOMKilled",
        "the kernel killed a process of a pod because memory ran out",
        "raise spec.resources.memory or lower the micro-batch",
        tried_once_more=True,
    )
    GANG_DIFFERS = _failure(
        "GangDiffers",
        "the pods of the gang do not run the same code and configuration",
        "set spec.image to a digest, and do not edit config maps or secrets of a running job",
        start_attempts=3,
    )
    INPUT_NOT_FETCHED = _failure(
        "InputNotFetched",
        "an input of the job could not be fetched",
        "check the network of the pods, the server and the free disk",
        counted=False,
        start_attempts=3,
    )
    INPUT_REJECTED = _failure(
        "InputRejected",
        "an input of the job does not exist, may not be read, or is not what the job names",
        "correct the entry of spec.inputs, or the credentials in spec.envFrom",
        permanent=True,
    )
    CODE_NOT_FETCHED = _failure(
        "CodeNotFetched",
        "the code of the job could not be fetched",
        "check the network of the pods and the server of spec.code.git",
        counted=False,
        start_attempts=3,
    )
    CODE_REJECTED = _failure(
        "CodeRejected",
        "the code that the job names does not exist, may not be read, or cannot be run as it is",
        "correct spec.code or the Secret that it names",
        permanent=True,
    )
    REQUIREMENTS_NOT_INSTALLED = _failure(
        "RequirementsNotInstalled",
        "the requirements of the code could not be installed",
        "check the network of the pods, the index of packages and the free disk",
        counted=False,
        start_attempts=3,
    )
    REQUIREMENTS_FAILED = _failure(
        "RequirementsFailed",
        "the requirements of the code cannot be installed in this image",
        "correct spec.code.requirements, or the credentials of the index in spec.envFrom, or use an image that fits",
        permanent=True,
    )
    AGENT_RESTARTED = _failure("AgentRestarted", "the agent of a pod was restarted", counted=False)

    # Ends of workers, by exit code (`api.exit_codes`)
    COMPLETED = _failure("Completed", "the workers have finished", counted=False)
    WORKER_FAILED = _failure("WorkerFailed", "a worker failed", "see `torchyard logs`", repeatable=True)
    CONFIGURATION_INVALID = _failure(
        "ConfigurationInvalid",
        "the workload rejected its configuration",
        "correct the field that the message names",
        permanent=True,
    )
    DATA_MISMATCH = _failure(
        "DataMismatch",
        "the data cannot be used, or the checkpoint belongs to other data, another seed or another model",
        "correct the record that is named, or restore data, seed and model of the run, or start a new job",
        permanent=True,
    )
    NUMERIC_DIVERGENCE = _failure(
        "NumericDivergence",
        "the loss or a gradient is no longer finite",
        "lower the learning rate or use precision fp32 or bf16",
        permanent=True,
    )
    CHECKPOINT_UNREADABLE = _failure(
        "CheckpointUnreadable",
        "a checkpoint that is needed cannot be read",
        "restore the checkpoint folder or start a new job",
        permanent=True,
    )
    HARDWARE_SUSPECTED = _failure(
        "HardwareSuspected",
        "the hardware that a worker needs is missing or broken",
        "repair the hardware that the message names, or train on the CPU with spec.gpusPerNode: 0",
        repeatable=True,
        blames_node=1.0,
    )
    GPU_OUT_OF_MEMORY = _failure(
        "GpuOutOfMemory",
        "a GPU ran out of memory",
        "set a smaller spec.parallelism.microBatchSize or microBatchTokens",
        tried_once_more=True,
    )
    WORKER_HUNG = _failure("WorkerHung", "a worker hung", "`torchyard logs` has the stacks of the rank that hangs")
    CODE_MISMATCH = _failure(
        "CodeMismatch",
        "the code that arrived in the pod is not the code of the job, so it is not run",
        "correct spec.code.digest of git, an image or a claim; submit a job again whose code was sent, and if the "
        "reason stays, delete its ConfigMaps first: `kubectl delete configmaps -l torchyard.dev/code`",
        permanent=True,
    )
    TORCH_MISSING = _failure(
        "TorchMissing",
        "torchrun needs PyTorch, which is not installed",
        "`pip install torch`, for a built-in trainer `pip install 'torchyard[trainers]'`, or use an image that has it; "
        "a program that needs none starts without torchrun: `torchyard run -- python train.py`",
        permanent=True,
    )
    STORAGE_FAILED = _failure(
        "StorageFailed", "the checkpoint volume failed", "check free space and health of the checkpoint volume"
    )
    PREEMPTED = _failure(
        "Preempted",
        "the workers were asked to save and stop",
        "the job continues by itself as soon as it may",
        counted=False,
    )
    PEER_LOST = _failure(
        "PeerLost", "a worker lost the connection to another one", "see `torchyard logs` of the rank that ended first"
    )
    COMMAND_NOT_EXECUTABLE = _failure(
        "CommandNotExecutable",
        "the command cannot be executed",
        "make it executable or name its interpreter in spec.command",
        permanent=True,
    )
    COMMAND_NOT_FOUND = _failure(
        "CommandNotFound",
        "the command or script does not exist",
        "check spec.command, spec.workingDir and that the image has the program",
        start_attempts=3,
        permanent=True,
    )
    INTERRUPTED = _failure("Interrupted", "a worker was interrupted (SIGINT)")
    ABORTED = _failure("Aborted", "a worker aborted (SIGABRT)", "see `torchyard logs` for what aborted it")
    KILLED = _failure(
        "Killed",
        "a worker was killed (SIGKILL), often by the kernel for lack of memory",
        "check the memory of the node",
        blames_node=0.25,
    )
    SEGMENTATION_FAULT = _failure(
        "SegmentationFault",
        "a worker crashed (SIGSEGV)",
        "see `torchyard logs` for the stacks; check compiled extensions and the driver",
    )
    TERMINATED = _failure("Terminated", "a worker was terminated (SIGTERM) before it could save")
    KILLED_BY_SIGNAL = _failure("KilledBySignal", "a worker was killed by a signal", "see `torchyard logs`")

    # Verdicts
    START_TIMEOUT = _final(
        "StartTimeout", "no first step in time", "see `torchyard logs`, or raise spec.health.startTimeout"
    )
    PENDING_TIMEOUT = _final("PendingTimeout", "the pods did not start in time", "raise spec.health.pendingTimeout")
    DEADLINE_EXCEEDED = _final("DeadlineExceeded", "spec.activeDeadline has passed", "raise it and run the job again")
    NO_PROGRESS = _final(
        "NoProgress",
        "rounds in a row ended without progress",
        "fix the cause, see `torchyard logs`",
        points_to_cause=True,
    )
    MAX_RESTARTS_EXCEEDED = _final(
        "MaxRestartsExceeded",
        "spec.restart.maxRestarts is used up",
        "fix the cause, see `torchyard logs`",
        points_to_cause=True,
    )
    REPEATED_FAILURE = _final(
        "RepeatedFailure",
        "the same error at the same step twice",
        "fix the cause, see `torchyard logs`",
        points_to_cause=True,
    )
    RESTARTS_DISABLED = _final(
        "RestartsDisabled",
        "a failure ends a job whose spec.restart.policy is Never",
        "see `torchyard logs`",
        points_to_cause=True,
    )

    # The operator
    POD_INVALID = _operator(
        "PodInvalid",
        "the API server rejects the pods as invalid",
        "correct the field that the message names",
        admits=False,
    )
    INVALID_SPEC = _operator(
        "InvalidSpec",
        "the spec breaks a rule",
        "correct it and create the job again; `torchyard validate` reports every mistake",
        stalls=True,
        admits=False,
    )
    UNREADABLE_STATUS = _operator(
        "UnreadableStatus",
        "this version of the operator cannot read the status",
        "upgrade the operator, or correct it with `kubectl edit --subresource=status`",
        stalls=True,
        admits=False,
    )
    RECONCILE_FAILED = _operator(
        "ReconcileFailed",
        "reconciling this job failed with an internal error and is retried",
        "see the log of the controller",
    )
    NAME_TAKEN = _operator(
        "NameTaken",
        "a pod that is not the job's has the name of one of its pods, which gets another name",
        "find out who created it and delete it",
    )
    FORGED_POD = _operator(
        "ForgedPod",
        "a pod claims to belong to the job; it is left alone and its reports are ignored",
        "find out who created it and delete it",
    )
    FOLDER_NOT_WRITABLE = _operator(
        "FolderNotWritable",
        "the folder of the run cannot be written",
        "free disk space or make it writable; the write is retried",
    )


# Of a status that was never written, and of a round that is open.
NO_REASON = Reason.unlisted(_entry(Kind.OTHER, "", ""))


def say(code: str, evidence: str = "", *, advice: str = "") -> str:
    """Return one sentence of at most `MAX_MESSAGE` characters: what happened (evidence); next step.

    Args:
        code: of a reason; a code of the cluster or of another version is quoted.
        evidence: what proves it; messages of programs, pods and events are in it, which anyone may write.
        advice: replaces the reason's own next step.
    """
    code, evidence = one_line(code), one_line(evidence)
    reason = Reason.of(code)
    if reason is None:
        return (f"{code}: {evidence}" if evidence else code)[:MAX_MESSAGE]
    cause = reason.sentence + (f" ({evidence})" if evidence else "")
    step = advice or reason.next_step
    return (f"{cause}; {step}" if step else cause)[:MAX_MESSAGE]


def timeout_advice(waited_for: Reason) -> str:
    """Return what to do about pods that did not start in time: the next step of what they waited for, or more time."""
    return ", or ".join(filter(None, (waited_for.next_step, Reason.PENDING_TIMEOUT.next_step)))


def one_line(text: str) -> str:
    """Return foreign text as a part of a sentence: one line, without escape sequences and control characters."""
    return text if text.isprintable() else clean(" ".join(text.split()))
