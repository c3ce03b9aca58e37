"""Volumes of a cluster on a machine without one: a folder takes the place of each path at which one is mounted."""

import re
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from torchyard.api.spec import TrainingJobSpec
from torchyard.api.spec_placement import Volume
from torchyard.api.spec_texts import with_texts

_BEFORE, _AFTER = r"(?<![\w./~-])", r"(?![\w.~-])"
"""What cannot be beside a path that is a path by itself: `/data` is neither in `s3://data` nor in `/data2`."""


def with_folders(spec: TrainingJobSpec, folders: Mapping[str, str]) -> TrainingJobSpec:
    """Return the spec as a machine runs it that has folders in the place of volumes.

    Command, args, env, parameters, `workingDir` and `code.wheels` name the folders then; code is not changed.

    Args:
        spec: of a job.
        folders: absolute paths by the name of a volume of the spec.

    Raises:
        KeyError: the spec has no volume of this name.
    """
    mounted = {volume.name: volume.mount_path for volume in spec.volumes}
    places = {mounted[name].rstrip("/"): folder for name, folder in folders.items()}
    if not places:
        return spec
    longest_first = sorted(places, key=len, reverse=True)
    pattern = re.compile(f"{_BEFORE}({'|'.join(map(re.escape, longest_first))}){_AFTER}")

    def fill(text: str) -> str:
        return pattern.sub(lambda match: places[match[1]], text)

    code = spec.code
    if code is not None and code.wheels is not None:
        code = replace(code, wheels=fill(code.wheels))
    return replace(
        with_texts(spec, fill, b"/"),
        volumes=[volume for volume in spec.volumes if volume.name not in folders],
        working_dir=fill(spec.working_dir) if spec.working_dir is not None else None,
        code=code,
    )


def without_folder(volumes: Sequence[Volume]) -> str:
    """Return the sentence about volumes that a machine has no folder for."""
    listed = ", ".join(f"{volume.name} ({_source(volume)}, at {volume.mount_path})" for volume in volumes)
    return f"this machine has no folder for the volumes {listed}; --volume {volumes[0].name}=FOLDER names one"


def _source(volume: Volume) -> str:
    if volume.claim is not None:
        return f"claim {volume.claim}"
    return f"ConfigMap {volume.config_map}" if volume.config_map is not None else f"Secret {volume.secret}"
