"""The spec of a TrainingProfile: values for fields that a job leaves open, and limits for those that it sets.

A profile fills in only fields that have no default of their own: the API server stores the defaults of all others in
the job, where nothing tells them from what a user wrote.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from torchyard.api.names import MAX_NODES
from torchyard.api.spec_placement import Toleration
from torchyard.api.values import (
    TEXT_PATTERN,
    Duration,
    LabelValue,
    ObjectName,
    Quantity,
    Reference,
    TaintKey,
    doc,
)

MAX_NAMES = 64
MAX_LABELS = 16
MAX_DESCRIPTION = 1024
IMAGE_PREFIX_PATTERN = "^[A-Za-z0-9][A-Za-z0-9._:/-]*$"
REPOSITORY_PREFIX_PATTERN = "^[A-Za-z0-9][A-Za-z0-9._@:-]*[/:][!-~]*$"

Source = Literal["sent", "git", "image", "claim", "script"]


class ProfileModel(Struct, frozen=True, omit_defaults=True, rename="camel", kw_only=True):
    """Base of the sections of a profile. The status of a job holds some: fields of a newer version are ignored."""


class ProfileResources(ProfileModel, frozen=True, kw_only=True):
    """Resources of each pod, as `spec.resources` of a job."""

    cpu: Annotated[Quantity | None, doc("CPU cores.")] = None
    memory: Annotated[Quantity | None, doc("Memory.")] = None
    disk: Annotated[Quantity | None, doc("Disk space of the node.")] = None
    shm: Annotated[Quantity | None, doc("Size of /dev/shm.")] = None


class ProfileScheduling(ProfileModel, frozen=True, kw_only=True):
    """Queue and placement, as `spec.scheduling` of a job."""

    queue: Annotated[ObjectName | None, doc("Queue of jobs that name none.")] = None
    priority_class: Annotated[Reference | None, doc("PriorityClass of jobs that name none.")] = None
    workload_priority_class: Annotated[
        Reference | None, doc("WorkloadPriorityClass of jobs of gang: kueue that name none.")
    ] = None
    node_selector: Annotated[
        dict[str, LabelValue],
        Meta(max_length=MAX_LABELS, description="Labels of nodes, added to those of the job, which win."),
    ] = field(default_factory=dict)
    tolerations: Annotated[
        list[Toleration], Meta(max_length=16, description="Taints that all pods tolerate, added to those of the job.")
    ] = field(default_factory=list)


class Defaults(ProfileModel, frozen=True, kw_only=True):
    """Values of fields that a job leaves open."""

    image: Annotated[
        Annotated[str, Meta(min_length=1, max_length=512)] | None, doc("Container image of jobs that name none.")
    ] = None
    image_pull_secrets: Annotated[
        list[Reference], Meta(max_length=8, description="Names of image pull secrets, added to those of the job.")
    ] = field(default_factory=list)
    service_account_name: Annotated[Reference | None, doc("Service account of jobs that name none.")] = None
    resources: Annotated[ProfileResources, doc("Resources of each pod of jobs that request none.")] = field(
        default_factory=ProfileResources
    )
    scheduling: Annotated[ProfileScheduling, doc("Queue and placement.")] = field(default_factory=ProfileScheduling)
    active_deadline: Annotated[Duration | None, doc("Longest wall time of jobs that name none.")] = None
    ttl_after_finished: Annotated[Duration | None, doc("When ended jobs are deleted that do not say it.")] = None


class CodeLimits(ProfileModel, frozen=True, kw_only=True):
    """Where the code of a job may come from. Code inside the image is governed by `images`."""

    sources: Annotated[
        Annotated[list[Source], Meta(max_length=5)] | None,
        doc(
            "Ways that code may take: sent with the job, git, image (mounted), claim, script (in the spec). "
            "Absent: all; empty: none, so that all code is in the image."
        ),
    ] = None
    repositories: Annotated[
        Annotated[
            list[Annotated[str, Meta(pattern=REPOSITORY_PREFIX_PATTERN, min_length=1, max_length=512)]],
            Meta(max_length=MAX_NAMES),
        ]
        | None,
        doc("Git repositories that code may come from: an address, or all below one that ends with /."),
    ] = None
    requirements: Annotated[
        Literal["allowed", "forbidden"], doc("Whether jobs may install packages: spec.code.requirements.")
    ] = "allowed"


class Limits(ProfileModel, frozen=True, kw_only=True):
    """What a job may ask for. A limit that is absent limits nothing."""

    nodes: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_NODES)] | None,
        doc("Most pods of a job: nodes, or maxNodes of an elastic one, and its spares."),
    ] = None
    gpus: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_NODES * 64)] | None,
        doc("Most GPUs of a job: those pods times gpusPerNode. GPUs of claims are not counted, see claimTemplates."),
    ] = None
    gpus_per_node: Annotated[Annotated[int, Meta(ge=0, le=64)] | None, doc("Most GPUs of each pod.")] = None
    claim_templates: Annotated[
        Annotated[list[Reference], Meta(max_length=MAX_NAMES)] | None,
        doc("ResourceClaimTemplates that jobs may use; empty: none."),
    ] = None
    resources: Annotated[
        ProfileResources,
        doc("Most of each pod. With a limit of cpu or memory, the job or the profile has to set that resource."),
    ] = field(default_factory=ProfileResources)
    active_deadline: Annotated[Duration | None, doc("Longest wall time; the job or the profile has to set one.")] = None
    images: Annotated[
        Annotated[
            list[Annotated[str, Meta(pattern=IMAGE_PREFIX_PATTERN, min_length=1, max_length=256)]],
            Meta(max_length=MAX_NAMES),
        ]
        | None,
        doc(
            "Images that a job may name, code.image included: a repository (REGISTRY/NAME), or all below a "
            "path that ends with /. The default image is always allowed."
        ),
    ] = None
    queues: Annotated[
        Annotated[list[ObjectName], Meta(max_length=MAX_NAMES)] | None,
        doc("Queues of jobs; the job or the profile has to name one."),
    ] = None
    priority_classes: Annotated[
        Annotated[list[Reference], Meta(max_length=MAX_NAMES)] | None, doc("PriorityClasses that a job may name.")
    ] = None
    workload_priority_classes: Annotated[
        Annotated[list[Reference], Meta(max_length=MAX_NAMES)] | None,
        doc("WorkloadPriorityClasses that a job may name."),
    ] = None
    taints: Annotated[
        Annotated[list[TaintKey], Meta(max_length=MAX_NAMES)] | None,
        doc("Keys of the taints that a job may tolerate; empty: none."),
    ] = None
    node_labels: Annotated[
        dict[str, LabelValue],
        Meta(
            max_length=MAX_LABELS,
            description="Labels of the nodes that all jobs run on: added to their nodeSelector, which cannot differ.",
        ),
    ] = field(default_factory=dict)
    code: Annotated[CodeLimits, doc("Where the code of a job may come from.")] = field(default_factory=CodeLimits)


class TrainingProfileSpec(ProfileModel, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the platform team sets and allows for the jobs that name this profile in `spec.profile`."""

    description: Annotated[
        Annotated[str, Meta(pattern=TEXT_PATTERN, max_length=MAX_DESCRIPTION)], doc("What the profile is for.")
    ] = ""
    namespaces: Annotated[
        Annotated[list[ObjectName], Meta(max_length=256)] | None,
        doc("Namespaces whose jobs may use the profile; absent: all."),
    ] = None
    defaults: Annotated[Defaults, doc("Values of fields that a job leaves open.")] = field(default_factory=Defaults)
    limits: Annotated[Limits, doc("What a job may ask for.")] = field(default_factory=Limits)


class PinnedProfile(ProfileModel, frozen=True, kw_only=True):
    """The profile as the job uses it. It is taken with the first gang, and again when a suspended job continues."""

    name: Annotated[str, doc("Name of the TrainingProfile.")]
    uid: Annotated[str, doc("UID of it.")] = ""
    generation: Annotated[int, doc("Generation of its spec.")] = 0
    checked_generation: Annotated[int, doc("Generation of the job that was last compared with the limits.")] = 0
    defaults: Annotated[Defaults, doc("Values of fields that the job leaves open.")] = field(default_factory=Defaults)
