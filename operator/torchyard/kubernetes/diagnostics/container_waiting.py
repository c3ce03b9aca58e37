"""Why a pod that has not started waits."""

import re

from torchyard.api.names import CODE_CONFIG_MAP
from torchyard.api.reasons import Reason, one_line
from torchyard.kubernetes.diagnostics import scheduler_message, termination
from torchyard.kubernetes.manifests import names
from torchyard.kubernetes.objects import ContainerStatus, KubePod, Waiting

MAX_MESSAGE = 300
_IMAGE_REASONS = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "ErrImageNeverPull",
        "InvalidImageName",
        "ImageInspectError",
        "RegistryUnavailable",
        "SignatureValidationFailed",
    }
)
# The kubelet itself tries these again, on the same node.
_NOT_STARTED = frozenset({"CreateContainerError", "RunContainerError", "PreCreateHookError", "PreStartHookError"})
_QUIET = frozenset({"", "ContainerCreating", "PodInitializing"})
# In the order they are looked for: a registry that hides whether an image exists reports both.
_PULL_FAULTS = (
    ("rate limited", re.compile(r"toomanyrequests|429 Too Many Requests|rate limit", re.IGNORECASE)),
    ("unauthorized", re.compile(r"no basic auth credentials")),  # it asked for a password before it looked
    (
        "not found or unauthorized",
        re.compile(r"repository does not exist or may require|insufficient_scope", re.IGNORECASE),
    ),
    (
        "unauthorized",
        re.compile(r"unauthorized|authentication required|\bdenied\b|40[13] (?:Forbidden|Unauthorized)", re.IGNORECASE),
    ),
    (
        "not found",
        re.compile(r"not found|NotFound|manifest unknown|name unknown|does not exist|no such image", re.IGNORECASE),
    ),
    ("no space on the node", re.compile(r"no space left", re.IGNORECASE)),
    (
        "registry unreachable",
        re.compile(
            r"dial tcp|no such host|i/o timeout|connection refused|deadline exceeded|TLS|x509|EOF", re.IGNORECASE
        ),
    ),
)
_MISSING = re.compile(r"(?P<kind>secret|configmap) \"?(?P<name>[^\" ]+)\"? not found", re.IGNORECASE)
_KEY = re.compile(r"couldn't find key (?P<key>\S+) in (?P<kind>Secret|ConfigMap) (?P<name>\S+)", re.IGNORECASE)


def reason(pod: KubePod) -> tuple[str, str]:
    """Return the reason code and evidence of a pod that is Pending; both empty: nothing is wrong yet."""
    scheduled = pod.status.condition("PodScheduled")
    if scheduled is not None and scheduled.status == "False":
        if scheduled.reason == "SchedulingGated":
            return Reason.SCHEDULING_GATED, ""
        return scheduler_message.reason(scheduled.message, claims(pod))
    if scheduled is None and (missing_claims := _claims_not_created(pod)):
        return Reason.WAITING_FOR_CLAIMS, f"templates {missing_claims}"
    for status in (*(pod.status.init_container_statuses or ()), *(pod.status.container_statuses or ())):
        waiting = status.state.waiting
        if waiting is not None and waiting.reason not in _QUIET:
            return _container(pod, status, waiting)
    return "", ""


def _claims_not_created(pod: KubePod) -> str:
    """Return the templates from which Kubernetes has created no claim yet: no scheduler looks at the pod."""
    created = {each.name for each in pod.status.resource_claim_statuses or ()}
    missing = (each for each in pod.spec.resource_claims or () if each.name not in created)
    return ", ".join(sorted({each.resource_claim_template_name for each in missing}))


def event(kind: str, message: str) -> tuple[str, str]:
    """Return the reason code and evidence of a warning about a pod whose containers are not even created."""
    if kind in {"FailedMount", "FailedAttachVolume", "FailedMapVolume"}:
        found = missing(message)
        return found if found is not None else (Reason.VOLUME_NOT_MOUNTED, _short(message))
    if kind == "FailedPrepareDynamicResources":
        return Reason.DEVICES_NOT_PREPARED, _short(message.removeprefix("Failed to prepare dynamic resources: "))
    if kind in {"FailedCreatePodSandBox", "NetworkNotReady", "FailedPreStartHook"}:
        return Reason.POD_NOT_SET_UP, _short(message)
    return "", ""


def missing(message: str) -> tuple[str, str] | None:
    """Return the secret or config map that a message says does not exist, or lacks a key."""
    found = _MISSING.search(message)
    if found is not None:
        # Volumes name it with its namespace: `default/token`; `object "ns"/"name" not registered` adds nothing.
        name = found["name"].rsplit("/", 1)[-1]
        if found["kind"].lower() == "secret":
            return Reason.MISSING_SECRET, name
        code = Reason.CODE_MISSING if name.startswith(CODE_CONFIG_MAP) else Reason.MISSING_CONFIG_MAP
        return code, name
    key = _KEY.search(message)
    if key is not None:
        return (
            Reason.CONTAINER_NOT_CONFIGURED,
            f"{key['kind']} {key['name'].rsplit('/', 1)[-1]} has no key {key['key']}",
        )
    return None


def claims(pod: KubePod) -> tuple[str, ...]:
    """Return names of the claims that a pod mounts."""
    volumes = (each.persistent_volume_claim for each in pod.spec.volumes or ())
    return tuple(dict.fromkeys(claim.claim_name for claim in volumes if claim is not None))


def _container(pod: KubePod, status: ContainerStatus, waiting: Waiting) -> tuple[str, str]:
    if waiting.reason in _IMAGE_REASONS:
        image = next((each.image for each in pod.spec.containers if each.name == status.name), "") or status.image
        ours = status.name == names.AGENT
        return Reason.AGENT_IMAGE_PULL_FAILED if ours else Reason.IMAGE_PULL_FAILED, f"{_pull_fault(waiting)}: {image}"
    found = missing(waiting.message)
    if found is not None:
        return found
    if waiting.reason in _NOT_STARTED:
        return termination.not_started(pod, status.name, f"{waiting.reason}: {waiting.message}".removesuffix(": "))
    return Reason.CONTAINER_NOT_CONFIGURED, f"{status.name}: {_short(waiting.message) or waiting.reason}"


def _pull_fault(waiting: Waiting) -> str:
    if waiting.reason == "InvalidImageName":
        return "invalid name"
    if waiting.reason == "ErrImageNeverPull":
        return "not on the node, and the pull policy is Never"
    for fault, words in _PULL_FAULTS:
        if words.search(waiting.message):
            return fault
    return "cause unknown yet"


def _short(message: str) -> str:
    return one_line(" ".join(message.split()))[:MAX_MESSAGE]
