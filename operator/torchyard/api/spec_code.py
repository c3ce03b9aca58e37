"""The user's code that travels with a job: where it is in a job file, and what a submission makes of it."""

from typing import Annotated

from msgspec import Meta

from torchyard.api.values import TEXT_PATTERN, Model, doc

MAX_PARTS = 16
MAX_DIFF_BYTES = 8 * 1024


class Code(Model, frozen=True, kw_only=True):
    """The user's code. A job file has `path`; `torchyard submit` and `torchyard run` fill in the other fields."""

    path: Annotated[
        Annotated[str, Meta(pattern=TEXT_PATTERN, min_length=1, max_length=1024)] | None,
        doc(
            "Folder whose files travel with the job, relative to the job file: those that git does not ignore, edited "
            "by .torchyardignore. Read when the job is submitted."
        ),
    ] = None
    digest: Annotated[
        Annotated[str, Meta(pattern="^[0-9a-f]{64}$", max_length=64)] | None,
        doc("SHA-256 over path, mode, type and content of each file. Set by the submission."),
    ] = None
    parts: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_PARTS)],
        doc("ConfigMaps that the files are in, torchyard-code-DIGEST12-0 and so on. Set by the submission."),
    ] = 1
    commit: Annotated[
        Annotated[str, Meta(pattern="^[0-9a-f]{40,64}$", max_length=64)] | None,
        doc("Commit of the folder. Set by the submission."),
    ] = None
    branch: Annotated[
        Annotated[str, Meta(pattern=TEXT_PATTERN, max_length=256)] | None,
        doc("Branch of the folder. Set by the submission."),
    ] = None
    diff: Annotated[
        Annotated[str, Meta(pattern=TEXT_PATTERN, max_length=MAX_DIFF_BYTES)] | None,
        doc("Changes that were not committed, at most 8 KiB. Set by the submission."),
    ] = None
