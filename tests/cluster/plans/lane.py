"""Where lives are played: a namespace, operators behind proxies, a simulated kubelet, and one job at a time."""

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.cluster.plans.kubelet import Kubelet
from tests.cluster.plans.record import follow
from tests.cluster.plans.recorder import Memory, Recorder
from tests.support.cluster import operators
from tests.support.cluster.fault_proxy import Answer, FaultProxy, Request
from tests.support.cluster.jobs import Jobs
from tests.support.cluster.namespaces import fresh_namespace

from torchyard.kubernetes.client.api import Api
from torchyard.kubernetes.election import LABEL

if TYPE_CHECKING:
    from tests.cluster.plans.stage import Stage

NAMES = ("operator-0", "operator-1")


class Lane:
    """A namespace in which one life is played after the other.

    Attributes:
        memory: what is kept of one life for the next.
        stage: of the life that is played now.
        starting: seconds in which an operator started and led on this machine, at most.
    """

    def __init__(
        self,
        api: Api,
        jobs: Jobs,
        proxies: Iterable[FaultProxy],
        there: Iterable[operators.Operator],
        kubelet: Kubelet,
    ) -> None:
        self.api, self.jobs, self.kubelet = api, jobs, kubelet
        self.memory = Memory()
        self.stage: Stage | None = None
        self.starting = 0.0
        self._proxies, self._operators = tuple(proxies), {each.name: each for each in there}
        self._restart: asyncio.Task[None] | None = None
        self._leaving: list[operators.Operator] = []
        self.record(Recorder("nobody", self.memory))

    def record(self, recorder: Recorder) -> None:
        """Have this one see and change what passes from now on."""
        for each in self._proxies:
            each.tamper = recorder
            each.requests.clear()
        self.kubelet.tell = recorder.said

    @property
    def logs(self) -> dict[str, Path]:
        """What operators logged, by their names."""
        return {name: each.log for name, each in self._operators.items() if each.process is not None}

    @property
    def requests(self) -> list[Request]:
        """What the operators asked since `record`, one operator after the other."""
        return [request for each in self._proxies for request in each.requests]

    # What plans do to operators.

    async def restart(self, away: float = 0.0, *, lease: bool = True) -> None:
        """Kill the operator and start another process in its place, as a kubelet does, or so many seconds later."""
        # Its death also cancels whoever works on a request of its own.
        self._restart = asyncio.create_task(self._replace(away, lease=lease))
        await asyncio.shield(self._restart)

    async def _replace(self, away: float, *, lease: bool) -> None:
        one = self._operators[self.memory.leader or NAMES[0]]
        await one.kill()
        self.memory.led.discard(one.name)
        if not lease:
            path = f"/apis/coordination.k8s.io/v1/namespaces/{self.jobs.namespace}/leases/torchyard"
            await self.api.request("DELETE", path, body={})
            self.memory.elect("")
        await asyncio.sleep(away)
        one.start()

    def freeze(self, name: str) -> None:
        self._operators[name].signal(signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        self._operators[name].signal(signal.SIGCONT)

    def stop(self, name: str) -> None:
        self._operators[name].signal(signal.SIGTERM)
        self._leaving.append(self._operators[name])

    async def ask(self, request: Request) -> Answer:
        return await self._proxies[0].ask(request)

    def elsewhere(self) -> str:
        return next(_intake(each) for name, each in self._operators.items() if name != self.memory.leader)

    # Between plans.

    async def cast(self, number: int) -> None:
        """Have so many operators that know what there is, and one of them leading."""
        if self._restart is not None:
            await self._restart
        # Whose lease it is takes it back at once, anybody else has to wait.
        everyone = sorted(self._operators.values(), key=lambda each: each.name != self.memory.leader)
        good, spare = everyone[:number], everyone[number:]
        for each in spare:
            if each.runs:
                await each.kill()
        begun, anew = time.monotonic(), [each for each in good if not each.runs]
        for each in anew:
            each.start()
        for each in good:
            await each.ready()
        await operators.until(lambda: _one_leads(good), why=lambda: _told(good))
        if anew:
            self.starting = max(self.starting, time.monotonic() - begun)
        self.memory.led = {self.memory.leader}

    async def deposed(self) -> list[str]:
        """Wait until those that were stopped or whose lease another one took have ended; what is wrong, if anything."""
        for each in self._leaving:
            await each.ended()
        self._leaving.clear()
        await operators.until(self._is_led, why=lambda: f"the lease is left to {self.memory.leader or 'no operator'}")
        wrong = []
        for name in self.memory.led - {self.memory.leader}:
            try:
                await self._operators[name].ended()
            except TimeoutError:
                wrong.append(f"{name} goes on although {self.memory.leader} has its lease")
        return wrong

    def _is_led(self) -> bool:
        return self.memory.leader in self._operators and self._operators[self.memory.leader].runs

    async def renew(self) -> None:
        """Have none that knows too little, or too much."""
        for each in self._operators.values():
            if each.runs:
                await each.kill()

    # What happens there.

    def hear_pod(self, kind: str, pod: dict[str, Any]) -> None:
        name, labels = pod["metadata"]["name"], pod["metadata"].get("labels", {})
        if name in self._operators:
            if labels.get(LABEL) == "true":  # as the Service of the intake would
                self.kubelet.intake = _intake(self._operators[name])
            return
        self.kubelet.see(kind, pod)
        if self.stage is not None and name.startswith(f"{self.stage.name}-"):
            self.stage.record.hear_pod(kind, pod)

    def hear_job(self, kind: str, job: dict[str, Any]) -> None:
        if self.stage is not None and job["metadata"]["name"] == self.stage.name:
            self.stage.record.hear_job(kind, job)


@contextlib.asynccontextmanager
async def lane(api: Api, node: str, tls: Path, folder: Path, flags: tuple[str, ...] = ()) -> AsyncIterator[Lane]:
    """A lane of its own, with one operator that is ready. `flags`: further ones of its operators."""
    folder.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240 -- nothing else runs now
    async with contextlib.AsyncExitStack() as stack:
        namespace = await stack.enter_async_context(fresh_namespace(api))
        jobs = Jobs(api, namespace)
        proxies, there = [], []
        make = stack.enter_context(operators.several())
        for name in NAMES:
            proxies.append(await stack.enter_async_context(FaultProxy(api, name).listening()))
            way = proxies[-1].kubeconfig(folder / name, namespace)
            here = {"tls": tls, "address": "127.0.0.1", "kubeconfig": way, "flags": flags}
            there.append(make(folder, namespace, name=name, pod=name, **here))
            await jobs.make("pods", name, spec=UNPLACED)
        kubelet = Kubelet(api, namespace, node=node, intake=_intake(there[0]), authority=tls / "ca.crt")
        one = Lane(api, jobs, proxies, there, kubelet)
        await stack.enter_async_context(kubelet.running())
        async with asyncio.TaskGroup() as group:
            following = [
                group.create_task(follow(api, f"{jobs.core}/pods", one.hear_pod)),
                group.create_task(follow(api, jobs.path, one.hear_job)),
            ]
            try:
                await one.cast(1)
                yield one
            finally:
                for each in following:
                    each.cancel()


async def _one_leads(several: list[operators.Operator]) -> bool:
    return sum([await each.leads() for each in several]) == 1


def _told(several: list[operators.Operator]) -> str:
    return "\n".join(f"{each.name}:\n{each.log.read_text()[-3000:]}" for each in several)


def _intake(operator: operators.Operator) -> str:
    return f"https://127.0.0.1:{operator.intake_port}"


# For an operator that runs as a process beside the cluster: something that can be labelled, and never starts.
UNPLACED = {
    "schedulingGates": [{"name": "torchyard.dev/plans"}],
    "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    "containers": [
        {
            "name": "none",
            "image": "none",
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        }
    ],
}
