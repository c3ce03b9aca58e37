"""Small files handed to the installer in its environment: no ConfigMap per job, no annotation at its limit."""

import json
from collections.abc import Iterator, Mapping

PART_BYTES = 100 * 1024
"""Linux refuses a variable of more than 128 KiB."""


def environment(files: Mapping[str, str]) -> dict[str, str]:
    """Variables from which `torchyard-agent.pyz install` writes these files (docs/protocol.md).

    TORCHYARD_FILES holds names and numbers of parts, TORCHYARD_FILE_<f>_<p> part `p` of file `f`, both from 0.
    """
    parts = {name: list(_parts(text)) for name, text in files.items()}
    env = {"TORCHYARD_FILES": json.dumps({name: len(pieces) for name, pieces in parts.items()})}
    for number, pieces in enumerate(parts.values()):
        env |= {f"TORCHYARD_FILE_{number}_{part}": piece for part, piece in enumerate(pieces)}
    return env


def _parts(text: str) -> Iterator[str]:
    """Cut at most PART_BYTES of UTF-8 at a time, never through a character."""
    data = text.encode()
    start = 0
    while start < len(data):
        end = min(start + PART_BYTES, len(data))
        while end < len(data) and data[end] & 0xC0 == 0x80:
            end -= 1
        yield data[start:end].decode()
        start = end
