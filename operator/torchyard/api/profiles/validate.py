"""`torchyard validate profile.yaml`: every fault of a profile's file at once, with line and fix."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct

from torchyard.api.files import read_bounded
from torchyard.api.profiles.limits import Fault, faults
from torchyard.api.profiles.resource import TrainingProfile, object_schema, read_profile
from torchyard.api.spec import TrainingJobSpec
from torchyard.api.validation.problems import Problem
from torchyard.api.validation.schema_check import check
from torchyard.api.validation.validate import MAX_PROBLEMS, tree_of
from torchyard.api.validation.yaml_tree import MAX_BYTES, At


class ProfileValidation(Struct, frozen=True, kw_only=True):
    """What a file holds: its profile, or what is wrong with it."""

    profile: TrainingProfile | None = None
    problems: tuple[Problem, ...] = ()


def validate_profile(path: Path) -> ProfileValidation:
    """Check the file of a profile.

    Raises:
        OSError: it cannot be read.
    """
    file = str(path)
    root = tree_of(read_bounded(path, MAX_BYTES + 1), file)
    if isinstance(root, Problem):
        return ProfileValidation(problems=(root,))
    tree, problems = root

    def report(path: str, at: At, what: str, fix: str) -> None:
        problems.append(Problem(file, at.key_line or at.line, path, what, fix))

    check(object_schema(), tree, "", report)
    if problems:
        return ProfileValidation(problems=tuple(sorted(problems, key=lambda each: each.line)[:MAX_PROBLEMS]))
    profile = read_profile(tree.plain)
    if profile.problem:
        path_, _, what = profile.problem.partition(": ")
        return ProfileValidation(problems=(Problem(file, 0, path_, what, "correct it"),))
    return ProfileValidation(profile=profile)


def outside(spec: TrainingJobSpec, profiles: Iterable[TrainingProfile], namespace: str | None) -> Iterator[Fault]:
    """Yield a fault for each limit that a job exceeds of the profile that it names, if that is among these.

    Args:
        spec: of the job.
        profiles: that are known.
        namespace: of the job; None: it is not known yet.
    """
    for each in profiles:
        if each.name == spec.profile:
            yield from faults(spec, each.spec, each.name, namespace)
