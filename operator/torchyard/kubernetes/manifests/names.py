"""Names that the manifest and its readers share: labels, containers, paths."""

MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "torchyard"
JOB = "torchyard.dev/job"
JOB_UID = "torchyard.dev/job-uid"
INDEX = "torchyard.dev/index"
INCARNATION = "torchyard.dev/incarnation"
CONFIGURATION = "torchyard.dev/configuration"  # digest of the spec that the pod was created from
DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"  # of `kubectl logs` and `kubectl exec`
INTAKE_CA = "torchyard.dev/intake-ca"
PROVENANCE = "torchyard.dev/created-by"
POD_KEYS = "torchyard.dev/pod-keys"  # on the Lease

TRAINER = "trainer"
AGENT = "agent"
GPU = "nvidia.com/gpu"
DISK = "ephemeral-storage"

AGENT_ZIPAPP = "/torchyard-agent.pyz"  # in the agent's image
ROOT = "/torchyard"
BIN = f"{ROOT}/bin"
AGENT_INSTALLED = f"{BIN}/torchyard-agent.pyz"
CONFIG = f"{ROOT}/config"
VARIABLES = f"{ROOT}/variables"  # the config maps and secrets of envFrom, a folder each
RUN = f"{ROOT}/run"
INTAKE = f"{ROOT}/intake"
CHECKPOINTS = f"{ROOT}/checkpoints"
SHM = "/dev/shm"  # noqa: S108 - in the container, where it is a volume of this pod alone
TMP = "/tmp"  # noqa: S108
TERMINATION_LOG = "/dev/termination-log"
AGENT_LISTEN = "127.0.0.1:29478"


def gang_service(job: str) -> str:
    """Name of the service of a job without an agent; a letter first, as names of services need."""
    return f"ty-{job}"


def gang_policy(job_uid: str) -> str:
    """Name of the NetworkPolicy of a job: no other job can have it, not even a later one of the same name."""
    return f"ty-{job_uid}"


def gang_host(job: str, index: int) -> str:
    """Host name of a member of such a job, whatever its incarnation."""
    return f"{job}-{index}"
