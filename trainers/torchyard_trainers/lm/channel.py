"""Messages between a trainer and the process of a user's code: JSON of a bounded length, by a deadline.

Nothing is unpickled, and neither side waits for ever: the function may have written to the socket, or have stopped or
ended its process in the middle of a message.
"""

import json
import socket
import time
from collections.abc import Callable
from typing import Any

_HEADER_BYTES = 8
_LOOK_SECONDS = 0.5  # how often the other side is looked at while a message does not come


class MessageError(ValueError):
    """What came is not a message, or is larger than allowed."""


class Channel:
    """One end of a stream socket.

    Args:
        sock: the end; it is closed with the channel.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def close(self) -> None:
        """Close this end."""
        self._sock.close()

    def send(self, message: Any, seconds: float | None = None) -> None:
        """Send one message.

        Args:
            message: JSON values; others become text.
            seconds: within which the other side must have taken it; None: no limit.

        Raises:
            TimeoutError: it has not.
            OSError: the other side is closed.
        """
        data = json.dumps(message, default=str).encode()
        self._sock.settimeout(seconds)
        self._sock.sendall(len(data).to_bytes(_HEADER_BYTES, "big") + data)

    def receive(self) -> Any:
        """Return the next message, however long it takes.

        Raises:
            EOFError: the other side is closed.
        """
        self._sock.settimeout(None)
        return json.loads(self._read(int.from_bytes(self._read(_HEADER_BYTES), "big")))

    def receive_answer(self, seconds: float, limit: int, alive: Callable[[], bool]) -> tuple[str, Any]:
        """Return kind and value of the next message.

        Args:
            seconds: within which all of it must come.
            limit: of its length in bytes.
            alive: whether the other process runs; its children may keep its end of the socket open.

        Raises:
            TimeoutError: it did not come.
            EOFError: the other side is closed or has ended.
            MessageError: it is longer than `limit`, is not JSON, or has no kind and value.
        """
        deadline = time.monotonic() + seconds
        length = int.from_bytes(self._read(_HEADER_BYTES, deadline, alive), "big")
        if length > limit:
            raise MessageError(f"a message of more than {limit} bytes")
        try:
            answer = json.loads(self._read(length, deadline, alive))
        except (ValueError, RecursionError) as error:
            raise MessageError("a message that is not JSON") from error
        if not (isinstance(answer, list) and len(answer) == 2):
            raise MessageError("a message without a kind and a value")
        return answer[0], answer[1]

    def _read(self, count: int, deadline: float | None = None, alive: Callable[[], bool] = lambda: True) -> bytes:
        found = bytearray()
        while len(found) < count:
            if deadline is not None:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError
                self._sock.settimeout(min(left, _LOOK_SECONDS))
            lives = alive()  # before the last look: what an ended process had sent is still read
            try:
                part = self._sock.recv(min(count - len(found), 1 << 20))
            except TimeoutError:
                if not lives:
                    raise EOFError from None
                continue
            if not part:
                raise EOFError
            found += part
        return bytes(found)
