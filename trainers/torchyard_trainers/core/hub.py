"""Published models and datasets as they come from the Hugging Face Hub: names that are no path, files not fetched."""

import re
from typing import Literal

# `OWNER/NAME`, the address of its page, or only `NAME`, as the oldest models have it.
_ON_THE_HUB = re.compile(
    r"(?:(?:https?:/+)?(?:www\.)?(?:huggingface\.co|hf\.co)/|hf:/+)?(?:datasets/|models/)?"
    r"(?P<id>(?:[A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*)(?:/(?:tree|blob|resolve)/.*)?/?"
)
_POINTER = b"version https://git-lfs"
HEAD = len(_POINTER)
"""Bytes of a file that show whether it is a pointer."""
NOT_FETCHED = "is a pointer of Git LFS, not the file; run git lfs pull in its folder"
"""What is wrong with a file that is one, and what to do."""


def hub_id(text: str) -> str:
    """Return the id of what a text may name on the Hub: `OWNER/NAME`; "" if it is a path or another address."""
    found = _ON_THE_HUB.fullmatch(text)
    return found["id"] if found is not None else ""


def download(text: str, kind: Literal["model", "dataset"]) -> str:
    """Return how to get what a text may name on the Hub, to follow `; `; "" if it is a path or another address."""
    name, option = hub_id(text), " --repo-type dataset" if kind == "dataset" else ""
    if not name:
        return ""
    return (
        f"if it is a {kind} of the Hugging Face Hub, run hf download {name}{option} --local-dir FOLDER and name FOLDER"
    )


def is_pointer(head: bytes) -> bool:
    """Return whether a file that begins with these bytes is what Git leaves in place of one that it did not fetch."""
    return head.startswith(_POINTER)
