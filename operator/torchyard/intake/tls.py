"""The intake's certificate: read from files, and read again when they change, without a connection lost."""

import asyncio
import contextlib
import logging
import os
import ssl
from pathlib import Path

LOOK_SECONDS = 10.0

_log = logging.getLogger(__name__)


def server_context(folder: Path) -> ssl.SSLContext:
    """A context for `tls.crt` and `tls.key` of a folder.

    Raises:
        ValueError: the files are not there or do not belong together; says which and why.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # Agents never resume a session; a ticket each would be made for nothing.
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    _load(context, folder)
    return context


async def follow(context: ssl.SSLContext, folder: Path, *, every: float = LOOK_SECONDS) -> None:
    """Use certificate and key of the folder whenever they change, until cancelled; new connections get the new one.

    A pair that cannot be used is reported once, and the one before it stays.

    Args:
        context: made by `server_context`.
        folder: with `tls.crt` and `tls.key`.
        every: seconds between two looks.
    """
    used = _signature(folder)
    while True:
        await asyncio.sleep(every)
        seen = _signature(folder)
        if seen == used:
            continue
        used = seen
        try:
            # On one side first: a pair that does not fit would spoil the context that is in use.
            await asyncio.to_thread(server_context, folder)
            _load(context, folder)
        except ValueError as error:
            _log.error("%s The certificate in use stays.", error)
        else:
            _log.info("the intake's certificate was read again from %s", folder)


def _load(context: ssl.SSLContext, folder: Path) -> None:
    # Kubernetes swaps a link to a folder of both: seen through it, the two files are of one generation.
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
