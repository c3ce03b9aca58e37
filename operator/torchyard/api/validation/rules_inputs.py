"""Rules of inputs: what belongs to which source, where inputs are mounted, and names in `${inputs.NAME}`."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from torchyard.api.inputs import PLACEHOLDER, has_requirements
from torchyard.api.spec import TrainingJobSpec
from torchyard.api.spec_placement import Input
from torchyard.api.validation.rules import Rule
from torchyard.api.validation.rules_pods import DETOURS, OUR_PATHS

_PATTERNS = ("hf://", "s3://", "gs://")
_DOTS = r"/[.][.]?(/|$)"


def _mounts_differ(spec: TrainingJobSpec) -> bool:
    paths = [volume.mount_path for volume in spec.volumes] + [each.path for each in spec.inputs if each.path]
    return len(paths) == len(set(paths)) or len({volume.mount_path for volume in spec.volumes}) < len(spec.volumes)


def _is_git(spec: TrainingJobSpec) -> bool:
    return spec.code is not None and spec.code.git is not None


def _is_free_path(each: Input) -> bool:
    return each.path is None or not (re.search(OUR_PATHS, each.path) or re.search(DETOURS, each.path))


def _unknown_placeholders(spec: TrainingJobSpec) -> set[str]:
    """Return the names in `${inputs.NAME}` that no input has."""
    texts = [*spec.command, *spec.args, *(each.value for each in spec.env)]
    if spec.trainer is not None and b"${inputs." in spec.trainer.params.json:
        texts += _texts(spec.trainer.params.decoded())
    return {name for text in texts for name in PLACEHOLDER.findall(text)} - {each.name for each in spec.inputs}


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for below in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        yield from _texts(below)


INPUTS: tuple[Rule, ...] = (
    Rule(
        scope="inputs[]",
        field="sha256",
        what="https:// needs the SHA-256 of its file, and no other source has one",
        fix="set sha256 to what sha256sum prints, or leave it out",
        holds=lambda each: each.source.startswith("https://") == (each.sha256 is not None),
        cel="self.from.startsWith('https://') == has(self.sha256)",
        reads=("from",),
    ),
    Rule(
        scope="inputs[]",
        field="include",
        what="this source has no files to choose from",
        fix="leave it out, or use hf://, s3:// or gs://",
        holds=lambda each: not each.include or each.source.startswith(_PATTERNS),
        cel="!has(self.include) || size(self.include) == 0 || "
        + " || ".join(f"self.from.startsWith({scheme!r})" for scheme in _PATTERNS),
        reads=("from",),
    ),
    Rule(
        scope="inputs[]",
        field="from",
        what="{value} leads out of its folder",
        fix="remove . and .. from it",
        holds=lambda each: not each.source.startswith("claim:") or re.search(_DOTS, each.source) is None,
        cel=f"!self.startsWith('claim:') || !self.matches({_DOTS!r})",
        on_field=True,
    ),
    Rule(
        scope="inputs[]",
        field="path",
        what="{value} is reserved or not a plain path",
        fix="choose another one; /, /tmp, /dev/shm and /torchyard are reserved, and //, . and .. are not allowed",
        holds=_is_free_path,
        cel=f"!self.matches({OUR_PATHS!r}) && !self.matches({DETOURS!r})",
        on_field=True,
    ),
    Rule(
        scope="",
        field="inputs",
        what="two inputs or volumes have the same path",
        fix="mount each at a different path",
        holds=_mounts_differ,
        cel="!has(self.inputs) || self.inputs.all(one, !has(one.path) || "
        "(self.inputs.exists_one(other, has(other.path) && other.path == one.path) && "
        "(!has(self.volumes) || !self.volumes.exists(volume, volume.mountPath == one.path))))",
        reads=("volumes",),
    ),
    Rule(
        scope="",
        field="inputs",
        what="only the agent fetches inputs",
        fix="use launcher.kind: agent, or mount volumes",
        holds=lambda spec: not spec.inputs or spec.launcher.kind == "agent",
        cel="!has(self.inputs) || size(self.inputs) == 0 || self.launcher.kind == 'agent'",
        reads=("launcher",),
    ),
    Rule(
        scope="",
        field="inputCache",
        what="there is nothing to keep",
        fix="add inputs, code.git or code.requirements, or leave it out",
        holds=lambda spec: spec.input_cache is None or bool(spec.inputs) or _is_git(spec) or has_requirements(spec),
        cel="!has(self.inputCache) || has(self.inputs) && size(self.inputs) > 0 || "
        "has(self.code) && (has(self.code.git) || has(self.code.requirements))",
        reads=("inputs", "code"),
    ),
    Rule(
        scope="",
        field="inputs",
        what="${inputs.NAME} names an input that does not exist",
        fix="add it, or correct the name in command, args, env or trainer.params",
        holds=lambda spec: not _unknown_placeholders(spec),
        cel=None,  # a text of params has no schema
        reads=("command", "args", "env", "trainer"),
    ),
)
