"""Whole lives of jobs, short ones: what a user, a node and training do, each step after the operator's last one."""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from tests.cluster.plans.queue import QUEUE
from tests.cluster.plans.stage import Stage

GANG = {"command": ["torchrun", "train.py"], "nodes": 2, "gracePeriod": "1s"}
PLAIN = {**GANG, "launcher": {"kind": "none"}}
TWICE = {"maxRestarts": 1, "backoff": {"initial": "0s", "max": "1s"}}


class Life(NamedTuple):
    """A job's spec, and what happens to it."""

    spec: dict[str, Any]
    story: Callable[[Stage], Awaitable[None]]
    slow: bool = False  # its pods start when they are told to


async def train(stage: Stage) -> None:
    """Nothing special happens."""
    await stage.trains(1)
    await stage.finish(0)
    await stage.ends("Succeeded")


async def lose(stage: Stage) -> None:
    """A pod is deleted by force, as with its node, and is replaced."""
    await stage.trains(1)
    await stage.delete_pod("0-1", grace_seconds=0)
    await stage.trains(2)
    await stage.finish(0)
    await stage.ends("Succeeded")


async def die(stage: Stage) -> None:
    """The container of a pod ends although its agent said nothing."""
    await stage.trains(1)
    stage.container("0-0").end(137)
    await stage.trains(2)
    await stage.finish(0)
    await stage.ends("Succeeded")


async def suspend(stage: Stage) -> None:
    """A user suspends and resumes it."""
    await stage.trains(1)
    await stage.edit(suspend=True)
    await stage.state("Suspended")
    await stage.edit(suspend=False)
    await stage.trains(2)
    await stage.finish(0)
    await stage.ends("Succeeded")


async def delete(stage: Stage) -> None:
    """A user deletes it while it trains."""
    await stage.trains(1)
    await stage.delete_job()
    await stage.gone()


async def expire(stage: Stage) -> None:
    """It is deleted by the operator as soon as it is over."""
    await stage.trains(1)
    await stage.finish(0)
    await stage.gone()


async def fail(stage: Stage) -> None:
    """A worker fails until the budget is spent."""
    await stage.trains(1)
    await stage.finish(1, rank=1)
    await stage.trains(2)
    await stage.finish(1, rank=0)
    await stage.ends("Failed")


async def shrink(stage: Stage) -> None:
    """A user makes it smaller while it is suspended."""
    await stage.trains(1)
    await stage.edit(suspend=True)
    await stage.state("Suspended")
    await stage.edit(nodes=1)
    await stage.edit(suspend=False)
    await stage.trains(2)
    await stage.finish(0)
    await stage.ends("Succeeded")


async def wait(stage: Stage) -> None:
    """Pods are placed and do not start, until a secret is there."""
    await stage.placed(2)
    await stage.warn("FailedMount", 'MountVolume.SetUp failed for volume "data" : secret "data" not found')
    await stage.reason("MissingSecret")
    await stage.start_pods()
    await stage.trains(1)
    await stage.finish(0)
    await stage.ends("Succeeded")


async def crowd(stage: Stage) -> None:
    """No node is large enough, and the user gives up."""
    await stage.reason("ClusterTooSmall")
    await stage.delete_job()
    await stage.gone()


async def plain(stage: Stage) -> None:
    """Pods without an agent run to their end."""
    await stage.round(1)
    await stage.finish(0)
    await stage.ends("Succeeded")


async def plain_fail(stage: Stage) -> None:
    """A pod without an agent fails and takes its gang along, twice."""
    await stage.round(1)
    await stage.finish(1, rank=1)
    await stage.round(2)
    await stage.finish(1, rank=0)
    await stage.ends("Failed")


async def plain_suspend(stage: Stage) -> None:
    """Pods without an agent are deleted and created again."""
    await stage.round(1)
    await stage.edit(suspend=True)
    await stage.state("Suspended")
    await stage.edit(suspend=False)
    await stage.round(2)
    await stage.finish(0)
    await stage.ends("Succeeded")


async def queue(stage: Stage) -> None:
    """Its queue admits it, preempts it, and admits it again."""
    await stage.reason("WaitingInQueue")
    await stage.admit()
    await stage.trains(1)
    await stage.evict()
    await stage.queued("QuotaReserved", "False")
    await stage.admit()
    await stage.trains(2)
    await stage.finish(0)
    await stage.ends("Succeeded")
    await stage.queued("Finished", "True")


async def queue_suspend(stage: Stage) -> None:
    """A user suspends it, so that its Workload goes, and resumes it."""
    await stage.admit()
    await stage.trains(1)
    await stage.edit(suspend=True)
    await stage.state("Suspended")
    await stage.left_queue()
    await stage.edit(suspend=False)
    await stage.reason("WaitingInQueue")
    await stage.admit()
    await stage.trains(2)
    await stage.finish(0)
    await stage.ends("Succeeded")
    await stage.queued("Finished", "True")


LIVES: dict[str, Life] = {
    "train": Life(GANG, train),
    "lose": Life(GANG, lose),
    "die": Life(GANG, die),
    "suspend": Life(GANG, suspend),
    "delete": Life(GANG, delete),
    "expire": Life({**GANG, "ttlAfterFinished": "0s"}, expire),
    "fail": Life({**GANG, "restart": TWICE}, fail),
    "shrink": Life(GANG, shrink),
    "wait": Life(GANG, wait, slow=True),
    "crowd": Life({**GANG, "resources": {"cpu": 5000}}, crowd),
    "queue": Life({**GANG, "scheduling": QUEUE}, queue),
    "queue-suspend": Life({**GANG, "scheduling": QUEUE}, queue_suspend),
    "plain": Life(PLAIN, plain),
    "plain-fail": Life({**PLAIN, "restart": TWICE}, plain_fail),
    "plain-suspend": Life(PLAIN, plain_suspend),
}
IN_QUEUES = frozenset(name for name, life in LIVES.items() if life.spec.get("scheduling") == QUEUE)
