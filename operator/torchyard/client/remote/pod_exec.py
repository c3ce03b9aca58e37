"""Run programs in the pods of a job: small Python sources, since every image of a trainer has Python."""

from collections.abc import AsyncIterator

from torchyard.client.errors import FAILED, TorchYardError
from torchyard.client.remote.session import Remote
from torchyard.kubernetes.client.errors import Rejected
from torchyard.kubernetes.client.exec import CommandFailed, run
from torchyard.kubernetes.manifests.names import TRAINER


def python(remote: Remote, pod: str, source: str, *words: str) -> AsyncIterator[bytes]:
    """Run a source with arguments in the trainer of a pod; return its stdout. Raises what `program` does."""
    return program(remote, pod, "python3", "-c", source, *words)


async def program(remote: Remote, pod: str, *command: str, stdin: bytes = b"") -> AsyncIterator[bytes]:
    """Run a command in the trainer of a pod; return its stdout.

    Raises:
        TorchYardError: it failed (with its last line on stderr), or the user may not run commands there.
        NotFound, Rejected, Unavailable: it could not be started.
    """
    try:
        async for part in run(remote.api, remote.namespace, pod, TRAINER, list(command), stdin=stdin):
            yield part
    except CommandFailed as error:
        raise TorchYardError(str(error).removeprefix("torchyard: "), "", FAILED) from error
    except Rejected as error:
        if error.code != 403:
            raise
        fix = "ask for pods/exec, which the ClusterRole edit has"
        raise TorchYardError(f"you may not execute commands in the pods of {remote.where}", fix, FAILED) from error
