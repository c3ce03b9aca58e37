"""The name of an image: registry, repository, tag and digest (pure)."""

import re
from typing import NamedTuple
from urllib.parse import urlsplit

from torchyard.client.errors import TorchYardError

_HOST = r"(?P<host>localhost(?::\d+)?|\[[0-9a-f:]+\](?::\d+)?|[a-z0-9-]+(?:\.[a-z0-9-]+)+(?::\d+)?|[a-z0-9-]+:\d+)"
_REFERENCE = re.compile(
    _HOST + r"/(?P<repository>[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_HUB, _HUB_API = "docker.io", "registry-1.docker.io"


class Reference(NamedTuple):
    """An image in a registry; tag and digest are empty where the name has none."""

    host: str
    repository: str
    tag: str = ""
    digest: str = ""

    @property
    def base(self) -> str:
        """The URL of the repository. Without encryption only on this machine, as docker does."""
        host = _HUB_API if self.host == _HUB else self.host
        return f"{'http' if is_here(host) else 'https'}://{host}/v2/{self.repository}"

    def at(self, digest: str) -> str:
        """Return the name of an image of this repository by its digest."""
        return f"{self.host}/{self.repository}@{digest}"


def is_here(host: str) -> bool:
    """Return whether a host, with or without a port, is this machine."""
    name = urlsplit(f"//{host}").hostname or ""
    return name in {"localhost", "::1"} or re.fullmatch(r"127(\.\d{1,3}){3}", name) is not None


def parse(text: str) -> Reference:
    """Return the parts of `REGISTRY/REPOSITORY[:TAG][@DIGEST]`.

    Raises:
        TorchYardError: it is no such name.
    """
    found = _REFERENCE.fullmatch(text)
    if found is None:
        fix = "write REGISTRY/REPOSITORY[:TAG] in lower case, such as ghcr.io/me/code:v1 or docker.io/me/code"
        raise TorchYardError(f"{text} is not the name of an image in a registry", fix)
    return Reference(found["host"], found["repository"], found["tag"] or "", found["digest"] or "")
