"""Limit the writes per second to the API server, shared fairly between namespaces.

A token bucket and a cap on writes under way. Namespaces that wait are served in turn, so that a thousand jobs of one
team do not delay the first of another. 429 halves the rate, every second without one wins back a tenth.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

LEAST_RATE = 1.0
BUSY_SECONDS = 1.0
# Rounding may leave a bucket just short of a whole token, a difference that no clock can wait for.
ONE_TOKEN = 1.0 - 1e-9
RECOVERY = 0.1


class Budget:
    """A budget of writes.

    Args:
        rate: writes a second.
        burst: writes that may go at once after a quiet time.
        in_flight: most writes under way.
        clock: monotonic seconds of the event loop; None: its own.
    """

    def __init__(
        self,
        *,
        rate: float = 500.0,
        burst: float = 1000.0,
        in_flight: int = 64,
        clock: Callable[[], float] | None = None,
    ) -> None:
        if rate < LEAST_RATE or burst < 1 or in_flight < 1:
            raise ValueError(f"--qps {rate:g} --burst {burst:g}: both must be at least 1.")
        self.rate = self._most = rate
        self._burst, self._free = burst, in_flight
        self._tokens = burst
        self._clock = clock
        self._filled: float | None = None
        self._refused = self._waited = float("-inf")
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """Writes that wait for their turn."""
        return sum(map(len, self._waiting.values()))

    @property
    def busy(self) -> bool:
        """Whether a write waits, or waited a moment ago: between two turns there may be none."""
        return bool(self._waiting) or self._now() - self._waited < BUSY_SECONDS

    @asynccontextmanager
    async def admit(self, namespace: str) -> AsyncIterator[None]:
        """Wait for the turn of one write of this namespace; it is under way until the block ends."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(namespace, deque()).append(turn)
        self._serve()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give_back()
            raise
        try:
            yield
        finally:
            self._give_back()

    def answered(self, code: int) -> None:
        """Learn from the HTTP status of a write."""
        now = self._now()
        # All writes under way are refused together; that is one sign, not many.
        if code == 429 and now - self._refused >= 1.0:
            self._fill(now)
            self._refused = now
            self.rate = max(LEAST_RATE, self.rate / 2)
            self._tokens = min(self._tokens, self.rate)

    def _serve(self) -> None:
        now = self._now()
        self._fill(now)
        while self._waiting and self._free > 0 and self._tokens >= ONE_TOKEN:
            namespace, turns = self._waiting.popitem(last=False)
            turn = turns.popleft()
            if turns:
                self._waiting[namespace] = turns  # behind the others
            if not turn.done():
                self._tokens -= 1.0
                self._free -= 1
                turn.set_result(None)
        if not self._waiting:
            return
        self._waited = now
        if self._free > 0 and self._timer is None:
            delay = (1.0 - self._tokens) / self.rate
            self._timer = asyncio.get_running_loop().call_later(delay, self._due)

    def _due(self) -> None:
        self._timer = None
        self._serve()

    def _fill(self, now: float) -> None:
        elapsed = max(0.0, now - self._filled) if self._filled is not None else 0.0
        self._filled = now
        quiet = min(elapsed, max(0.0, now - self._refused - 1.0))
        self.rate = min(self._most, self.rate + RECOVERY * self._most * quiet)
        self._tokens = min(self._burst, self._tokens + elapsed * self.rate)

    def _give_back(self) -> None:
        self._free += 1
        self._serve()

    def _now(self) -> float:
        return self._clock() if self._clock is not None else asyncio.get_running_loop().time()
