"""The server's certificate: read from files, and reloaded when they change, without losing connections."""

import asyncio
import contextlib
import logging
import os
import ssl
from pathlib import Path

LOOK_SECONDS = 10.0

_log = logging.getLogger(__name__)


def server_context(folder: Path) -> ssl.SSLContext:
    """Return a context for `tls.crt` and `tls.key` of a folder.

    Raises:
        ValueError: a file is missing or the two do not match; names the file and the reason.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # Agents never resume a session, so tickets would be useless.
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    _load(context, folder)
    return context


async def follow(context: ssl.SSLContext, folder: Path, *, every: float = LOOK_SECONDS) -> None:
    """Reload certificate and key whenever they change, until cancelled; new connections use the new pair.

    A pair that cannot be used is reported once, and the former one stays in use.

    Args:
        context: from `server_context`.
        folder: with `tls.crt` and `tls.key`.
        every: seconds between two checks.
    """
    used = _signature(folder)
    while True:
        await asyncio.sleep(every)
        seen = _signature(folder)
        if seen == used:
            continue
        used = seen
        try:
            # Loaded into another context first: a mismatched pair would break the context in use.
            await asyncio.to_thread(server_context, folder)
            _load(context, folder)
        except ValueError as error:
            _log.error("%s The current certificate remains in use.", error)
        else:
            _log.info("reloaded the intake's certificate from %s", folder)


def _load(context: ssl.SSLContext, folder: Path) -> None:
    # Kubernetes replaces a symlink to the folder of both files: resolved first, they are of one generation.
    certificate = Path(os.path.realpath(folder / "tls.crt"))
    key = certificate.with_name("tls.key")
    if not key.exists():
        key = folder / "tls.key"
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise ValueError(
            f"{folder} must hold a certificate chain `tls.crt` and its key `tls.key`, both PEM: "
            f"{error.strerror or type(error).__name__}."
        ) from None


def _signature(folder: Path) -> object:
    seen = []
    for name in ("tls.crt", "tls.key"):
        with contextlib.suppress(OSError):
            status = (folder / name).stat()
            seen.append((status.st_ino, status.st_mtime_ns, status.st_size))
    return seen
