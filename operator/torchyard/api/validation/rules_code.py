"""Rules of the code that travels with a job."""

import re

from torchyard.api.spec_code import Code, GitCode
from torchyard.api.validation.rules import Rule

_DETOURS = r"^/|(^|/)[.][.]?(/|$)|//"
_CREDENTIALS = r"^[a-z]+://([^/]*:[^/@]*@|[^/@]*@[^/]*@)|^https://[^/]*@"


def _one_source(code: Code) -> bool:
    given = sum(each is not None for each in (code.path, code.git, code.image, code.claim))
    return given == 1 or (given == 0 and code.digest is not None)


def _has_no_credentials(git: GitCode) -> bool:
    return re.search(_CREDENTIALS, git.url) is None


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
    Rule(
        scope="code.git",
        field="path",
        what="{value} leads out of the repository",
        fix="give a relative path without . and ..",
        holds=lambda git: git.path is None or re.search(_DETOURS, git.path) is None,
        cel=f"!self.matches({_DETOURS!r})",
        on_field=True,
    ),
    Rule(
        scope="code.claim",
        field="path",
        what="{value} leads out of the claim",
        fix="give a relative path without . and ..",
        holds=lambda claim: claim.path is None or re.search(_DETOURS, claim.path) is None,
        cel=f"!self.matches({_DETOURS!r})",
        on_field=True,
    ),
)
