"""TrainingProfiles as objects of the cluster, and as people write them into files."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import msgspec
from msgspec import Struct

from torchyard.api.profiles.effective import enforced, with_defaults
from torchyard.api.resource import GROUP, VERSION, converted
from torchyard.api.schema import Schema, described, object_of, structural
from torchyard.api.spec import TrainingJobSpec
from torchyard.api.spec_profile import TrainingProfileSpec
from torchyard.api.validation.parse import broken_rules
from torchyard.api.values import SUBDOMAIN_PATTERN

KIND, PLURAL = "TrainingProfile", "trainingprofiles"
PATH = f"/apis/{GROUP}/{VERSION}/{PLURAL}"
MAX_PROFILE_NAME = 253
MAX_PROBLEM = 300
NAME: Schema = {"type": "string", "minLength": 1, "maxLength": MAX_PROFILE_NAME, "pattern": SUBDOMAIN_PATTERN}


class TrainingProfile(Struct, frozen=True, kw_only=True):
    """One profile of the cluster.

    Attributes:
        name: of the object.
        uid: of the object.
        generation: of its spec.
        spec: what it sets and allows.
        problem: field and value that make it unusable; empty: it can be used.
    """

    name: str
    uid: str = ""
    generation: int = 0
    spec: TrainingProfileSpec = TrainingProfileSpec()
    problem: str = ""


def read_profile(document: Mapping[str, Any]) -> TrainingProfile:
    """Read a profile as the API server returns it. No object makes this raise: an unusable one has a `problem`."""
    metadata = document.get("metadata")
    meta: Mapping[str, Any] = metadata if isinstance(metadata, Mapping) else {}
    generation = meta.get("generation")
    profile = TrainingProfile(
        name=str(meta.get("name") or ""),
        uid=str(meta.get("uid") or ""),
        generation=generation if isinstance(generation, int) else 0,
    )
    try:
        spec = converted({"spec": document.get("spec")}, _WithSpec).spec
    except (ValueError, RecursionError) as error:
        problem = (str(error) or "nested too deeply").replace("`$.", "`")
        return msgspec.structs.replace(profile, problem=problem[:MAX_PROBLEM])
    return msgspec.structs.replace(profile, spec=spec, problem=next(broken_defaults(spec), "")[:MAX_PROBLEM])


def broken_defaults(spec: TrainingProfileSpec) -> Iterator[str]:
    """Yield what is wrong with values that a profile gives to jobs, as it is reported for a job with these values."""
    job = with_defaults(TrainingJobSpec(script="pass"), enforced(spec.defaults, spec.limits))
    for path, what, fix in broken_rules(job):
        yield f"{path.replace('spec', 'spec.defaults', 1)}: {what}: {fix}"


class _WithSpec(Struct, frozen=True):
    spec: TrainingProfileSpec = TrainingProfileSpec()


@cache
def spec_schema() -> Schema:
    """Return the schema of `spec`; shared, do not change it."""
    return structural(described(TrainingProfileSpec))


@cache
def object_schema() -> Schema:
    """Return the schema of the whole object as people write it."""
    return object_of(KIND, {**NAME, "description": "the name of the profile"}, spec_schema())
