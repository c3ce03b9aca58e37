"""What is to be played: lives to learn, what brings more plans, plans; and lanes that play it side by side."""

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.cluster.plans import queue
from tests.cluster.plans.lane import Lane, lane
from tests.cluster.plans.lives import IN_QUEUES
from tests.cluster.plans.plan import KINDS, Plan, after
from tests.cluster.plans.suite import Result, Suite

from torchyard.kubernetes.client.api import Api

TRIES = 2  # to reach a call or event: two that come at once may come in another order, or be told by a list
LOOK_SECONDS = 0.1


class Programme:
    """What is to be played.

    Args:
        suite: plays.
        lives: names of those to begin with.
        chosen: says which plans.
        every: of the chosen ones, each so-many-th.
        report: called with every result, and with what was learned.
    """

    def __init__(
        self,
        suite: Suite,
        lives: Iterable[str],
        *,
        chosen: Callable[[Plan], bool],
        every: int,
        report: Callable[[Result | str], None],
    ) -> None:
        self.results: list[Result] = []
        self._suite, self._chosen, self._every, self._report = suite, chosen, every, report
        self._ready: asyncio.PriorityQueue[tuple[int, int, str | Plan]] = asyncio.PriorityQueue()
        self._order = itertools.count()
        self._pending = self._found = 0
        for life in lives:
            self._put(life)

    async def play(self, here: Lane) -> None:
        """Play in this lane until nothing is left."""
        while self._pending:
            try:
                _, _, task = self._ready.get_nowait()
            except asyncio.QueueEmpty:
                await asyncio.sleep(LOOK_SECONDS)  # others may still find plans
                continue
            try:
                await (self._learn(here, task) if isinstance(task, str) else self._try(here, task))
            finally:
                self._pending -= 1

    async def _learn(self, here: Lane, life: str) -> None:
        found = self._add(await self._suite.learn(here, life))
        self._report(f"{life}: {self._suite.references[life].seconds:.1f} s, {found} plans")

    async def _try(self, here: Lane, plan: Plan) -> None:
        for _ in range(TRIES):
            result = await self._suite.run(here, plan)
            if result.reached or result.wrong:
                break
        if plan.reveals and (found := self._add(after(plan, result.reads))):
            self._report(f"{plan.name}: {found} plans")
        if not plan.reveals or result.wrong:
            self.results.append(result)
            self._report(result)

    def _add(self, plans: Iterable[Plan]) -> int:
        """Take in those that are chosen; how many these are, without those that only bring more."""
        those = [each for each in sorted(plans) if self._chosen(each)]
        for each in those:
            self._found += not each.reveals
            if each.reveals or self._found % self._every == 0:
                self._put(each)
        return sum(not each.reveals for each in those)

    def _put(self, task: str | Plan) -> None:
        self._pending += 1
        # What brings more comes first, and operators come and go as seldom as possible.
        rank = 0 if isinstance(task, str) or task.reveals else task.operators
        self._ready.put_nowait((rank, next(self._order), task))


async def play(
    api: Api,
    *,
    node: str,
    tls: Path,
    folder: Path,
    lives: Iterable[str],
    lanes: int,
    kinds: Iterable[str] = KINDS,
    chosen: Callable[[Plan], bool] = lambda _plan: True,
    every: int = 1,
    report: Callable[[Result | str], None] = lambda _news: None,
    evidence: Path,
) -> list[Result]:
    """Play lives and all chosen plans for them.

    Args:
        api: the server.
        node: whose pods are simulated.
        tls: folder of certificates.
        folder: for logs.
        lives: names of them.
        lanes: how many plans run side by side.
        kinds: of plans.
        chosen: says which plans.
        every: of the chosen ones, each so-many-th.
        report: called with every result, and with what was learned.
        evidence: folder for what failing plans leave.
    """
    lives = list(lives)
    async with contextlib.AsyncExitStack() as stack:
        flags = queue.FLAGS if IN_QUEUES & set(lives) else ()
        if flags and not await stack.enter_async_context(queue.served(api)):
            left_out = [each for each in lives if each in IN_QUEUES]
            lives = [each for each in lives if each not in IN_QUEUES]
            report(f"Kueue is installed, and would answer as well: left out are {', '.join(left_out)}: 0 plans")
        programme = Programme(Suite(evidence, kinds), lives, chosen=chosen, every=every, report=report)

        async def work(number: int) -> None:
            async with lane(api, node, tls, folder / f"lane-{number}", flags=flags) as here:
                await programme.play(here)

        async with asyncio.TaskGroup() as group:
            for number in range(lanes):
                group.create_task(work(number))
    return programme.results
