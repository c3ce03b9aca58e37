"""Rules of the code that travels with a job."""

import re

from torchyard.api.spec_code import Code, GitCode, is_sent
from torchyard.api.validation.rules import Rule

_FILES = r"^(script|([^/].*/)?(pyproject[.]toml|uv[.]lock|[^/]+[.](txt|in)))$"
_LEAVES = r"(^|/)[.][.](/|$)"
_DETOURS = r"^/|(^|/)[.][.]?(/|$)|//"
_CREDENTIALS = r"^[a-z]+://([^/]*:[^/@]*@|[^/@]*@[^/]*@)|^https://[^/]*@"


def _one_source(code: Code) -> bool:
    given = sum(each is not None for each in (code.path, code.git, code.image, code.claim))
    return given == 1 or (given == 0 and code.digest is not None)


def _has_no_credentials(git: GitCode) -> bool:
    return re.search(_CREDENTIALS, git.url) is None


def _stays_inside(section: str, place: str) -> Rule:
    """Return the rule that `path` of a section of `code` names a folder in its place."""
    return Rule(
        scope=f"code.{section}",
        field="path",
        what=f"{{value}} leads out of the {place}",
        fix="give a relative path without . and ..",
        holds=lambda value: value.path is None or re.search(_DETOURS, value.path) is None,
        cel=f"!self.matches({_DETOURS!r})",
        on_field=True,
    )


CODE: tuple[Rule, ...] = (
    Rule(
        scope="",
        field="code",
        what="without an agent, no program unpacks the code in the pods",
        fix="use launcher.kind: agent, or an image that holds the code",
        holds=lambda spec: spec.launcher.kind == "agent" or spec.code is None,
        cel="self.launcher.kind == 'agent' || !has(self.code)",
        reads=("launcher",),
    ),
    Rule(
        scope="code",
        field="path",
        what="the code must come from one place",
        fix="set exactly one of path (the folder of your code, such as `.`), git, image and claim",
        holds=_one_source,
        cel="[has(self.path), has(self.git), has(self.image), has(self.claim)].filter(given, given).size() == 1 || "
        "(has(self.digest) && !has(self.path) && !has(self.git) && !has(self.image) && !has(self.claim))",
        reads=("digest", "git", "image", "claim"),
    ),
    Rule(
        scope="code.git",
        field="url",
        what="the address holds credentials, which every reader of the job would see",
        fix="leave them out, and name a Secret in spec.code.git.secret",
        holds=_has_no_credentials,
        cel=f"!self.matches({_CREDENTIALS!r})",
        on_field=True,
    ),
    _stays_inside("git", "repository"),
    _stays_inside("claim", "claim"),
    Rule(
        scope="code",
        field="requirements",
        what="{value} is nothing that can be resolved",
        fix="name a requirements.txt, a pyproject.toml or a uv.lock below the folder of the code, or script; packages "
        "of conda need an image that has them",
        holds=lambda code: (
            code.requirements is None
            or (re.search(_FILES, code.requirements) is not None and re.search(_LEAVES, code.requirements) is None)
        ),
        cel=f"self.matches({_FILES!r}) && !self.matches({_LEAVES!r})",
        on_field=True,
    ),
    Rule(
        scope="code",
        field="requirements",
        what="only code that is sent with the job has a lock of its requirements",
        fix="use path for the code, or an image that has the packages",
        holds=lambda code: code.requirements is None or is_sent(code),
        cel="!has(self.requirements) || !has(self.git) && !has(self.image) && !has(self.claim)",
        reads=("git", "image", "claim"),
    ),
    Rule(
        scope="code",
        field="wheels",
        what="{value} leads out of its folder",
        fix="remove .. from it",
        holds=lambda code: code.wheels is None or re.search(_LEAVES, code.wheels) is None,
        cel=f"!self.matches({_LEAVES!r})",
        on_field=True,
    ),
    Rule(
        scope="code",
        field="wheels",
        what="there are no requirements to install from it",
        fix="set requirements, or leave it out",
        holds=lambda code: code.wheels is None or code.requirements is not None,
        cel="!has(self.wheels) || has(self.requirements)",
        reads=("requirements",),
    ),
)
