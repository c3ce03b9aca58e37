"""Published models and datasets as they come from the Hugging Face Hub: names, and what lies in the place of a file."""

import re
from typing import Literal

# `OWNER/NAME`, the address of its page, or only `NAME`, as the oldest models have it.
_ON_THE_HUB = re.compile(
    r"(?:(?:https?:/+)?(?:www\.)?(?:huggingface\.co|hf\.co)/|hf:/+)?(?:datasets/|models/)?"
    r"(?P<id>(?:[A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*)(?:/(?:tree|blob|resolve)/.*)?/?"
)
HEAD = 64
"""Bytes of a file that show whether something else lies in its place."""
_POINTER = b"version https://git-lfs"
_PAGES = (b"<!doctype", b"<html", b"<?xml")


def hub_id(text: str) -> str:
    """Return the id of what a text may name on the Hub: `OWNER/NAME`; "" if it is a path or another address."""
    found = _ON_THE_HUB.fullmatch(text)
    return found["id"] if found is not None else ""


def path_fix(text: str) -> str:
    """Return what to do about a path that does not exist."""
    if text.startswith("~") or "$" in text:
        return "write the whole path: neither ~ nor variables of a shell are replaced"
    return "check the path, and that every pod can read it"


def folder_fix(text: str, kind: Literal["model", "dataset"]) -> str:
    """Return what to do about the name of a folder that does not exist; it may be one on the Hub."""
    if not (name := hub_id(text)):
        return path_fix(text)
    command = f"hf download {name}{' --repo-type dataset' if kind == 'dataset' else ''} --local-dir FOLDER"
    return f"check the path, or if it is a {kind} of the Hugging Face Hub, run {command} and name FOLDER"


def other_than_file(head: bytes) -> str:
    """Return what lies in the place of a file that begins with these bytes, and what to do; "" if it may be the file.

    Git leaves a pointer where Git LFS has not fetched a file, and a download may have saved the page of an error.
    """
    if head.startswith(_POINTER):
        return "is a pointer of Git LFS, not the file; run git lfs pull in its folder"
    if head.lstrip().lower().startswith(_PAGES):
        return "is a web page, not the file; download it again, and log in first if it is not public"
    return ""
