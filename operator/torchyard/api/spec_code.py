"""The user's code that travels with a job: where it is in a job file, and what a submission makes of it."""

import re
from typing import Annotated, Literal

from msgspec import Meta

from torchyard.api.values import TEXT_PATTERN, Model, Reference, doc

MAX_PARTS = 16
MAX_DIFF_BYTES = 8 * 1024
COMMIT_PATTERN = "^[0-9a-f]{40}([0-9a-f]{24})?$"
GIT_PATTERN = "^(https://|ssh://|file:///|[A-Za-z0-9_][A-Za-z0-9_.-]*@[A-Za-z0-9][A-Za-z0-9.-]*:)[!-~]+$"
"""https, ssh, or the short form of ssh, `git@HOST:PATH`; file is a folder of this machine."""
IMAGE_PATTERN = (
    "^[a-z0-9][a-z0-9._-]*(:[0-9]+)?(/[a-z0-9][a-z0-9._-]*)+(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?@sha256:[0-9a-f]{64}$"
)

FolderBelow = Annotated[str, Meta(pattern=TEXT_PATTERN, min_length=1, max_length=1024)]
"""A relative path of a folder."""


class GitCode(Model, frozen=True, kw_only=True):
    """Code in a git repository, which each pod fetches by its commit before the first round."""

    url: Annotated[
        Annotated[str, Meta(pattern=GIT_PATTERN, max_length=1024)],
        doc("Repository: https://HOST/PATH, ssh://git@HOST/PATH or git@HOST:PATH; file:///PATH on this machine alone."),
    ]
    ref: Annotated[
        Annotated[str, Meta(pattern="^[A-Za-z0-9_][A-Za-z0-9_./+@-]*$", max_length=256)],
        doc(
            "Branch, tag or full commit. The submission pins a branch or tag: spec.code.commit. HEAD is the default "
            "branch of the repository."
        ),
    ] = "HEAD"
    path: Annotated[FolderBelow | None, doc("Folder of the repository; absent: all of it.")] = None
    secret: Annotated[
        Reference | None,
        doc(
            "Secret with the credentials: `token` or `password` (and `username`) for https, `ssh-privatekey` and "
            "`known_hosts` for ssh, `ca.crt` for a CA of your own. Mounted into the pods; absent: none."
        ),
    ] = None


class ClaimCode(Model, frozen=True, kw_only=True):
    """Code on a claim, which is mounted read-only."""

    name: Annotated[Reference, doc("Name of a claim that all pods can mount.")]
    path: Annotated[FolderBelow | None, doc("Folder of the claim; absent: all of it.")] = None


class Code(Model, frozen=True, kw_only=True):
    """The user's code: a folder that is sent, or one of git, image, claim. Submissions fill in the other fields."""

    path: Annotated[
        Annotated[str, Meta(pattern=TEXT_PATTERN, min_length=1, max_length=1024)] | None,
        doc(
            "Folder whose files travel with the job, relative to the job file: those that git does not ignore, edited "
            "by .torchyardignore. Read when the job is submitted."
        ),
    ] = None
    requirements: Annotated[
        Annotated[str, Meta(pattern=TEXT_PATTERN, min_length=1, max_length=1024)] | None,
        doc(
            "What the code imports: a requirements.txt, a pyproject.toml or a uv.lock below the folder, or script for "
            "the block of its script (PEP 723). Resolved when the job is submitted; what the image lacks is installed "
            "before a round."
        ),
    ] = None
    wheels: Annotated[
        Annotated[str, Meta(pattern=TEXT_PATTERN, min_length=1, max_length=1024)] | None,
        doc(
            "Folder of wheels, below the folder of the code or, as an absolute path, on a volume. No index is asked "
            "for packages then."
        ),
    ] = None
    python: Annotated[
        Annotated[str, Meta(pattern=r"^3\.[0-9]{1,2}$", max_length=4)] | None,
        doc("Version of Python in the image, for which requirements are resolved; absent: 3.12, that of the default."),
    ] = None
    platform: Annotated[
        Literal["linux/amd64", "linux/arm64"],
        doc("Platform of the image, for which requirements are resolved. A laptop resolves for itself."),
    ] = "linux/amd64"
    digest: Annotated[
        Annotated[str, Meta(pattern="^[0-9a-f]{64}$", max_length=64)] | None,
        doc(
            "SHA-256 over path, mode, type and content of each file. Set by the submission of a path; with git, image "
            "or claim, files that differ are not run."
        ),
    ] = None
    git: Annotated[GitCode | None, doc("Repository that the pods fetch the code from.")] = None
    image: Annotated[
        Annotated[str, Meta(pattern=IMAGE_PATTERN, max_length=512)] | None,
        doc(
            "Image with the code, as `torchyard push` writes and prints it: REGISTRY/REPOSITORY@sha256:DIGEST. Mounted "
            "as an image volume, with spec.imagePullSecrets."
        ),
    ] = None
    claim: Annotated[ClaimCode | None, doc("Claim that the code lies on.")] = None
    parts: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_PARTS)],
        doc("ConfigMaps that the files are in, torchyard-code-DIGEST12-0 and so on. Set by the submission."),
    ] = 1
    commit: Annotated[
        Annotated[str, Meta(pattern="^[0-9a-f]{40,64}$", max_length=64)] | None,
        doc("Commit of the folder, or that git fetches. Set by the submission."),
    ] = None
    branch: Annotated[
        Annotated[str, Meta(pattern=TEXT_PATTERN, max_length=256)] | None,
        doc("Branch of the folder, or `git.ref`. Set by the submission."),
    ] = None
    diff: Annotated[
        Annotated[str, Meta(pattern=TEXT_PATTERN, max_length=MAX_DIFF_BYTES)] | None,
        doc("Changes that were not committed, at most 8 KiB. Set by the submission."),
    ] = None


def pinned_commit(code: Code) -> str:
    """Return the commit that git fetches; empty: its branch or tag is not resolved."""
    if code.git is None:
        return ""
    return code.commit or (code.git.ref if re.fullmatch(COMMIT_PATTERN, code.git.ref) else "")


def is_sent(code: Code) -> bool:
    """Return whether the submission sends the files, so that pods must wait for them."""
    return code.git is None and code.image is None and code.claim is None


def source_of(code: Code) -> str:
    """Return where code that is not sent comes from, as people read it; empty: it is sent."""
    if code.git is not None:
        below = f", {code.git.path}" if code.git.path else ""
        return f"{code.git.url} at {code.git.ref}{below}"
    if code.image is not None:
        return code.image
    return f"claim {'/'.join(filter(None, (code.claim.name, code.claim.path)))}" if code.claim is not None else ""
