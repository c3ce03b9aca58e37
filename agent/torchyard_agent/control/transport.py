"""The connection to the intake: TLS, plain TCP to loopback, or a Unix domain socket."""

from __future__ import annotations

import http.client
import os
import socket
import ssl
from pathlib import Path
from typing import Optional
from urllib.parse import urlsplit

UNIX = "unix:"


def connect(url: str, ca_file: Optional[Path], seconds: float) -> http.client.HTTPConnection:
    """Return an open connection to the intake at `url`; `seconds` is its time-out.

    Raises:
        OSError: no server listens there, or one whose certificate `ca_file` did not sign.
    """
    connection = _connection(url, ca_file, seconds)
    connection.connect()
    if connection.sock.family != socket.AF_UNIX:
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def base_path(url: str) -> str:
    """Return the prefix of every path at this base URL."""
    return "" if url.startswith(UNIX) else urlsplit(url).path.rstrip("/")


def _connection(url: str, ca_file: Optional[Path], seconds: float) -> http.client.HTTPConnection:
    if url.startswith(UNIX):
        return _UnixConnection(Path(url[len(UNIX) :]), seconds)
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme == "https":
        context = ssl.create_default_context(cafile=str(ca_file))
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        return http.client.HTTPSConnection(host, parts.port or 443, timeout=seconds, context=context)
    return http.client.HTTPConnection(host, parts.port or 80, timeout=seconds)


class _UnixConnection(http.client.HTTPConnection):
    """HTTP on a Unix domain socket."""

    def __init__(self, path: Path, seconds: float) -> None:
        super().__init__("localhost", timeout=seconds)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        # The address of a socket has 108 bytes; by way of its folder's descriptor every path is short enough.
        folder = os.open(self.path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.sock.connect(f"/proc/self/fd/{folder}/{self.path.name}")
        finally:
            os.close(folder)
