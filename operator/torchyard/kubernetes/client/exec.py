"""A command in a running container, over a WebSocket: the protocol of `kubectl exec` (`v5.channel.k8s.io`, v4 before).

Every message is one byte of channel and its content: 0 is stdin, 1 is stdout, 2 is stderr, 3 has the exit status at the
end.
"""

from collections.abc import AsyncIterator, Sequence

import aiohttp
import msgspec

from torchyard.kubernetes.client.api import CONNECT_SECONDS, Api
from torchyard.kubernetes.client.errors import Details, NotFound, refusal
from torchyard.reconcile.ports import Unavailable

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
MAX_MESSAGE_BYTES = 16 * 2**20
MAX_STDERR_BYTES = 64 * 1024
HEARTBEAT_SECONDS = 20.0
STDIN, STDOUT, STDERR, ERROR = 0, 1, 2, 3
STDIN_BYTES = 64 * 1024


class CommandFailed(Exception):  # noqa: N818 -- a fact about a command, as the errors of the API are
    """The exit code of the command is not 0; the text is its stderr."""


class CannotRun(Unavailable):
    """The node could not run the command: the container has just ended, or the node does not answer."""


async def run(
    api: Api,
    namespace: str,
    pod: str,
    container: str,
    command: Sequence[str],
    *,
    stdin: bytes = b"",
    seconds: float = 3600.0,
) -> AsyncIterator[bytes]:
    """Run a command without a terminal; yield its stdout piece by piece.

    Args:
        api: the API server.
        namespace: of the pod.
        pod: its name.
        container: of the pod.
        command: argument vector, never a shell string.
        stdin: what it reads, which does not end: version 4 of the protocol cannot say so. Empty: it has no input.
        seconds: how long it may be silent.

    Raises:
        NotFound, Rejected: no such pod, no right to do this, or the container does not run.
        CommandFailed: its exit code is not 0.
        CannotRun: the node could not start it, such as in a container that has ended although its pod says Running.
        Unavailable: no connection, or it broke before the command's end was reported.
    """
    what = f"exec in {pod}"
    streams = ["stdout", "stderr", *(["stdin"] if stdin else [])]
    query = [("container", container), *((each, "true") for each in streams), *(("command", word) for word in command)]
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}/exec"
    errors = b""
    try:
        async with api.session.ws_connect(
            api.credentials.server + path,
            params=query,
            protocols=PROTOCOLS,
            headers={"Accept": "*/*"},  # a stream is no JSON, and the server is exact about it
            heartbeat=HEARTBEAT_SECONDS,
            max_msg_size=MAX_MESSAGE_BYTES,
            timeout=aiohttp.ClientWSTimeout(ws_receive=seconds, ws_close=CONNECT_SECONDS),
        ) as socket:
            for start in range(0, len(stdin), STDIN_BYTES):
                await socket.send_bytes(bytes([STDIN]) + stdin[start : start + STDIN_BYTES])
            async for message in socket:
                if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
                    continue
                channel, content = message.data[0], message.data[1:]
                if channel == STDOUT:
                    yield content
                elif channel == STDERR:
                    errors = (errors + content)[-MAX_STDERR_BYTES:]
                elif channel == ERROR:
                    check(content, errors)
                    return
    except aiohttp.WSServerHandshakeError as error:
        if error.status == 404:
            raise NotFound(f"there is no pod {pod}", Details(name=pod, kind="pods")) from error
        # The reason is in the body of the answer, which WebSocket clients do not return.
        problem = f"container {container} of {pod} cannot run commands at the moment"
        if error.status == 500:
            raise CannotRun(problem) from error
        said = {"code": error.status, "message": problem}
        raise refusal(error.status, msgspec.json.encode(said), what=what, retry_after=None) from error
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise Unavailable(f"{what}: {str(error) or 'no answer in time'}") from error
    raise Unavailable(f"{what}: the connection ended before the command did")


class _Ending(msgspec.Struct):
    status: str = ""
    message: str = ""


def check(content: bytes, said: bytes) -> None:
    """Read how a command ended.

    Raises:
        CommandFailed: its exit code is not 0.
    """
    ending = msgspec.json.decode(content, type=_Ending)
    if ending.status != "Success":
        lines = said.decode("utf-8", "replace").strip().splitlines()
        raise CommandFailed(lines[-1] if lines else ending.message)
