"""The operator is killed between any two calls of a job's life in Kueue's queue: the next one reaches the same end.

One life is played without a fault to count its calls: admission, preemption, a suspension, the end. Then it is played
again for each call, once with an operator that dies just before the call and once with one that dies just after it, so
that the answer is lost. The controller, its executor and its status writer are the real ones.
"""

import asyncio
from typing import Any

import pytest
from msgspec import Struct
from tests.support.kueue import SOURCES, conditions, evict, workload
from tests.support.kueue import Kueue as Queue
from tests.support.reconcile.world import Ports, World

from torchyard.api.spec_placement import Scheduling
from torchyard.api.status import is_preempted
from torchyard.reconcile.actions import CreatePod
from torchyard.reconcile.loop.controller import Controller
from torchyard.reconcile.ports import Conflict, Unavailable
from torchyard.schedulers.backends import switched_on
from torchyard.schedulers.protocol import CreateObject, DeleteObject, PatchObject

KEY = ("default", "job")
NODES, QUOTA = 2, 2
TICKS, TICKS_AFTER, TICK_SECONDS = 400, 20, 2.0


class Mortal(Ports):
    """Ports whose operator dies at one of its calls; None: at none of them."""

    def __init__(self, world: World, queue: Queue, *, dies_at: int | None = None, after: bool = False) -> None:
        super().__init__(world)
        self._queue, self._dies_at, self._after = queue, dies_at, after
        self.dead = False

    def _call(self, name: str, action: Any) -> None:
        if self.dead:
            raise Unavailable("the operator is dead")
        self.dead = len(self.calls) == self._dies_at
        if self.dead and not self._after:
            raise Unavailable("the operator dies before the call")
        self._check(action)
        super()._call(name, action)
        if self.dead:
            raise Unavailable("the operator dies, and the answer is lost")

    def _check(self, action: Any) -> None:
        """Check what must hold at each call, whatever died before it."""
        alive = any(pod.alive for pod in self.world.pods.values())
        if isinstance(action, CreatePod):
            assert self._queue.reserved(self.world), "a pod without quota"
        if isinstance(action, PatchObject | DeleteObject) and "boost" not in str(action):
            assert not alive, "quota is given back while a pod lives"
            assert self.world.status.state.at_rest
        if isinstance(action, CreateObject):
            assert action.name not in self.world.objects


class Life(Struct):
    """How a life ended."""

    calls: int
    end: tuple[Any, ...]
    rounds: int
    pods: int
    lost_steps: int


async def live(scheduler: str, dies_at: int | None = None, *, after: bool = False) -> Life:
    """Play the life of one job, in which an operator may die once."""
    world = World(NODES, scheduling=Scheduling(gang="kueue", queue="research", workload_priority_class="low"))
    (world.scheduler,) = switched_on([scheduler])
    world.sources = SOURCES
    queue = Queue(QUOTA, [world])
    ports = Mortal(world, queue, dies_at=dies_at, after=after)
    controller = Controller(ports, ports, clock=lambda: world.now)
    calls, story = 0, iter(("preempted", "suspended", "resumed", "done"))
    chapter = next(story)
    reached, lost, rounds, over = 0, 0, 0, 0
    for _ in range(TICKS):
        world.now += TICK_SECONDS
        queue.step()
        world.start_pods()
        world.finish_deletions()
        if world.status.round != rounds:
            rounds = world.status.round
            lost += max(0, reached - (world.checkpoint or 0))
        if len(world.training) == NODES:  # a rank makes no step without its peers
            world.advance_training(1)
        reached = max((reached, *(world.steps[uid] for uid in world.training)))
        step = max((world.steps[uid] for uid in world.training), default=0)
        if chapter == "preempted" and step >= 10:
            evict(world)
            chapter = next(story)
        elif chapter == "suspended" and step >= 20:
            world.edit(suspend=True)
            chapter = next(story)
        elif chapter == "resumed" and world.status.state == "Suspended" and not is_preempted(world.status):
            world.edit(suspend=False)
            chapter = next(story)
        elif chapter == "done" and step >= 30:
            for uid in list(world.training):
                world.end_workers(uid, 0)
        try:
            await controller.reconcile(KEY)
        except (Unavailable, Conflict):
            assert ports.dead
        if ports.dead:
            calls += len(ports.calls)
            world.restart_operator()
            ports = Mortal(world, queue)
            controller = Controller(ports, ports, clock=lambda: world.now)
        over += world.status.state.terminal
        if over > TICKS_AFTER:
            break
    status, there = world.status, workload(world)
    assert there is not None
    end = (
        str(status.state), str(status.reason), status.restarts.counted,
        len(world.objects), conditions(there).get("Finished"), sum(pod.alive for pod in world.pods.values()),
    )  # fmt: skip
    return Life(calls=calls + len(ports.calls), end=end, rounds=status.round, pods=len(world.created), lost_steps=lost)


def test_an_operator_killed_between_any_two_calls_reaches_the_same_end():
    async def lives(scheduler: str, every: int) -> int:
        undisturbed = await live(scheduler)
        assert undisturbed.end == ("Succeeded", "Completed", 0, 1, True, 0)
        assert (undisturbed.rounds, undisturbed.pods, undisturbed.lost_steps) == (3, 3 * NODES, 0)
        for call in range(0, undisturbed.calls, every):
            for after in (False, True):
                found = await live(scheduler, call, after=after)
                where = f"{scheduler}: killed {'after' if after else 'before'} call {call}"
                assert found.end == undisturbed.end, where
                assert found.lost_steps == 0, where
                # An agent that was sent no command, beside one that was, ends a round without charge.
                assert found.rounds <= 4, where
                assert found.pods <= 4 * NODES, where
        return undisturbed.calls

    assert asyncio.run(lives("kueue", 1)) > 40
    assert asyncio.run(lives("kueue=priorityBoost", 3)) > 40


def test_a_pod_without_quota_is_noticed():
    world = World(NODES, scheduling=Scheduling(gang="kueue", queue="research"))
    world.scheduler = switched_on(["kueue"])[0]
    ports = Mortal(world, Queue(QUOTA, [world]))
    with pytest.raises(AssertionError, match="a pod without quota"):
        ports._check(CreatePod(name="job-0-0", index=0, incarnation=0))
