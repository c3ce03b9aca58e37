"""Names that manifests and their readers share (labels, containers, paths), and the settings of this installation."""

from typing import Any

from msgspec import Struct

from torchyard.api import inputs
from torchyard.api.names import CODE_CONFIG_MAP, JOB_LABEL

MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "torchyard"
JOB = JOB_LABEL
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
AGENT_VOLUME = "torchyard-bin"  # the agent, copied or mounted
GPU = "nvidia.com/gpu"
DISK = "ephemeral-storage"

AGENT_ZIPAPP = "/torchyard-agent.pyz"  # in the agent's image
ROOT = "/torchyard"
BIN = f"{ROOT}/bin"
AGENT_INSTALLED = f"{BIN}/torchyard-agent.pyz"
CONFIG = f"{ROOT}/config"
VARIABLES = f"{ROOT}/variables"  # the config maps and secrets of envFrom, a folder each
RUN = f"{ROOT}/run"
CODE = f"{ROOT}/code"  # unpacked, in a folder for each digest
CODE_PARTS = f"{ROOT}/code-parts"  # the archive that the pod was created with
CODE_SOURCE = f"{ROOT}/code-source"  # an image or a claim with the code
CODE_FETCHED = f"{CODE}/.fetched"  # what git has sent, as long as no round has begun
CODE_SECRET = f"{ROOT}/code-secret"
INTAKE = f"{ROOT}/intake"
PART = "part"  # the key of a ConfigMap that holds a part of the code
CHECKPOINTS = f"{ROOT}/checkpoints"
INPUTS = inputs.FOLDERS
INPUT_CACHE = inputs.SHARED
SHM = "/dev/shm"  # noqa: S108 - in the container, where it is a volume of this pod alone
TMP = "/tmp"  # noqa: S108
PACKAGES = f"{TMP}/torchyard-requirements"  # installed for the code, as long as the pod lives
TERMINATION_LOG = "/dev/termination-log"
AGENT_LISTEN = "127.0.0.1:29478"


def gang_service(job: str) -> str:
    """Name of the service of a job without an agent; a letter first, as names of services need."""
    return f"ty-{job}"


def gang_policy(job_uid: str) -> str:
    """Name of the NetworkPolicy of a job: no other job can have it, not even a later one of the same name."""
    return f"ty-{job_uid}"


def code_parts(digest: str, count: int) -> list[str]:
    """Names of the ConfigMaps that hold the code with this digest."""
    return [f"{CODE_CONFIG_MAP}{digest[:12]}-{number}" for number in range(count)]


def gang_host(job: str, index: int) -> str:
    """Host name of a member of such a job, the same in every incarnation."""
    return f"{job}-{index}"


AUDIENCE = "torchyard.dev"
NON_ROOT = 65532
"""The uid that distroless images call `nonroot`; it owns nothing in an image and needs no entry in its passwd."""


class Site(Struct, frozen=True, kw_only=True):
    """Settings of the operator that are used in pods."""

    operator_url: str
    """Base URL of the intake as pods reach it, `https://...`."""
    ca_pem: str
    """CA certificates by which agents verify the certificate of the intake."""
    agent_image: str
    """Has `python3` on its PATH and the agent's zipapp at `AGENT_ZIPAPP`."""
    agent_volume: bool = False
    """Whether pods mount that image (an image volume), instead of copying the agent out of it by an init container."""
    trainer_image: str
    """The image of jobs that name none."""
    audience: str = AUDIENCE
    token_seconds: int = 3600
    run_as: int | None = NON_ROOT
    """uid and gid of every process; None: the cluster assigns them, as OpenShift does."""
    disk: str = ""
    """Limit of the disk of a pod whose job names none; empty: no limit."""
    lost_node_seconds: int = 30
    """How long a pod stays bound to a node that is not ready or not reachable."""
    shm: str = ""
    """Size of /dev/shm if the job names neither it nor memory; empty: no limit."""
    network_peers: tuple[dict[str, Any], ...] | None = None
    """NetworkPolicy peers that may reach the pods of a job beside its own pods; None: no NetworkPolicy is created."""
